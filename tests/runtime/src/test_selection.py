"""Which code a call runs: the device chooses the architecture, the arguments choose the variant.

Blocks tell variants apart, mapped files tell architectures apart; see ``tests/samples``.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import aot_runtime
import aot_runtime.native
import pytest
import tvm_ffi.libinfo
from aot_runtime import Arch, ArgumentError, DeviceError, DriverError, TensorInfo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from observing import mapped_kernels, mapped_libraries, only_block
from standin import Standin, compiler, compiler_environment

from aot.pipeline.spellings import parse_archs

Capability = tuple[int, int]
MakeBundle = Callable[..., aot_runtime.Bundle]

# NVIDIA's rules, written out: on which devices code for an architecture runs.
RUNS_ON = {
    "sm_80": "8.0 8.6 8.9",
    "sm_86": "8.6 8.9",
    "sm_87": "8.7",
    "sm_89": "8.9",
    "sm_90": "9.0",
    "sm_90a": "9.0",
    "sm_100": "10.0 10.3 10.7",
    "sm_100a": "10.0",
    "sm_100f": "10.0 10.3 10.7",
    "sm_103": "10.3 10.7",
    "sm_103a": "10.3",
    "sm_103f": "10.3 10.7",
    "sm_107": "10.7",
    "sm_107a": "10.7",
    "sm_107f": "10.7",
    "sm_110": "11.0",
    "sm_110a": "11.0",
    "sm_110f": "11.0",
    "sm_120": "12.0 12.1",
    "sm_120a": "12.0",
    "sm_120f": "12.0 12.1",
    "sm_121": "12.1",
    "sm_121a": "12.1",
    "sm_121f": "12.1",
}
DEVICES = ["7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "10.7", "11.0", "12.0", "12.1"]

# What the bundle of these tests holds, and of that what each device runs, best first.
ARCHS = ("sm_80", "sm_86", "sm_90a", "sm_100f", "sm_103a", "sm_120f")
RANKED = {
    "7.5": [],
    "8.0": ["sm_80"],
    "8.6": ["sm_86", "sm_80"],
    "8.7": [],
    "8.9": ["sm_86", "sm_80"],
    "9.0": ["sm_90a"],
    "10.0": ["sm_100f"],
    "10.3": ["sm_103a", "sm_100f"],
    "10.7": ["sm_100f"],
    "11.0": [],
    "12.0": ["sm_120f"],
    "12.1": ["sm_120f"],
}


def capability(text: str) -> Capability:
    major, minor = text.split(".")
    return int(major), int(minor)


# The architecture


class ArchStruct(ctypes.Structure):
    _fields_ = [("major", ctypes.c_int32), ("minor", ctypes.c_int32), ("suffix", ctypes.c_char)]


class CapabilityStruct(ctypes.Structure):
    _fields_ = [("major", ctypes.c_int32), ("minor", ctypes.c_int32)]


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Arch, Capability], int]:
    """``aot_arch_rank`` itself, to ask about architectures that no bundle here was built for."""
    folder = tmp_path_factory.mktemp("select")
    source = aot_runtime.native.source_directory() / "aot_arch.c"
    library = folder / "libselect.so"
    flags = ["-std=gnu99", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    include = ["-isystem", tvm_ffi.libinfo.find_include_path()]
    command = [*compiler(), *flags, *include, "-o", str(library), str(source)]
    subprocess.run(command, check=True, env=compiler_environment(folder))
    function = ctypes.CDLL(str(library)).aot_arch_rank
    function.argtypes, function.restype = [ArchStruct, CapabilityStruct], ctypes.c_int32

    def ask(arch: Arch, device: Capability) -> int:
        return int(
            function(ArchStruct(arch.major, arch.minor, arch.suffix.encode() or b"\0"), CapabilityStruct(*device))
        )

    return ask


@pytest.mark.parametrize("text", RUNS_ON)
def test_the_rule_in_python_the_rule_in_c_and_the_table_agree(
    text: str, rank: Callable[[Arch, Capability], int]
) -> None:
    arch = Arch.parse(text)
    for device in DEVICES:
        expected = device in RUNS_ON[text].split()
        assert arch.runs_on(capability(device)) == expected, device
        assert (rank(arch, capability(device)) > 0) == expected, device


@given(
    arch=st.builds(Arch, st.integers(1, 15), st.integers(0, 9), st.sampled_from(["", "a", "f"])),
    device=st.tuples(st.integers(1, 15), st.integers(0, 9)),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_python_and_c_agree_on_architectures_to_come(
    arch: Arch, device: Capability, rank: Callable[[Arch, Capability], int]
) -> None:
    assert arch.runs_on(device) == (rank(arch, device) > 0)


@given(
    one=st.sampled_from(sorted(RUNS_ON)),
    other=st.sampled_from(sorted(RUNS_ON)),
    device=st.sampled_from(DEVICES),
)
def test_an_exact_build_goes_before_its_family_and_that_before_portable_code(
    one: str, other: str, device: str, rank: Callable[[Arch, Capability], int]
) -> None:
    archs = Arch.parse(one), Arch.parse(other)
    ranks = [rank(arch, capability(device)) for arch in archs]
    if all(ranks):
        # The suffix decides; where it is the same, the newer minor version does.
        keys = [("af".find(arch.suffix) if arch.suffix else 2, -arch.minor) for arch in archs]
        assert (keys[0] < keys[1]) == (ranks[0] > ranks[1])


@pytest.mark.parametrize("device", DEVICES)
def test_explain_ranks_the_builds_as_the_table_does(device: str, bundle: aot_runtime.Bundle) -> None:
    explanation = bundle.explain("fill_stream_zero", device, TensorInfo("f32", (8,)))
    fitting = [candidate.arch for candidate in explanation.candidates if not candidate.reason]
    assert fitting == RANKED[device]
    assert {candidate.arch for candidate in explanation.candidates} == set(ARCHS)
    assert (explanation.chosen.arch if explanation.chosen else None) == next(iter(RANKED[device]), None)


@pytest.mark.parametrize("device", [device for device in DEVICES if RANKED[device]])
def test_a_call_opens_the_best_build_and_nothing_else(device: str, cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle(capability(device))
    assert mapped_libraries(bundle) == {"libbundle.so"}
    bundle.fill_stream_zero(cuda.tensor((8,), "float32"))
    assert mapped_libraries(bundle) == {
        "libbundle.so",
        "libbundle_cuda.so",
        f"{RANKED[device][0]}/fill_stream_zero.so",
    }
    assert [launch.device for launch in cuda.launches] == [0]


@pytest.mark.parametrize("device", [device for device in DEVICES if not RANKED[device]])
def test_a_device_that_nothing_was_built_for_is_refused(device: str, cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle(capability(device))
    with pytest.raises(DeviceError) as caught:
        bundle.fill(cuda.tensor((8,), "float32"))
    assert f"fill: bundle `bundle` holds no code for device 0, of compute capability {device}" in caught.value.message
    for arch in ARCHS:
        assert re.search(
            rf"\n  {arch}: runs .*, (not|except) on {re.escape(device)}\b", caught.value.message, re.MULTILINE
        )
    if capability(device) < (8, 0):
        assert caught.value.hint == "use a GPU of compute capability 8.0 or newer; CuTe DSL has no code for older ones"
    else:
        assert caught.value.hint == f"build it for this device too: `python -m aot build --add --arch {device}`"
        assert parse_archs([device], ())  # `build` takes what the hint names
    assert mapped_libraries(bundle) == {"libbundle.so"}


def test_the_reason_for_orin_is_not_a_version_that_it_has(bundle: aot_runtime.Bundle) -> None:
    explanation = bundle.explain("fill", "8.7", TensorInfo("f32", (8,)))
    reasons = {candidate.arch: candidate.reason for candidate in explanation.candidates}
    assert reasons["sm_80"] == (
        "runs from compute capability 8.0 within its major version, except on 8.7, which runs only code built for it"
    )
    assert reasons["sm_120f"] == "runs from compute capability 12.0 within its major version, not on 8.7"


def test_devices_of_one_process_are_served_call_by_call(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    devices = ["9.0", "8.6", "11.0", "10.3", "12.1", "8.0"]
    bundle = fresh_bundle(*map(capability, devices))
    for _ in range(3):
        for index, device in enumerate(devices):
            tensor = cuda.tensor((8,), "float32", device=index)
            if RANKED[device]:
                bundle.fill_stream_zero(tensor)
            else:
                with pytest.raises(DeviceError, match=f"holds no code for device {index}"):
                    bundle.fill_stream_zero(tensor)
    assert [launch.device for launch in cuda.launches] == 3 * [0, 1, 3, 4, 5]
    opened = {f"{RANKED[device][0]}/fill_stream_zero.so" for device in devices if RANKED[device]}
    assert mapped_kernels(bundle) == opened
    assert len(cuda.loads) == len(opened)


def test_each_kernel_opens_a_library_of_its_own(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0))
    out = cuda.tensor((8,), "float32")
    bundle.fill_stream_zero(out)
    assert mapped_kernels(bundle) == {"sm_90a/fill_stream_zero.so"}
    bundle.fill_everywhere(out)
    assert mapped_kernels(bundle) == {"sm_90a/fill_stream_zero.so", "sm_90a/fill_everywhere.so"}


def test_explain_opens_what_it_asks_and_no_cuda(fresh_bundle: MakeBundle, cuda: Standin) -> None:
    bundle = fresh_bundle((9, 0))
    bundle.explain("fill_by_arch", "10.3", TensorInfo("f16", (8,)))
    assert mapped_libraries(bundle) == {"libbundle.so", "sm_103a/fill_by_arch.so", "sm_100f/fill_by_arch.so"}
    assert cuda.calls("cuInit") == 0


# Falling back to the next best architecture


@pytest.mark.parametrize(
    ("device", "dtype", "length", "block"),
    [
        ("8.0", "float32", 7, 32),
        ("8.6", "float32", 8, 64),
        ("8.6", "float16", 16, 64),
        ("8.6", "float32", 7, 32),
        ("8.9", "float16", 9, 32),
        ("10.0", "float16", 8, 96),
        ("10.3", "float16", 8, 128),
        ("10.3", "float32", 8, 96),
    ],
)
def test_where_the_best_build_has_no_variant_the_next_one_runs(
    device: str, dtype: str, length: int, block: int, cuda: Standin, fresh_bundle: MakeBundle
) -> None:
    bundle = fresh_bundle(capability(device))
    out = cuda.tensor((length,), dtype)
    explanation = bundle.explain("fill_by_arch", device, out)
    bundle.fill_by_arch(out)
    assert only_block(cuda) == block
    assert explanation.chosen is not None
    assert explanation.chosen.arch == {32: "sm_80", 64: "sm_86", 96: "sm_100f", 128: "sm_103a"}[block]


def test_no_build_fits_and_all_are_listed_best_first(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((10, 3))
    with pytest.raises(ArgumentError) as caught:
        bundle.fill_by_arch(cuda.tensor((8,), "float64"))
    assert caught.value.message.splitlines()[2:] == [
        "  nearest: sm_103a fill_by_arch__f16: out.dtype is float64, must be float16",
        "  sm_103a fill_by_arch__f16: out.dtype is float64, must be float16",
        "  sm_100f fill_by_arch__f16: out.dtype is float64, must be float16",
        "  sm_100f fill_by_arch__f32: out.dtype is float64, must be float32",
        "  sm_80 fill_by_arch: runs from compute capability 8.0 within its major version, not on 10.3",
        "  sm_86 fill_by_arch: runs from compute capability 8.6 within its major version, not on 10.3",
    ]


@pytest.mark.parametrize("last", ["float16", "float32"])
def test_architectures_may_look_into_tuples_of_different_shapes(
    last: str, cuda: Standin, fresh_bundle: MakeBundle
) -> None:
    bundle = fresh_bundle((10, 3))
    first, second = cuda.tensor((8,), "float32"), cuda.tensor((5,), last)
    wider = 32 if last == "float32" else 0
    for group, weights, block, arch in [
        ((second,), (1.0,), 128, "sm_103a"),
        ((first, second), (1.0, 2.0), 96, "sm_100f"),
    ]:
        chosen = bundle.explain("fill_group", "10.3", group, weights).chosen
        assert chosen is not None and chosen.arch == arch
        bundle.fill_group(group, weights)
        assert only_block(cuda) == block + wider


def test_a_choice_that_the_best_build_lacks_is_taken_from_the_next(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((10, 3))
    out = cuda.tensor((8,), "float32")
    bundle.fill_sized(out)
    assert only_block(cuda) == 128
    bundle.fill_sized(out, size="large")
    assert only_block(cuda) == 4 * 96
    explanation = bundle.explain("fill_sized", "10.3", out, size="large")
    assert [(candidate.arch, candidate.reason) for candidate in explanation.candidates] == [
        ("sm_103a", "not built for this architecture"),
        ("sm_100f", ""),
    ]


# The variant


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("offset", "block"), [(0, 128), (16, 128), (4, 64), (8, 64)])
def test_an_address_that_is_not_aligned_falls_back(
    dtype: str, offset: int, block: int, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    bundle.fill(cuda.tensor((100,), dtype, address=0x7F00_0000_0000 + offset))
    assert only_block(cuda) == block
    bundle.fill(cuda.tensor((100,), dtype, byte_offset=offset))
    assert only_block(cuda) == block


@pytest.mark.parametrize(
    ("length", "value", "block"),
    [
        (1, 0.0, 32),
        (100, 0.5, 32),
        (101, 0.0, 256),
        (104, 0.0, 64),
        (104, 0.5, 64),
        (1000, 0.5, 64),
        (1001, 0.5, 128),
        (1008, 0.5, 128),
        (1008, 0.25, 256),
        (1008, -0.5, 256),
        (1008, 1, 256),
        (1008, True, 256),
        (1008, float("nan"), 256),
        (1008, float("inf"), 256),
    ],
)
def test_guards_choose_in_the_order_of_their_declaration(
    length: int, value: float, block: int, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    out = cuda.tensor((length,), "float32")
    bundle.fill_guarded(out, value)
    assert only_block(cuda) == block
    chosen = bundle.explain("fill_guarded", "9.0", out, value).chosen
    assert chosen is not None and chosen.variant == f"fill_guarded__threads{block}"


Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize("make", [lambda *items: items, lambda *items: list(items), Pair])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tuples_lists_and_named_tuples_are_looked_into(
    make: Callable[..., Any], dtype: str, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    out = cuda.tensor((100,), dtype)
    bundle.fill_pair(make(out, out), (1.0, 3))
    assert [launch.grid[0] for launch in cuda.launches] == [1, 3]
    chosen = bundle.explain("fill_pair", "9.0", make(out, out), (1.0, 3)).chosen
    assert chosen is not None and chosen.variant == f"fill_pair__f{dtype[-2:]}"


def test_explain_takes_descriptions_inside_tuples(bundle: aot_runtime.Bundle) -> None:
    info = TensorInfo("f16", (100,))
    chosen = bundle.explain("fill_pair", "8.0", Pair(info, info), weights=(1, True)).chosen
    assert chosen is not None and (chosen.arch, chosen.variant) == ("sm_80", "fill_pair__f16")


def test_none_and_a_tensor_choose_different_variants(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    out = cuda.tensor((100,), "float32")
    bundle.fill_optional(out, None)
    assert only_block(cuda) == 32
    bundle.fill_optional(out, cuda.tensor((4, 100), "float32"))
    assert only_block(cuda) == 64


def test_the_stride_of_a_single_row_is_whatever_the_framework_likes(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle.fill(cuda.tensor((1,), "float32", strides=(77,)))
    assert only_block(cuda) == 128


def test_rows_of_a_larger_tensor_are_taken(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle.fill_optional(cuda.tensor((100,), "float32"), cuda.tensor((4, 100), "float32", strides=(256, 1)))
    assert only_block(cuda) == 64


@pytest.mark.parametrize("value", [0, 1, -7, 2**62, True, False, 0.5, float("inf"), float("nan")])
def test_a_float_parameter_takes_floats_ints_and_bools(value: float, cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    out = cuda.tensor((100,), "float32")
    assert bundle.explain("fill", "9.0", out, value).chosen is not None
    bundle.fill(out, value)
    assert only_block(cuda) == 128


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1, ""),
        (True, ""),
        (2**31 - 1, ""),
        (2**31, "weights[1] is 2147483648, must be -2147483648 to 2147483647"),
        (-(2**31) - 1, "weights[1] is -2147483649, must be -2147483648 to 2147483647"),
        (1.0, "weights[1] is a float, must be an int"),
        (None, "weights[1] is None, must be an int"),
        ("1", "weights[1] is something else, must be an int"),
    ],
)
def test_an_i32_parameter_takes_ints_and_bools_that_fit(
    value: object, reason: str, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    out = cuda.tensor((100,), "float32")
    explanation = bundle.explain("fill_pair", "9.0", (out, out), (1.0, value))
    (candidate,) = [item for item in explanation.candidates if item.variant == "fill_pair__f32"]
    assert candidate.reason == reason
    assert (explanation.chosen is candidate) == (not reason)
    if reason:
        with pytest.raises(ArgumentError, match=re.escape(reason)):
            bundle.fill_pair((out, out), (1.0, value))
        assert cuda.launches == []
    else:
        bundle.fill_pair((out, out), (1.0, value))
        assert len(cuda.launches) == 2


# Where tensors lie


def overlapping(cuda: Standin, bytes_after: int) -> tuple[Any, Any]:
    """``out`` of 100 floats, so many bytes after the start of a ``bias`` of 4 rows of 100."""
    base = 0x7E00_0000_0000
    out = cuda.tensor((100,), "float32", address=base + bytes_after)
    return out, cuda.tensor((4, 100), "float32", address=base)


@pytest.mark.parametrize("bytes_after", [0, 4, 1600 - 4, -400 + 4])
def test_an_output_that_overlaps_an_input_is_refused_before_any_launch(
    bytes_after: int, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    out, bias = overlapping(cuda, bytes_after)
    where = f"{abs(bytes_after)} bytes {'before' if bytes_after < 0 else 'after'} bias"
    reason = f"out starts {where} and shares memory with it, must lie apart"
    with pytest.raises(ArgumentError, match=f"^fill_optional: {reason}\n  called as: .*\n") as caught:
        bundle.fill_optional(out, bias)
    assert caught.value.hint == "give each output memory of its own"
    assert cuda.launches == []
    explanation = bundle.explain("fill_optional", "9.0", out, bias)
    assert explanation.chosen is None
    assert next(item.reason for item in explanation.candidates if item.variant == "fill_optional__bias") == reason


@pytest.mark.parametrize("bytes_after", [1600, -400])
def test_neighbours_in_memory_are_not_refused(bytes_after: int, cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle.fill_optional(*overlapping(cuda, bytes_after))
    assert len(cuda.launches) == 1


def test_what_the_arguments_are_comes_before_where_they_lie(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    out, _ = overlapping(cuda, 0)
    bias = cuda.tensor((3, 100), "float32", address=0x7E00_0000_0000)
    with pytest.raises(ArgumentError, match=r"bias\.shape\[0\] is 3, must be 4"):
        bundle.fill_optional(out, bias)


def test_an_output_whose_elements_share_memory_is_refused(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    out = cuda.tensor((100,), "float32", strides=(0,))
    with pytest.raises(ArgumentError, match=r"out\.strides\[0\] is 0, must be 1"):
        bundle.fill_optional(out, None)


def test_described_tensors_overlap_nothing(bundle: aot_runtime.Bundle) -> None:
    out, bias = TensorInfo("float32", (100,)), TensorInfo("float32", (4, 100))
    chosen = bundle.explain("fill_optional", "9.0", out, bias).chosen
    assert chosen is not None and chosen.variant == "fill_optional__bias"


# What the device supplies


def test_the_number_of_multiprocessors_is_that_of_the_device_of_the_call(
    cuda: Standin, fresh_bundle: MakeBundle
) -> None:
    bundle = fresh_bundle((9, 0), (9, 0), (8, 0))
    cuda.reset([(9, 0), (9, 0), (8, 0)], sm_counts=[132, 78, 108])
    for device in (0, 1, 2, 1, 0):
        bundle.fill_everywhere(cuda.tensor((8,), "float32", device=device))
    assert [launch.grid[0] for launch in cuda.launches] == [132, 78, 108, 78, 132]


@pytest.mark.parametrize("multiprocessors", [1, 2, 3])
def test_one_cluster_is_enough_and_none_is_an_error(
    cuda: Standin, fresh_bundle: MakeBundle, multiprocessors: int
) -> None:
    bundle = fresh_bundle((9, 0))
    cuda.reset([(9, 0)], sm_counts=[multiprocessors])
    if multiprocessors == 1:  # a cluster has two blocks
        with pytest.raises(DriverError, match="no cluster of 2x1x1 blocks fits on this device"):
            bundle.fill_clusters(cuda.tensor((8,), "float32"))
    else:
        bundle.fill_clusters(cuda.tensor((8,), "float32"))
        assert [launch.grid[0] for launch in cuda.launches] == [2]


def test_the_number_of_clusters_is_asked_once_per_device(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0), (10, 0))
    cuda.reset([(9, 0), (10, 0)], sm_counts=[132, 149])
    for device in (0, 1, 0, 1):
        bundle.fill_clusters(cuda.tensor((8,), "float32", device=device))
    assert [(launch.grid[0], launch.cluster) for launch in cuda.launches] == 2 * [(132, (2, 1, 1)), (148, (2, 1, 1))]
    assert cuda.calls("cuOccupancyMaxActiveClusters") == 2


# Choices


def test_a_choice_is_named_by_keyword_attribute_or_symbol(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    out = cuda.tensor((8,), "float32")
    for call, block in [
        (lambda: bundle.fill_epilogue(out), 96),
        (lambda: bundle.fill_epilogue(out, epilogue="identity"), 96),
        (lambda: bundle.fill_epilogue(out, epilogue="relu"), 160),
        (lambda: bundle.fill_epilogue.relu(out), 160),
        (lambda: bundle["fill_epilogue__relu"](out), 160),
        (lambda: bundle.fill_epilogue__identity(out), 96),
    ]:
        call()
        assert only_block(cuda) == block


def test_a_choice_that_does_not_exist_is_answered_with_those_that_do(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(ArgumentError, match="epilogue = 'tanh' was not built; known: 'identity', 'relu'"):
        bundle.fill_epilogue(cuda.tensor((8,), "float32"), epilogue="tanh")
    with pytest.raises(KeyError, match="has no kernel 'fill_epilogue__tanh'"):
        bundle["fill_epilogue__tanh"]


# Streams


@pytest.mark.parametrize("stream", [0x5EED, 0, None, ctypes.c_void_p(0x5EED)])
def test_an_explicit_stream_is_launched_on(stream: Any, cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    bundle.fill_pointer(0x7F00_0000_0000, 50, stream)
    (launch,) = cuda.launches
    assert launch.stream == (getattr(stream, "value", stream) or 0)
    assert (launch.grid, launch.block) == ((2, 1, 1), (32, 1, 1))


def test_without_a_tensor_the_current_device_is_the_one(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0), (8, 6))
    for device in (None, 1, 0, 1):
        cuda.set_device(device)
        bundle.fill_pointer(0x7F00_0000_0000, 50, cuda.stream(device or 0))
    assert [launch.device for launch in cuda.launches] == [0, 1, 0, 1]
    assert mapped_kernels(bundle) == {"sm_90a/fill_pointer.so", "sm_86/fill_pointer.so"}


# Explaining


def test_a_refusal_lists_every_candidate_with_its_reason(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(ArgumentError) as caught:
        bundle.fill(cuda.tensor((8,), "int32"))
    head, called, nearest, *lines = caught.value.message.splitlines()
    assert head == "fill: no variant in bundle `bundle` takes these arguments on compute capability 9.0"
    assert called == "  called as: fill(out, value) with int32[8] strides (1); a float"
    assert nearest == "  nearest: sm_90a fill__f16__aligned: out.dtype is int32, must be float16"
    variants = [
        f"fill__{dtype}__{aligned}" for dtype in ("f16", "bf16", "f32") for aligned in ("aligned", "not_aligned")
    ]
    assert [line.split(":")[0] for line in lines] == [
        *(f"  sm_90a {variant}" for variant in variants),
        *(f"  {arch} fill" for arch in ARCHS if arch != "sm_90a"),
    ]
    assert all(line.split(": ", 1)[1] for line in lines)


def test_a_refusal_marks_the_variant_that_misses_least(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    """Neither the first nor the last: the dtype of one fits, and its stride does not."""
    with pytest.raises(ArgumentError) as caught:
        bundle.fill(cuda.tensor((8,), "float32", strides=(3,)))
    nearest = caught.value.message.splitlines()[2]
    assert nearest == "  nearest: sm_90a fill__f32__aligned: out.strides[0] is 3, must be 1"


def test_the_next_step_after_a_refusal_names_the_nearest_variant_and_the_kernel(
    cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    with pytest.raises(ArgumentError) as caught:
        bundle.fill(cuda.tensor((8,), "float32", strides=(3,)))
    assert "pass what fill__f32__aligned asks for" in str(caught.value.hint)
    assert "a variant of `fill`" in str(caught.value.hint)


def test_a_refusal_by_a_single_variant_marks_none(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(ArgumentError) as caught:
        bundle.fill_epilogue.relu(cuda.tensor((8,), "int32"))
    assert "nearest" not in caught.value.message
    assert "fill_epilogue__relu" in str(caught.value.hint)


@pytest.mark.parametrize(("device", "hints"), [("8.0", True), ("9.0", False)])
def test_a_refusal_tells_what_to_build_if_no_variant_takes_an_optional_argument(
    device: str, hints: bool, cuda: Standin, fresh_bundle: MakeBundle
) -> None:
    """On 9.0 there is a variant that takes such an argument, and it is this one that does not fit."""
    bundle = fresh_bundle(capability(device))
    bundle.fill_newer(cuda.tensor((8,), "float32"))
    with pytest.raises(ArgumentError) as caught:
        bundle.fill_newer(cuda.tensor((8,), "float32"), cuda.tensor((8,), "int32"))
    assert ("`bias`" in str(caught.value.hint) and "--arch" in str(caught.value.hint)) == hints


def test_an_explanation_reads_as_a_list(bundle: aot_runtime.Bundle) -> None:
    text = str(bundle.explain("fill", "9.0", TensorInfo("f32", (100,))))
    assert "sm_90a fill__f16__aligned: out.dtype is float32, must be float16\n" in text
    assert "sm_90a fill__f32__aligned: chosen\n" in text
    assert "sm_90a fill__f32__not_aligned: eligible, but lower priority\n" in text


def test_explain_takes_keywords_and_defaults(bundle: aot_runtime.Bundle) -> None:
    info = TensorInfo("f32", (100,))
    assert bundle.explain("fill", (9, 0), out=info) == bundle.explain("fill", "9.0", info, 1.0)
    assert (
        bundle.explain("fill_epilogue", "9.0", info, epilogue="relu").chosen
        == bundle.explain("fill_epilogue__relu", "9.0", info).chosen
    )


def test_explain_counts_tensors_of_any_device_as_lying_on_the_device_asked_about(
    cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    on_host = cuda.tensor((100,), "float32", device_type=1)
    elsewhere = cuda.tensor((4, 100), "float32", device=3)
    assert bundle.explain("fill_optional", "9.0", on_host, elsewhere).chosen is not None


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (TensorInfo("f32", (8,), align=4), "out starts 4 bytes past a multiple of 16, must be aligned"),
        (TensorInfo("f32", (8,), strides=(2,)), "out.strides[0] is 2, must be 1"),
        (TensorInfo("f32", (8, 8)), "out.ndim is 2, must be 1"),
        (TensorInfo("f32", ()), "out.ndim is 0, must be 1"),
        (TensorInfo("float8_e4m3fn", (8,)), "out.dtype is float8_e4m3fn, must be float32"),
        (TensorInfo("bool", (8,)), "out.dtype is bool, must be float32"),
        (TensorInfo("float32x4", (8,)), "out.dtype is float32x4, must be float32"),
        (TensorInfo("f32", (2**31,)), "out.shape[0] is 2147483648, must be 0 to 2147483647"),
    ],
)
def test_reasons_name_what_was_seen_and_what_was_wanted(
    info: TensorInfo, reason: str, bundle: aot_runtime.Bundle
) -> None:
    explanation = bundle.explain("fill", "9.0", info)
    (candidate,) = [item for item in explanation.candidates if item.variant == "fill__f32__aligned"]
    assert candidate.reason == reason


tensors = st.builds(
    lambda dtype, shape, offset, stride: (dtype, shape, offset, stride),
    st.sampled_from(["float16", "bfloat16", "float32", "float64", "int32"]),
    st.lists(st.sampled_from([0, 1, 7, 8, 96, 104, 1000, 1008]), max_size=2).map(tuple),
    st.sampled_from([0, 0, 2, 4, 8, 16]),
    st.sampled_from([1, 1, 1, 2]),
)
values = st.one_of(st.floats(), st.just(0.5), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.none())


@given(description=tensors, value=values, kernel=st.sampled_from(["fill", "fill_guarded", "fill_by_arch"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_what_explain_chooses_is_what_runs(
    description: tuple[str, tuple[int, ...], int, int], value: object, kernel: str, on_10_3: tuple[Standin, Any]
) -> None:
    cuda, bundle = on_10_3
    dtype, shape, offset, stride = description
    strides = tuple(stride * max(1, *shape[i + 1 :], 1) for i in range(len(shape)))
    out = cuda.tensor(shape, dtype, strides=strides, address=0x7F00_0000_0000 + offset)
    explanation = bundle.explain(kernel, "10.3", out, value)
    cuda.clear()
    try:
        bundle[kernel](out, value)
    except ArgumentError as error:
        assert explanation.chosen is None
        listed = [f"  {item.arch} {item.variant}: {item.reason}" for item in explanation.candidates]
        nearest, *lines = error.message.splitlines()[2:]
        assert lines == listed
        # It is one of them, and may have more reasons than the first, which the list shows.
        assert any(nearest.startswith(f"  nearest: {line.strip()}") for line in listed)
    except aot_runtime.CudaError as error:
        # An empty tensor makes an empty grid, which CUDA refuses.
        assert explanation.chosen is not None and 0 in shape and "cudaErrorInvalidValue" in error.message
    else:
        assert explanation.chosen is not None
        assert only_block(cuda) == BLOCKS[explanation.chosen.arch, explanation.chosen.variant]


BLOCKS = {
    **{("sm_103a", f"fill__{dtype}__aligned"): 128 for dtype in ("f16", "bf16", "f32")},
    **{("sm_103a", f"fill__{dtype}__not_aligned"): 64 for dtype in ("f16", "bf16", "f32")},
    **{("sm_103a", f"fill_guarded__threads{threads}"): threads for threads in (32, 64, 128, 256)},
    ("sm_103a", "fill_by_arch__f16"): 128,
    ("sm_100f", "fill_by_arch__f16"): 96,
    ("sm_100f", "fill_by_arch__f32"): 96,
}


@pytest.fixture
def on_10_3(cuda: Standin, fresh_bundle: MakeBundle) -> tuple[Standin, aot_runtime.Bundle]:
    return cuda, fresh_bundle((10, 3))


@pytest.mark.parametrize("arguments", [("f16", 3), ("f16", (4, 8), 1), ("f16", "4"), ("f16", (4.0,))])
def test_a_tensor_whose_shape_is_no_tuple_of_integers_is_refused(arguments: Any) -> None:
    with pytest.raises(ArgumentError) as error:
        TensorInfo(*arguments)
    assert error.value.hint is not None
