"""Bad input to the shipped kernels: what their declarations and the selection in C make of it, before any launch.

Nothing is compiled. Each kernel over rows is called as it is declared, with one thing changed, and the answer is the
variant that would run, or the reason why none does.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest

from kernels.contracts.products import gemm_f32, gemm_fp8
from tests.cpp.conftest import PROJECT
from tests.cpp.test_selection_model import flatten

M, N = 6, 512
BF16, F8, F32, I32, I64, U8 = (4, 16, 1), (10, 8, 1), (2, 32, 1), (0, 32, 1), (0, 64, 1), (1, 8, 1)
DTYPES = {"bf16": BF16, "f8e4m3": F8, "f32": F32, "i64": I64}
# What declarations of kernels over rows call their extents, in a sound call.
EXTENTS = {"m": M, "n": N, "both": 2 * N, "d": 2 * N, "half": N, "heads": 3, "groups": M}
# Kernels over rows, or over elements: those that are declared for several widths of access.
ROWS = sorted(
    path.stem
    for family in ("rows", "elementwise", "backward")
    for path in (PROJECT / "kernels" / family).glob("[a-z]*.py")
    if '"access"' in path.read_text()
)
_DECLARED = """
import pickle, sys
from aot_runtime.arch import Arch
from aot.declare.discover import discover
from aot.selection.requirements import variant_table
arch = Arch.parse("sm_90a")
kernels = discover(sys.argv[1]).kernels
def call(kernel):
    # By parameter: of a tensor, the names of its extents and its dtype in a call in bf16; of others, the default.
    wanted = {"dtype": "bf16", "access": "vector"}
    variants = [one for one in kernel.variants(arch) if wanted.items() <= one.point.items()]
    made = max((one.spec.arguments for one in variants), key=lambda made: len(made["x"].shape) if "x" in made else 0)
    return {
        item.name: [[dim.name for dim in made[item.name].shape], made[item.name].dtype] if hasattr(made[item.name], "shape")
        else item.default
        for item in kernel.parameters
    }
calls = {kernel.name: call(kernel) for kernel in kernels if "access" in kernel.axes and kernel.name in sys.argv[2:]}
in_place = [[kernel.name, one, item.name] for kernel in kernels for item in kernel.parameters for one in item.may_be]
def tables_of(kernel):
    # Of the functions that are called: the first one, and the first of those that compute in TF32.
    variants = kernel.variants(arch)
    functions = {variants[0].function} if variants else set()
    functions |= {one.function for one in variants if one.function.startswith("gemm_f32__identity__tf32")}
    return [variant_table(one) for one in variants if one.function in functions]
tables = {kernel.name: tables_of(kernel) for kernel in kernels}
parameters = {kernel.name: [[item.name, item.output] for item in kernel.parameters] for kernel in kernels}
attending = [kernel for kernel in kernels if kernel.name in ("attention", "attention_decode", "mla_decode")]
archs = {
    name: {kernel.name: [variant.name for variant in kernel.variants(Arch.parse(name))] for kernel in attending}
    for name in ("sm_80", "sm_86", "sm_90a", "sm_90", "sm_100f", "sm_120")
}
from kernels.products import gemm_f32, gemm_fp8
tilings = {
    "tf32": gemm_f32.SM90_TF32_TILINGS, "exact": gemm_f32.SM90_EXACT_TILINGS,
    "rows": gemm_fp8.SM90_ROWS_TILINGS, "blocks": gemm_fp8.SM90_BLOCKS_TILINGS,
}
labels = {name: [tiling.label for tiling in own] for name, own in tilings.items()}
pickle.dump({"calls": calls, "in_place": in_place, "tables": tables, "parameters": parameters, "archs": archs,
             "labels": labels}, sys.stdout.buffer)
"""


@dataclass(frozen=True)
class Kernel:
    """The variants of one of a kernel's functions, as a bundle would hold them."""

    parameters: dict[str, bool]  # name -> whether it is an output
    sound: dict[str, Any]  # the arguments of a call that it takes, if it is over rows
    in_place: set[tuple[str, str]]  # inputs and outputs that may be the same tensor
    explain: Callable[[tuple[Any, ...]], str]
    refusal: Callable[[tuple[Any, ...]], str]

    def call(self) -> dict[str, Any]:
        return copy.deepcopy(self.sound)

    def matrices(self) -> list[str]:
        return [name for name, value in self.sound.items() if isinstance(value, dict) and len(value["shape"]) == 2]

    def answer(self, arguments: dict[str, Any]) -> tuple[str, list[str]]:
        """The variant that takes a call, "" where none does, and the reasons of the others."""
        lines = self.explain(tuple(arguments[name] for name in self.parameters)).splitlines()
        rows = [line.split("\t") for line in lines]
        chosen = [variant for arch, variant, _ in rows if arch.startswith("*")]
        return (chosen[0] if chosen else ""), [reason for _, _, reason in rows if reason]

    def taken_by(self, arguments: dict[str, Any]) -> set[str]:
        """The variants that take a call: a table may choose each of them."""
        lines = self.explain(tuple(arguments[name] for name in self.parameters)).splitlines()
        return {variant for _, variant, reason in (line.split("\t") for line in lines) if not reason}


@pytest.fixture(scope="module")
def declared() -> dict[str, Any]:
    command = [sys.executable, "-c", _DECLARED, str(PROJECT / "kernels"), *ROWS]
    made: dict[str, Any] = pickle.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return made


def test_the_kernels_over_rows_are_found(declared: dict[str, Any]) -> None:
    assert sorted(declared["calls"]) == ROWS and {"activation", "rmsnorm_backward", "softmax"} <= set(ROWS)


@pytest.fixture(scope="module")
def kernels(selection: Any, declared: dict[str, Any]) -> dict[str, Kernel]:
    return {name: first_function(selection, declared, name) for name in declared["tables"]}


@pytest.fixture(scope="module")
def tf32(selection: Any, declared: dict[str, Any]) -> Kernel:
    return first_function(selection, declared, "gemm_f32", "gemm_f32__identity__tf32")


def first_function(selection: Any, declared: dict[str, Any], kernel: str, prefix: str = "") -> Kernel:
    """The first of a kernel's functions, or of those whose names start with a prefix."""
    tables = [table for table in declared["tables"][kernel] if table.function.startswith(prefix)]
    variants = [table for table in tables if table.function == tables[0].function]
    parameters = dict(declared["parameters"][kernel])
    library = selection.Library("sm_90a", flatten(variants, len(parameters)))
    sound = {
        name: tensor(i, [EXTENTS[extent] for extent in given[0]], DTYPES[given[1]])
        if isinstance(given, list)
        else given
        for i, (name, given) in enumerate(declared["calls"].get(kernel, {}).items())
    }
    return Kernel(
        parameters,
        sound,
        {(other, output) for of, other, output in declared["in_place"] if of == kernel},
        lambda values: selection.explain([library], 9, 0, values),
        lambda values: selection.refusal([library], 9, 0, values),
    )


def tensor(number: int, shape: Sequence[int], dtype: tuple[int, int, int] = BF16) -> dict[str, Any]:
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    return {"shape": list(shape), "strides": strides, "dtype": dtype, "data": (number + 1) << 46, "byte_offset": 0,
            "device_type": 2, "device": 0}  # fmt: skip


def with_extent(call: dict[str, Any], old: int, new: int) -> dict[str, Any]:
    """The call with an extent replaced wherever it occurs, rows as close as they go."""
    changed = {}
    for i, (name, value) in enumerate(call.items()):
        if isinstance(value, dict):
            shape = tuple(new if n == old else 2 * new if n == 2 * old else n for n in value["shape"])
            value = tensor(i, shape, value["dtype"])
        changed[name] = value
    return changed


@pytest.mark.parametrize("kernel", ROWS)
def test_a_sound_call_runs_in_chunks(kernels: dict[str, Kernel], kernel: str) -> None:
    chosen, _ = kernels[kernel].answer(kernels[kernel].call())
    assert "__vector" in chosen


@pytest.mark.parametrize("kernel", ROWS)
def test_a_misaligned_tensor_is_read_element_by_element_or_refused(kernels: dict[str, Kernel], kernel: str) -> None:
    for name in [name for name, value in kernels[kernel].sound.items() if isinstance(value, dict)]:
        call = kernels[kernel].call()
        size = call[name]["dtype"][1] // 8
        call[name]["byte_offset"] = size
        per_row = call[name]["shape"] == [M]
        chosen, _ = kernels[kernel].answer(call)
        assert ("__vector" if per_row else "__scalar") in chosen, name
        if size > 1:
            call[name]["byte_offset"] = 1
            chosen, reasons = kernels[kernel].answer(call)
            assert not chosen and any(f"{name} starts 1 bytes past a multiple of" in reason for reason in reasons)


@pytest.mark.parametrize("kernel", ROWS)
@pytest.mark.parametrize("extent", [M, N])
def test_extents_beyond_32_bits_are_taken_or_refused(kernels: dict[str, Kernel], kernel: str, extent: int) -> None:
    chosen, reasons = kernels[kernel].answer(with_extent(kernels[kernel].call(), extent, 1 << 32))
    if kernel.removesuffix("_backward") in ("activation", "add", "silu_and_mul"):
        assert "__vector" in chosen
    else:
        assert not chosen
        size = 1 << (33 if (kernel, extent) == ("rope", N) else 32)  # a head has two halves
        assert any(f"is {size}, must be {0 if extent == M else ''}" in reason for reason in reasons)


@pytest.mark.parametrize("kernel", ROWS)
def test_no_rows_are_fine(kernels: dict[str, Kernel], kernel: str) -> None:
    chosen, _ = kernels[kernel].answer(with_extent(kernels[kernel].call(), M, 0))
    assert "__vector" in chosen


@pytest.mark.parametrize("kernel", ROWS)
def test_empty_rows_are_fine_where_they_mean_something(kernels: dict[str, Kernel], kernel: str) -> None:
    chosen, reasons = kernels[kernel].answer(with_extent(kernels[kernel].call(), N, 0))
    if kernel in (
        "argmax",
        "cross_entropy",
        "cross_entropy_backward",
        "quantize_fp8",
        "reduce",
    ):  # the largest of nothing
        assert not chosen and any("x.shape[1] is 0, must be 1 to" in reason for reason in reasons)
    else:
        assert "__vector" in chosen


@pytest.mark.parametrize("kernel", ROWS)
def test_rows_may_lie_anywhere_but_elements_follow_each_other(kernels: dict[str, Kernel], kernel: str) -> None:
    for name in kernels[kernel].matrices():
        call = kernels[kernel].call()
        for stride, access in [(1 << 33, "__vector"), (-(1 << 20), "__vector"), (1 << 20 | 1, "__scalar")]:
            call[name]["strides"][0] = stride
            assert access in kernels[kernel].answer(call)[0], name
        call[name]["strides"] = [1 << 20, -1]
        chosen, reasons = kernels[kernel].answer(call)
        assert not chosen and any(f"{name}.strides[1] is -1, must be 1" in reason for reason in reasons)


@pytest.mark.parametrize("kernel", ROWS)
def test_strides_that_reach_beyond_all_memory_are_refused(kernels: dict[str, Kernel], kernel: str) -> None:
    for name in kernels[kernel].matrices():
        call = kernels[kernel].call()
        call[name]["strides"][0] = 1 << 62
        chosen, reasons = kernels[kernel].answer(call)
        assert not chosen and any("must lie apart" in reason for reason in reasons), name


@pytest.mark.parametrize(
    ("kernel", "name"), [("layernorm", "weight"), ("layernorm", "bias"), ("rmsnorm", "weight"), ("rmsnorm_residual", "weight")]
)  # fmt: skip
@pytest.mark.parametrize("length", [0, 1, N - 1, N + 8])
def test_weights_of_the_wrong_length_are_refused(
    kernels: dict[str, Kernel], kernel: str, name: str, length: int
) -> None:
    call = kernels[kernel].call()
    call[name]["shape"] = [length]
    chosen, reasons = kernels[kernel].answer(call)
    assert not chosen
    assert any(f"{name}.shape[0] is {length}, must equal x.shape[1], which is {N}" in reason for reason in reasons)


@pytest.mark.parametrize("kernel", ROWS)
def test_outputs_may_be_inputs_where_that_is_declared_and_overlap_nothing_else(
    kernels: dict[str, Kernel], kernel: str
) -> None:
    parameters, call = kernels[kernel].parameters, kernels[kernel].call()
    tensors = [name for name, value in call.items() if isinstance(value, dict)]
    for output in (name for name in tensors if parameters[name]):
        for other in (name for name in tensors if name != output):
            same = {**call, output: {**call[output], "data": call[other]["data"]}}
            assert bool(kernels[kernel].answer(same)[0]) == ((other, output) in kernels[kernel].in_place), (
                other,
                output,
            )
            shifted = {**same, output: {**same[output], "byte_offset": 16}}
            chosen, reasons = kernels[kernel].answer(shifted)
            assert not chosen and any("and shares memory with it" in reason for reason in reasons), (other, output)


def test_halves_of_a_matrix_interleave(kernels: dict[str, Kernel]) -> None:
    call = kernels["softmax"].call()
    for name, start in (("x", 0), ("out", 2 * N)):
        call[name].update(data=1 << 42, byte_offset=start, strides=[2 * N, 1])
    assert "__vector" in kernels["softmax"].answer(call)[0]
    call["out"]["byte_offset"] -= 16
    assert not kernels["softmax"].answer(call)[0]


# Attention: two sequences of one new token each, eight heads over two, pages of 16 tokens.


def decode_call(tokens: int = 1, heads: int = 8, dim: int = 128, page: int = 16, cache: Any = BF16) -> dict[str, Any]:
    new, pages = (2, tokens, heads, dim), (9, page, 2, dim)
    return {
        "q": tensor(0, new), "k_cache": tensor(1, pages, cache), "v_cache": tensor(2, pages, cache),
        "lengths": tensor(3, (2,), I32), "out": tensor(4, new), "scale": 0.1, "pages": tensor(5, (2, 4), I32),
        "k_scale": tensor(6, (2,), F32) if cache == F8 else None,
        "v_scale": tensor(7, (2,), F32) if cache == F8 else None, "parts": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("call", "variant"),
    [
        (decode_call(), "bf16__same__dim128__pages__rows16"),
        (decode_call(tokens=4), "bf16__same__dim128__pages__rows16"),
        (decode_call(tokens=5), "bf16__same__dim128__pages__rows64"),
        (decode_call(tokens=16, heads=64, dim=64), "bf16__same__dim64__pages__rows128_box16"),
        (decode_call(tokens=16, heads=64, page=192), "bf16__same__dim128__pages__rows128_box64"),
        (decode_call(tokens=16, heads=64, cache=F8), "bf16__f8e4m3__dim128__pages__rows128"),
        (decode_call(cache=F8), "bf16__f8e4m3__dim128__pages__rows16"),
        ({**decode_call(page=48), "pages": None, "lengths": tensor(3, (9,), I32), "q": tensor(0, (9, 1, 8, 128)),
          "out": tensor(4, (9, 1, 8, 128))}, "bf16__same__dim128__contiguous__rows16"),
    ],
)  # fmt: skip
def test_decoding_packs_rows_into_the_smallest_tile(kernels: dict[str, Kernel], call: dict, variant: str) -> None:
    assert kernels["attention_decode"].answer(call)[0] == f"attention_decode__{variant}"


def assert_refused(kernel: Kernel, call: dict[str, Any], reason: str) -> None:
    chosen, reasons = kernel.answer(call)
    assert not chosen and any(reason in given for given in reasons), "\n".join(sorted(set(reasons)))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (decode_call(page=24), "k_cache.shape[1] is 24, must be divisible by 16"),
        (decode_call(tokens=17), "q.shape[1] is 17, must be 0 to 16"),
        (decode_call(heads=7), "heads % kv_heads is 1, must be 0"),
        (decode_call(dim=64, cache=F8), "q.shape[3] is 64, must be 128"),
        ({**decode_call(cache=F8), "v_scale": None}, "v_scale is None, must be a tensor"),
        ({**decode_call(), "pages": tensor(5, (3, 4), I32)}, "pages.shape[0] is 3, must equal q.shape[0], which is 2"),
        ({**decode_call(), "pages": tensor(5, (2, 4), I64)}, "pages.dtype is int64, must be int32"),
        ({**decode_call(), "lengths": tensor(3, (2,), I64)}, "lengths.dtype is int64, must be int32"),
        ({**decode_call(), "pages": tensor(5, (2, 1 << 27), I32)}, "pages_each * page_size is 2147483648, must be <="),
        ({**decode_call(), "k_scale": tensor(6, (2,), F32)}, "k_scale is a tensor, must be None"),
        ({**decode_call(), "out": decode_call()["q"]}, "out starts 0 bytes after q and shares memory with it"),
    ],
)
def test_decoding_refuses_what_was_not_built(kernels: dict[str, Kernel], call: dict, reason: str) -> None:
    assert_refused(kernels["attention_decode"], call, reason)


def latent_call(tokens: int = 1, heads: int = 16, page: int = 64, cache: Any = BF16) -> dict[str, Any]:
    width = 656 if cache == U8 else 576
    return {
        "q": tensor(0, (2, tokens, heads, 576)), "cache": tensor(1, (9, page, width), cache), "lengths": tensor(2, (2,), I32),
        "out": tensor(3, (2, tokens, heads, 512)), "scale": 0.1, "pages": tensor(4, (2, 4), I32),
        "cache_scale": tensor(5, (1,), F32) if cache == F8 else None, "parts": None,
    }  # fmt: skip


def with_queries_apart(call: dict[str, Any]) -> dict[str, Any]:
    """The heads of a token with room behind them."""
    heads = call["q"]["shape"][2]
    strides = [3 * heads * 576, 2 * heads * 576, 576, 1]
    return {**call, "q": {**call["q"], "strides": strides}}


@pytest.mark.parametrize(
    ("call", "variant"),
    [
        (latent_call(), "bf16__same__pages__box64"),
        (latent_call(heads=32, page=48), "bf16__same__pages__box16"),
        (latent_call(heads=128), "bf16__same__pages__box64"),
        (latent_call(tokens=3), "bf16__same__pages__box64"),
        (latent_call(heads=128, page=16), "bf16__same__pages__box16"),
        (latent_call(heads=17, cache=F8), "bf16__f8e4m3__pages__box64"),
        (latent_call(heads=128, page=48, cache=F8), "bf16__f8e4m3__pages__box16"),
        (latent_call(heads=16, cache=F8), "bf16__f8e4m3__pages__rows16"),
        (latent_call(tokens=4, heads=4, page=48, cache=F8), "bf16__f8e4m3__pages__rows16"),
        (latent_call(heads=16, cache=U8), "bf16__packed__pages__rows16"),
        (latent_call(heads=128, cache=U8), "bf16__packed__pages__rows64"),
        (with_queries_apart(latent_call()), "bf16__same__pages__box64"),
        (latent_call(heads=12_288), "bf16__same__pages__box64"),
    ],
)
def test_latent_attention_is_chosen_by_rows_and_pages(kernels: dict[str, Kernel], call: dict, variant: str) -> None:
    assert kernels["mla_decode"].answer(call)[0] == f"mla_decode__{variant}"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (latent_call(page=24), "cache.shape[1] is 24, must be divisible by 16"),
        (latent_call(tokens=17), "q.shape[1] is 17, must be 0 to 16"),
        # More blocks side by side than the workspace has room for.
        (latent_call(heads=12_289), "tokens * heads is 12289, must be <= 12288"),
        (with_queries_apart(latent_call(tokens=2)), "(tokens - 1) * (q_stride_1 - (heads * 576)) is 9216, must be 0"),
        ({**latent_call(cache=F8), "cache_scale": None}, "cache_scale is None, must be a tensor"),
        ({**latent_call(), "q": tensor(0, (2, 1, 16, 512))}, "q.shape[3] is 512, must be 576"),
        ({**latent_call(), "cache": tensor(1, (0, 64, 576))}, "cache.shape[0] is 0, must be 1 to"),
        ({**latent_call(), "pages": tensor(4, (2, 1 << 25), I32)}, "pages_each * page_size is 2147483648, must be <="),
        ({**latent_call(), "cache": tensor(1, (9, 64, 576), F32)}, "cache.dtype is float32, must be bfloat16"),
        (
            {**latent_call(), "lengths": tensor(2, (3,), I32)},
            "lengths.shape[0] is 3, must equal q.shape[0], which is 2",
        ),
    ],
)
def test_latent_attention_refuses_what_was_not_built(kernels: dict[str, Kernel], call: dict, reason: str) -> None:
    assert_refused(kernels["mla_decode"], call, reason)


def sparse_call(heads: int = 16, width: int = 576, cache: Any = BF16) -> dict[str, Any]:
    return {
        "q": tensor(0, (2, heads, 576)), "cache": tensor(1, (9, 64, width), cache), "indices": tensor(2, (2, 100), I32),
        "lengths": tensor(3, (2,), I32), "out": tensor(4, (2, heads, 512)), "scale": 0.1, "parts": None,
    }  # fmt: skip


def test_sparse_attention_is_chosen_by_the_cache_and_by_rows(kernels: dict[str, Kernel]) -> None:
    decode = kernels["mla_decode_sparse"]
    assert decode.answer(sparse_call())[0] == "mla_decode_sparse__bf16__same"
    assert decode.answer(sparse_call(128, 656, U8))[0] == "mla_decode_sparse__bf16__packed__rows64"
    assert decode.answer(sparse_call(16, 656, U8))[0] == "mla_decode_sparse__bf16__packed__rows16"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (sparse_call(cache=U8), "cache.shape[2] is 576, must be 656"),
        (sparse_call(heads=12_289), "q.shape[1] is 12289, must be"),
        (
            {**sparse_call(), "indices": tensor(2, (3, 100), I32)},
            "indices.shape[0] is 3, must equal q.shape[0], which is 2",
        ),
        (
            {**sparse_call(), "cache": tensor(1, (1 << 20, 1 << 11, 576))},
            "page_count * page_size is 2147483648, must be 1 to",
        ),
    ],
)
def test_sparse_attention_refuses_what_was_not_built(kernels: dict[str, Kernel], call: dict, reason: str) -> None:
    assert_refused(kernels["mla_decode_sparse"], call, reason)


# Attention of prompts: two sequences of 300 tokens, eight heads over two; or three sequences side by side.


def prompt_call(dim: int = 128, kv_tokens: int = 300, **changes: Any) -> dict[str, Any]:
    shapes = {"q": (2, 300, 8, dim), "k": (2, kv_tokens, 2, dim), "v": (2, kv_tokens, 2, dim), "out": (2, 300, 8, dim)}
    tensors = {name: tensor(i, shape) for i, (name, shape) in enumerate(shapes.items())}
    rest = {"scale": 0.1, "left": -1, "right": 0, "soft_cap": 0.0, "tickets": None}
    missing = dict.fromkeys(("q_starts", "k_starts", "lse", "sinks", "pages", "lengths"))
    return {**tensors, **rest, **missing, **changes}


def side_by_side(**changes: Any) -> dict[str, Any]:
    shapes = {"q": (600, 8, 128), "k": (900, 2, 128), "v": (900, 2, 128), "out": (600, 8, 128)}
    tensors = {name: tensor(i, shape) for i, (name, shape) in enumerate(shapes.items())}
    return prompt_call(**tensors, q_starts=tensor(5, (4,), I32), k_starts=tensor(6, (4,), I32), **changes)


def chunk_call(**changes: Any) -> dict[str, Any]:
    """Chunks of prompts against pages of 16 tokens."""
    shapes = {"q": (600, 8, 128), "k": (90, 16, 2, 128), "v": (90, 16, 2, 128), "out": (600, 8, 128)}
    tensors = {name: tensor(i, shape) for i, (name, shape) in enumerate(shapes.items())}
    tables = {"q_starts": tensor(5, (4,), I32), "pages": tensor(6, (3, 20), I32), "lengths": tensor(7, (3,), I32)}
    return {**prompt_call(), **tensors, **tables, **changes}


@pytest.mark.parametrize(
    ("call", "variant"),
    [
        (prompt_call(), "bf16__batch__dim128__no_lse"),
        (prompt_call(lse=tensor(8, (2, 300, 8), F32)), "bf16__batch__dim128__lse"),
        (prompt_call(64), "bf16__batch__dim64__no_lse"),
        (prompt_call(kv_tokens=0), "bf16__batch__dim128__no_lse"),
        (prompt_call(256), "bf16__batch__dim256__no_lse"),
        (side_by_side(), "bf16__ragged__dim128__no_lse"),
        (prompt_call(96, soft_cap=30.0), "bf16__batch__dim96__no_lse"),
        (
            prompt_call(192, v=tensor(2, (2, 300, 2, 128)), out=tensor(3, (2, 300, 8, 128))),
            "bf16__batch__dim192x128__no_lse",
        ),
        (prompt_call(64, sinks=tensor(9, (8,), F32)), "bf16__batch__dim64__sinks"),
        (side_by_side(sinks=tensor(9, (8,), F32), lse=tensor(8, (600, 8), F32)), "bf16__ragged__dim128__sinks_lse"),
        (chunk_call(), "bf16__pages__dim128__no_lse"),
        (chunk_call(pages=tensor(6, (3, 0), I32), lse=tensor(8, (600, 8), F32)), "bf16__pages__dim128__lse"),
    ],
)
def test_attention_takes_prompts(kernels: dict[str, Kernel], call: dict, variant: str) -> None:
    assert kernels["attention"].answer(call)[0] == f"attention__{variant}"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (prompt_call(80), "q.shape[3] is 80, must be 128"),
        (prompt_call(scale=-1.0), "scale is -1, must be > 0"),
        (prompt_call(scale=float("nan")), "scale is NaN, must be > 0"),
        (prompt_call(soft_cap=float("nan")), "soft_cap is NaN, must be >= 0"),
        (prompt_call(lse=tensor(8, (2, 8, 300), F32)), "lse.shape[1] is 8, must equal q.shape[1], which is 300"),
        (prompt_call(q=tensor(0, (2, 300, 7, 128)), out=tensor(3, (2, 300, 7, 128))), "heads % kv_heads is 1"),
        (side_by_side() | {"k_starts": tensor(6, (5,), I32)}, "k_starts.shape[0] is 5, must equal q_starts.shape[0]"),
        (side_by_side() | {"k_starts": None}, "k_starts is None, must be a tensor"),
        (prompt_call(256, sinks=tensor(9, (8,), F32)), "sinks is a tensor, must be None"),
        (prompt_call(soft_cap=-1.0), "soft_cap is -1, must be"),
        (chunk_call(lengths=None), "lengths is None, must be a tensor"),
        (chunk_call(q_starts=tensor(5, (3,), I32)), "`starts == (sequences + 1)` does not hold"),
        (chunk_call(k=tensor(1, (90, 8, 2, 128)), v=tensor(2, (90, 8, 2, 128))), "k.shape[1] is 8"),
        (chunk_call(pages=tensor(6, (3, 1 << 27), I32)), "pages_each * page_size is 2147483648, must be <="),
        (
            chunk_call(v=tensor(2, (90, 16, 2, 128)) | {"strides": [-4096, 256, 128, 1]}),
            "v_stride_0 is -4096, must be >= 0",
        ),
    ],
)
def test_attention_refuses_what_was_not_built(kernels: dict[str, Kernel], call: dict, reason: str) -> None:
    assert_refused(kernels["attention"], call, reason)


def test_a_refusal_of_nan_says_so_of_the_nearest_variant(kernels: dict[str, Kernel]) -> None:
    call = prompt_call(scale=float("nan"))
    message = kernels["attention"].refusal(tuple(call[name] for name in kernels["attention"].parameters))
    assert "  nearest: sm_90a attention__bf16__batch__dim128__no_lse: scale is NaN, must be > 0\n" in message


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_100f", "sm_120"])
def test_every_architecture_attends_as_hopper_does(declared: dict[str, Any], arch: str) -> None:
    """A block of sm_86 or sm_120 has 99 KB of shared memory, so tiles that fit elsewhere may not fit there."""
    names = declared["archs"]
    assert names[arch]["attention"] == names["sm_90a"]["attention"]
    caches = ("same",) if arch in ("sm_80", "sm_86") else ("same", "f8e4m3")  # these cannot convert f8
    points = {tuple(name.split("__")[1:4]) for name in names[arch]["mla_decode"]}
    assert points == set(itertools.product(("bf16", "f16"), caches, ("pages", "contiguous")))
    points = {tuple(name.split("__")[1:5]) for name in names[arch]["attention_decode"]}
    wanted = {tuple(name.split("__")[1:5]) for name in names["sm_90a"]["attention_decode"]}
    assert points == {point for point in wanted if point[1] in caches}


def append_call(positions: int = 64) -> dict[str, Any]:
    new, pages, angles = (2, 1, 2, 128), (9, 16, 2, 128), (positions, 64)
    tensors = {"k": new, "v": new, "k_cache": pages, "v_cache": pages, "lengths": (2,), "k_out": pages, "v_out": pages,
               "pages": (2, 4), "cos": angles, "sin": angles}  # fmt: skip
    dtypes = {"lengths": I32, "pages": I32, "cos": F32, "sin": F32}
    call = {name: tensor(i, shape, dtypes.get(name, BF16)) for i, (name, shape) in enumerate(tensors.items())}
    return {**call, "k_scale": None, "v_scale": None}


def test_appending_works_in_place_and_knows_an_angle_for_every_position(kernels: dict[str, Kernel]) -> None:
    call = append_call()
    chosen, _ = kernels["cache_append"].answer({**call, "k_out": call["k_cache"], "v_out": call["v_cache"]})
    assert chosen == "cache_append__rotated__bf16__same__pages"
    assert not kernels["cache_append"].answer({**call, "k_out": call["v_cache"]})[0]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (append_call(positions=63), "`(pages_each * page_size) <= positions` does not hold"),
        ({**append_call(), "sin": None}, "sin is None, must be a tensor"),
        (
            {**append_call(), "k_cache": tensor(2, (9, 16, 2, 128), F8)},
            "v_cache.dtype is bfloat16, must be float8_e4m3fn",
        ),
        ({**append_call(), "v": tensor(1, (2, 1, 2, 64))}, "v.shape[3] is 64, must equal k.shape[3], which is 128"),
        ({**append_call(), "pages": tensor(7, (3, 4), I32)}, "pages.shape[0] is 3, must equal k.shape[0], which is 2"),
        (
            {**append_call(), "cos": None, "sin": None, "pages": tensor(7, (2, 1 << 27), I32)},
            "pages_each * page_size is 2147483648, must be <=",
        ),
        (
            {**append_call(), "k": tensor(0, (2, 1 << 26, 2, 128)), "v": tensor(1, (2, 1 << 26, 2, 128))},
            "((batch * tokens) * kv_heads) * dim is 34359738368, must be <=",
        ),
    ],
)
def test_appending_refuses_what_was_not_built(kernels: dict[str, Kernel], call: dict, reason: str) -> None:
    assert_refused(kernels["cache_append"], call, reason)


def product(m: int = 6, n: int = 20, k: int = 33, **changed: dict[str, Any] | None) -> dict[str, Any]:
    call = {"a": tensor(0, (m, k), F32), "b": tensor(1, (n, k), F32), "out": tensor(2, (m, n), F32), "bias": None}
    return call | changed


@pytest.mark.parametrize(
    "call",
    [
        product(),
        product(bias=tensor(3, (20,), F32)),
        product(a=tensor(0, (6, 33), F32) | {"strides": [1, 7]}),
        product(b=tensor(1, (20, 33), F32) | {"strides": [66, 2]}),
        {name: tensor(i, shape, F32) for i, (name, shape) in enumerate(
            {"a": (3, 6, 33), "b": (3, 20, 33), "out": (3, 6, 20)}.items())} | {"bias": None},
    ],
)  # fmt: skip
def test_a_product_of_f32_takes_any_strides(call: dict[str, Any], kernels: dict[str, Kernel]) -> None:
    chosen, reasons = kernels["gemm_f32"].answer(call)
    assert chosen.endswith("__tile128x128"), reasons


@pytest.mark.parametrize(
    ("m", "n"), [(1, 20), (4, 20), (6, 20), (20, 20), (40, 20), (192, 5120), (256, 4096), (2048, 2048)]
)
def test_a_product_of_f32_is_read_in_chunks_if_k_is_contiguous(m: int, n: int, kernels: dict[str, Kernel]) -> None:
    """Also if TMA cannot store rows of the output, because they are not aligned. A tile has few rows that do not exist."""
    call = product(m, n, k=32, out=tensor(2, (m, n), F32) | {"strides": [n + 1, 1]})
    chosen, reasons = kernels["gemm_f32"].answer(call)
    found = re.search(r"__rows(\d+)$" if m <= 4 else r"__tile(\d+)x\d+_contiguous$", chosen)
    assert found is not None, reasons
    assert int(found[1]) < max(2 * m, 17)
    chosen, reasons = kernels["gemm_f32"].answer(call | {"a": call["a"] | {"byte_offset": 4}})
    assert chosen.endswith("__tile128x128"), reasons


def test_a_product_of_f32_gets_small_tiles_if_large_ones_leave_multiprocessors_idle(kernels: dict[str, Kernel]) -> None:
    """80 large tiles would leave 52 of 132 idle, 256 none."""

    def rows(m: int, n: int) -> int:
        chosen, _ = kernels["gemm_f32"].answer(
            product(m, n, k=32, out=tensor(2, (m, n), F32) | {"strides": [n + 1, 1]})
        )
        return int(chosen.rpartition("__tile")[2].partition("x")[0])

    assert rows(192, 5120) < rows(2048, 2048)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (product(k=0), "a.shape[1] is 0"),
        (product(b=tensor(1, (20, 34), F32)), "b.shape[1] is 34, must equal a.shape[1], which is 33"),
        (product(a=tensor(0, (6, 33), BF16)), "a.dtype is bfloat16"),
        (product(bias=tensor(3, (6,), F32)), "bias.shape[0] is 6"),
    ],
)
def test_a_product_of_f32_refuses_what_does_not_fit(
    call: dict[str, Any], said: str, kernels: dict[str, Kernel]
) -> None:
    chosen, reasons = kernels["gemm_f32"].answer(call)
    assert not chosen and any(said in reason for reason in reasons), reasons


PRODUCTS = (*gemm_f32.SHAPES, *gemm_f32.FEW, *gemm_f32.LOW, *gemm_f32.SMALL, *gemm_f32.WIDE, *gemm_f32.TF32)


def test_each_tiling_of_exact_products_takes_a_product_of_the_contract(
    kernels: dict[str, Kernel], declared: dict[str, Any]
) -> None:
    """If there are more than four rows, and TMA can load and store all of them."""
    shapes = [(m, n, k) for m, n, k in PRODUCTS if m > 4 and n % 4 == 0 and k % 4 == 0]
    taken = set().union(*(kernels["gemm_f32"].taken_by(product(*shape)) for shape in shapes))
    assert taken >= {f"gemm_f32__identity__exact__matrix__{label}" for label in declared["labels"]["exact"]}


def test_each_tiling_of_tf32_takes_a_product_of_the_contract(tf32: Kernel, declared: dict[str, Any]) -> None:
    """And the general ones, for outputs and inputs that TMA does not take."""
    taken = set().union(*(tf32.taken_by(product(*shape)) for shape in PRODUCTS if shape[0] > 0))
    others = {"tile64x64_cooperative_direct", "tile128x128_cooperative_direct", "tile128x128"}
    assert taken >= {f"gemm_f32__identity__tf32__matrix__{label}" for label in {*declared["labels"]["tf32"], *others}}


# Products with scales, and of experts.


def scaled_call(m: int, n: int, k: int, a_scale: tuple[int, ...], b_scale: tuple[int, ...]) -> dict[str, Any]:
    return {
        "a": tensor(0, (m, k), F8), "b": tensor(1, (n, k), F8), "a_scale": tensor(2, a_scale, F32),
        "b_scale": tensor(3, b_scale, F32), "out": tensor(4, (m, n)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("call", "scales"),
    [
        (scaled_call(64, 512, 256, (64,), (512,)), "rows"),
        (scaled_call(64, 512, 256, (1,), (1,)), "rows"),
        (scaled_call(64, 512, 256, (1,), (512,)), "rows"),
        (scaled_call(0, 512, 256, (0,), (512,)), "rows"),
        (scaled_call(64, 512, 256, (64, 2), (4, 2)), "blocks"),
        (scaled_call(64, 520, 256, (64, 2), (5, 2)), "blocks"),
        (scaled_call(64, 512, 272, (64, 3), (4, 3)), "blocks"),
        (scaled_call(5000, 4096, 128, (5000, 1), (32, 1)), "blocks"),
    ],
)
def test_the_shapes_of_scales_say_what_they_are_for(kernels: dict[str, Kernel], call: dict, scales: str) -> None:
    assert kernels["gemm_fp8"].answer(call)[0].startswith(f"gemm_fp8__bf16__f8e4m3__{scales}__tile")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (scaled_call(64, 512, 256, (63,), (512,)), "`(a_scales == m) or (a_scales == 1)` does not hold"),
        (scaled_call(64, 512, 256, (64,), (2,)), "`(b_scales == n) or (b_scales == 1)` does not hold"),
        (scaled_call(64, 512, 272, (64, 2), (4, 2)), "does not hold"),
        (scaled_call(64, 520, 256, (64, 2), (4, 2)), "does not hold"),
        (scaled_call(64, 512, 256, (64, 2), (4, 3)), "b_scale.shape[1] is 3, must equal a_scale.shape[1], which is 2"),
        (scaled_call(64, 512, 248, (64,), (512,)), "a.strides[0] is 248, must be divisible by 16"),
    ],
)
def test_scales_that_do_not_fit_are_refused(kernels: dict[str, Kernel], call: dict, reason: str) -> None:
    assert_refused(kernels["gemm_fp8"], call, reason)


@pytest.mark.parametrize("scales", ["rows", "blocks"])
def test_each_tiling_of_f8_takes_a_product_of_the_contract(
    kernels: dict[str, Kernel], declared: dict[str, Any], scales: str
) -> None:
    if scales == "rows":
        calls = [scaled_call(m, n, k, (m,), (n,)) for m, n, k in gemm_fp8.SHAPES]
    else:
        shapes = gemm_fp8.BLOCK_SHAPES
        calls = [scaled_call(m, n, k, (m, -(-k // 128)), (-(-n // 128), -(-k // 128))) for m, n, k in shapes]
    taken = set().union(*(kernels["gemm_fp8"].taken_by(call) for call in calls))
    assert taken >= {f"gemm_fp8__bf16__f8e4m3__{scales}__{label}" for label in declared["labels"][scales]}


def gated_call(m: int, n: int, both: int) -> dict[str, Any]:
    return {"a": tensor(0, (m, 256)), "b": tensor(1, (both, 256)), "out": tensor(2, (m, n))}


@pytest.mark.parametrize(
    ("m", "tile"), [(1, "16x"), (16, "16x"), (17, "64x"), (64, "64x"), (65, "128x"), (4096, "128x")]
)
def test_few_rows_of_a_gated_product_take_low_tiles(kernels: dict[str, Kernel], m: int, tile: str) -> None:
    assert kernels["gemm_gated"].answer(gated_call(m, 512, 1024))[0].startswith(f"gemm_gated__bf16__tile{tile}")


def test_a_gate_without_as_many_rows_to_gate_is_refused(kernels: dict[str, Kernel]) -> None:
    chosen, reasons = kernels["gemm_gated"].answer(gated_call(64, 512, 1025))
    assert not chosen and any("does not hold" in reason for reason in reasons), "\n".join(sorted(set(reasons)))


def grouped_call(rows: int, experts: int, dtype: Any = BF16, n: int = 512) -> dict[str, Any]:
    scaled = dtype == F8
    return {
        "a": tensor(0, (rows, 256), dtype), "b": tensor(1, (experts, n, 256), dtype), "offsets": tensor(2, (experts,), I32),
        "out": tensor(3, (rows, n)), "a_scale": tensor(4, (rows,), F32) if scaled else None,
        "b_scale": tensor(5, (experts, n), F32) if scaled else None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("call", "operands", "rows"),
    [
        (grouped_call(200, 8), "same", 64),
        (grouped_call(900, 8), "same", 128),
        (grouped_call(1400, 8), "same", 192),
        (grouped_call(8192, 8), "same", 128),
        (grouped_call(200, 8, F8), "f8e4m3", 64),
        (grouped_call(8192, 8, F8), "f8e4m3", 128),
    ],
)
def test_few_rows_of_an_expert_take_low_tiles(kernels: dict[str, Kernel], call: dict, operands: str, rows: int) -> None:
    assert kernels["grouped_gemm"].answer(call)[0].startswith(f"grouped_gemm__bf16__{operands}__b_rows__tile{rows}x")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (grouped_call(200, 8, n=516), "must be divisible by 8"),
        ({**grouped_call(200, 8), "offsets": tensor(2, (9,), I32)}, "must equal"),
        ({**grouped_call(200, 8, F8), "a_scale": None}, "a_scale is None, must be a tensor"),
    ],
)
def test_what_does_not_belong_to_the_experts_is_refused(kernels: dict[str, Kernel], call: dict, reason: str) -> None:
    assert_refused(kernels["grouped_gemm"], call, reason)


def gated_experts(rows: int, both: int = 512) -> dict[str, Any]:
    call = {name: value for name, value in grouped_call(rows, 8, n=both).items() if "scale" not in name}
    return call | {"out": tensor(3, (rows, 256)), "weights": None}


@pytest.mark.parametrize(("rows", "tile"), [(200, "64x"), (900, "128x128"), (1400, "192x"), (8192, "128x256")])
def test_few_rows_of_a_gated_expert_take_low_tiles(kernels: dict[str, Kernel], rows: int, tile: str) -> None:
    kernel = kernels["grouped_gemm_gated"]
    for weights in (None, tensor(4, (rows,), F32)):
        chosen, _ = kernel.answer(gated_experts(rows) | {"weights": weights})
        assert chosen.startswith(f"grouped_gemm_gated__bf16__tile{tile}")
    chosen, reasons = kernel.answer(gated_experts(rows, both=520))
    assert not chosen and any("does not hold" in reason for reason in reasons)


# What TMA copies.


@pytest.mark.parametrize(
    ("kernel", "call", "name"),
    [
        ("gemm", {**gated_call(64, 512, 512), "bias": None}, "a"),
        ("gemm", {**gated_call(64, 512, 512), "bias": None}, "b"),
        ("gemm", {**gated_call(64, 512, 512), "bias": None}, "out"),
        ("gemm_gated", gated_call(64, 512, 1024), "b"),
        ("gemm_fp8", scaled_call(64, 512, 256, (1,), (1,)), "a"),
        ("grouped_gemm", grouped_call(200, 8), "b"),
        ("grouped_gemm_gated", gated_experts(200), "b"),
        ("attention", prompt_call(), "k"),
        ("attention", side_by_side(), "q"),
        ("attention_decode", decode_call(tokens=16, heads=32), "k_cache"),
        ("mla_decode", latent_call(), "cache"),
        ("mla_decode_sparse", sparse_call(), "q"),
    ],
)
def test_rows_that_run_backwards_are_refused(kernels: dict[str, Kernel], kernel: str, call: dict, name: str) -> None:
    """As those of a reversed array do."""
    assert kernels[kernel].answer(call)[0]
    strides = call[name]["strides"]
    backwards = call[name] | {"strides": [-strides[0], *strides[1:]]}
    assert_refused(kernels[kernel], {**call, name: backwards}, "must be >= 0")


def test_products_of_tf32_that_run_backwards_are_not_copied_by_tma(tf32: Kernel) -> None:
    call = product(64, 64, 64)
    assert not tf32.answer(call)[0].endswith("__tile128x128")
    backwards = call["a"] | {"strides": [-64, 1]}
    assert tf32.answer({**call, "a": backwards})[0].endswith("__tile128x128")
