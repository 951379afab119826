"""``lib<name>_torch.so``: operators of torch that are registered from C. See ``played_torch`` for what plays the kernels."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.core import opening
from aot_runtime.errors import AotError
from observing import in_use
from played_torch import KERNELS, Played, make_bundle

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
torch: Any = None
operators: Any = None
with suppress(ImportError):
    import torch
    from aot_runtime import torch as operators

OFFERED = ("blend", "activation", "sums", "twice", "peaks")


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    if torch is None:
        pytest.skip("operators of torch need torch")


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    pytest.importorskip("torch", reason="operators of torch need torch")
    return lambda name: make_bundle(tmp_path_factory.mktemp("bundle") / name, name)


@pytest.fixture(scope="module")
def bundle(make: Callable[[str], Path]) -> Played:
    library = make("native")
    bundle = Played("native", library.parents[2])
    assert operators.load_library(bundle) == library
    return bundle


@pytest.fixture(scope="module")
def ops(bundle: Played) -> Any:
    return torch.ops.native


@pytest.fixture(scope="module")
def traceable(bundle: Played) -> Any:
    """The same operators, after Python added what tracing needs."""
    return operators.register(bundle)


@pytest.fixture
def x() -> Any:
    return torch.randint(-20, 21, (4, 6)) / 8  # sums of eighths are exact, in whatever order they are added up


def test_the_schemas_are_those_that_python_registers(ops: Any, tmp_path: Path) -> None:
    operators.register(Played("from_python", tmp_path))
    for kernel in OFFERED:
        for form in ("default", "out"):
            native, python = (getattr(getattr(n, kernel), form)._schema for n in (ops, torch.ops.from_python))
            assert str(native) == str(python).replace("from_python::", "native::")
    assert not hasattr(ops, "pointers")


def test_numbers_truths_and_absent_tensors_arrive(ops: Any, x: Any) -> None:
    assert torch.equal(ops.blend(x), 6 * x)
    assert torch.equal(ops.blend(x, 0.5, 4, True), -2 * x)
    assert torch.allclose(ops.blend(x, bias=x), 7 * x)
    assert ops.blend(torch.empty(0, 3)).shape == (0, 3)
    assert ops.blend(torch.tensor(2.0)).item() == 12


def test_scratch_memory_is_allocated_for_the_call(ops: Any) -> None:
    x = torch.arange(5.0)
    assert torch.equal(ops.twice(x), 2 * x)
    assert ops.twice(x[:0]).shape == (0,)
    out = torch.empty_like(x)
    ops.twice.out(x, out=out)
    assert torch.equal(out, 2 * x)


def test_choices_are_strings(ops: Any, x: Any) -> None:
    assert torch.equal(ops.activation(x), x.relu())
    assert torch.equal(ops.activation(x, op="one"), x.clamp(min=1))


def test_outputs_are_allocated_as_declared(ops: Any, x: Any) -> None:
    for given in (x, x.T, x[::2, 1:]):
        total, half = ops.sums(given)
        assert total.dtype == torch.float64 and torch.allclose(total, given.double().sum(1))
        assert half.is_contiguous() and torch.equal(half, given[:, : given.shape[1] // 2])


def test_the_out_form_writes_and_autograd_knows(ops: Any, x: Any) -> None:
    out = torch.empty_like(x)
    before = out._version
    assert ops.blend.out(x, out=out) is None
    assert torch.equal(out, 6 * x)
    assert out._version == before + 1
    total, half = torch.empty(4, dtype=torch.float64), torch.empty(4, 3)
    ops.sums.out(x, total=total, half=half)
    assert torch.equal(half, x[:, :3])


def test_a_caller_may_leave_an_optional_output_out_and_pick_a_dtype(ops: Any, x: Any) -> None:
    peaks, totals = ops.peaks(x)
    assert torch.equal(peaks, x.clamp(min=1).double()) and torch.allclose(totals, x.sum(1))
    out, total = torch.empty_like(x), torch.zeros(4)
    versions = out._version, total._version
    ops.peaks.out(x, out=out)
    assert (out._version, total._version) == (versions[0] + 1, versions[1])
    ops.peaks.out(x, out=out, total=total)
    assert (out._version, total._version) == (versions[0] + 2, versions[1] + 1)
    assert torch.equal(out, x.clamp(min=1)) and torch.allclose(total, x.sum(1))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda ops, x: ops.activation(x, op="none"), "activation: op = 'none' was not built; known: relu, one"),
        (lambda ops, x: ops.activation(x.double()), "^the dtype was not built$"),
        (lambda ops, x: ops.activation(x.to(torch.complex64)), "activation: `x` has a dtype that no kernel takes"),
        (lambda ops, x: ops.sums(x[0, 0]), "the shape of `total` cannot be computed: an argument has too few dimensions"),
        (lambda ops, x: ops.blend.out(x, out=x.double()), "^the dtype was not built$"),
    ],
)  # fmt: skip
def test_errors_are_exceptions_with_the_reasons(ops: Any, x: Any, call: Any, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        call(ops, x)
    assert torch.equal(ops.blend(x), 6 * x)


def test_a_gradient_is_not_lost(ops: Any, x: Any) -> None:
    weight = torch.randn(4, 6, requires_grad=True)
    for arguments in ((weight,), (weight * 2,), (x, 1.0, 1, False, weight)):
        with pytest.raises(RuntimeError, match="blend computes no gradient if it is called from C"):
            ops.blend(*arguments)
    with pytest.raises(RuntimeError, match="and an argument requires one"):
        ops.blend.out(x, out=weight)
    with torch.no_grad():
        assert torch.equal(ops.blend(weight), 6 * weight)
    with torch.inference_mode():
        out = ops.blend(weight)
        ops.blend.out(x, out=out)


def test_ten_thousand_calls_leak_nothing(ops: Any) -> None:
    x, small = torch.randn(64, 256), torch.randn(2, 256, dtype=torch.float64)
    out = torch.empty_like(x)

    def calls(count: int) -> None:
        for _ in range(count):
            ops.blend(x, bias=x)
            ops.blend.out(x, out=out)
            ops.activation(x, op="one")
            ops.twice(x)
            for given, op in ((small, "relu"), (x[:2].clone(), "none")):
                with suppress(RuntimeError):
                    ops.activation(given, op=op)

    with torch.no_grad():
        calls(100)
        before = in_use()
        calls(2000)
    # What the six calls lose together is less than eight bytes: nothing is that small.
    assert in_use() - before < 2000 * 8


def test_register_adds_what_tracing_needs_and_leaves_the_kernels(traceable: Any, ops: Any, x: Any) -> None:
    assert set(traceable) == set(OFFERED)
    assert torch.equal(ops.blend(x), 6 * x)  # Python's kernels would raise
    exported = torch.export.export(
        Model(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("rows", min=2, max=1024)}}
    ).module()
    for rows in (4, 9):
        given = torch.randn(rows, 6)
        for got, expected in zip(exported(given), Model.expected(given), strict=True):
            assert torch.allclose(got, expected)


class Model(torch.nn.Module if torch else object):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        active = torch.ops.native.activation(x + 1, op="one")
        out = torch.empty_like(active)
        torch.ops.native.blend.out(active, 0.5, bias=x, out=out)
        return out, torch.ops.native.sums(out)[0]

    @staticmethod
    def expected(x: Any) -> Any:
        out = (x + 1).clamp(min=1) * 1.5 + x
        return out, out.double().sum(1)


def test_operators_that_exist_are_not_taken_for_this_bundles(bundle: Played, tmp_path: Path) -> None:
    library = torch.library.Library("other_native", "FRAGMENT")
    library.define("sums(Tensor x) -> (Tensor, Tensor)")
    with pytest.raises(AotError, match="torch has an operator other_native::sums already, which was not registered by"):
        operators.register(Played("other_native", tmp_path))
    library.define("blend(Tensor x) -> Tensor")
    with pytest.raises(AotError, match="torch has an operator other_native::blend already"):
        operators.register(Played("other_native", tmp_path))
    assert not hasattr(torch.ops.other_native, "activation")  # nothing stays of what was refused


def error_of(library: Path, name: str) -> str | None:
    function = ctypes.CDLL(str(library))[f"aot_{name}_torch_error"]
    function.restype = ctypes.c_char_p
    reason: bytes | None = function()
    return None if reason is None else reason.decode()


def test_a_second_bundle_of_one_name_is_refused_whole(make: Callable[[str], Path]) -> None:
    first, second = make("twice"), make("twice")
    torch.ops.load_library(str(first))
    torch.ops.load_library(str(first))
    assert error_of(first, "twice") is None
    torch.ops.load_library(str(second))
    assert str(error_of(second, "twice")).startswith(
        "`torch.ops.twice.blend` cannot be registered: it is defined already, by `aot_runtime.torch.register` or by another"
    )
    with pytest.raises(AotError, match="cannot be registered: it is defined already"):
        operators.load_library(Played("twice", second.parents[2]))
    x = torch.randn(3)
    assert torch.equal(torch.ops.twice.blend(x), 6 * x)  # the first one's stay
    with pytest.raises(
        AotError, match=r"operator twice::blend already, which `.*/libtwice_torch\.so` registered, not `"
    ):
        operators.register(Played("twice", second.parents[2].parent))


def test_after_register_the_library_says_that_it_comes_too_late(make: Callable[[str], Path]) -> None:
    library = make("late")
    bundle = Played("late", library.parents[2])
    assert set(operators.register(bundle)) == set(OFFERED)
    with pytest.raises(AotError, match="open this library before calling `register`"):
        operators.load_library(bundle)
    assert hasattr(torch.ops.late, "blend")


def test_an_altered_library_is_not_opened(make: Callable[[str], Path]) -> None:
    library = make("altered")
    bundle = Played("altered", library.parents[2])
    library.write_bytes(library.read_bytes() + b"\0")
    with pytest.raises(AotError, match=r"libaltered_torch\.so` has more bytes, expected"):
        operators.load_library(bundle)


def test_register_takes_no_operators_of_an_altered_library(make: Callable[[str], Path]) -> None:
    library = make("unchecked")
    bundle = Played("unchecked", library.parents[2])
    whole = library.read_bytes()
    library.unlink()
    library.write_bytes(whole + b"\0")
    torch.ops.load_library(str(library))  # checks nothing
    with pytest.raises(AotError, match=r"libunchecked_torch\.so` has more bytes, expected"):
        operators.register(bundle)


def test_a_library_that_is_replaced_meanwhile_is_not_the_one_that_is_opened(
    make: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, other = make("hashed"), make("replacing")
    bundle = Played("hashed", library.parents[2])
    spelled = opening._spelled

    def replacing(descriptor: int, facts: Any) -> str:
        os.replace(other, library)
        return str(spelled(descriptor, facts))

    monkeypatch.setattr(opening, "_spelled", replacing)
    assert operators.load_library(bundle) == library
    assert not other.exists()
    x = torch.randn(3)
    assert torch.equal(torch.ops.hashed.blend(x), 6 * x)  # the siblings were found
    assert not hasattr(torch.ops.replacing, "blend")


def test_a_bundle_of_links_works(make: Callable[[str], Path], tmp_path: Path) -> None:
    library = make("linked")
    for number, file in enumerate(sorted(library.parent.iterdir())):  # as caches of model hubs install files
        (tmp_path / "store").mkdir(exist_ok=True)
        file.rename(tmp_path / "store" / str(number))
        file.symlink_to(tmp_path / "store" / str(number))
    assert operators.load_library(Played("linked", library.parents[2])) == library
    x = torch.randn(3)
    assert torch.equal(torch.ops.linked.blend(x), 6 * x)


def test_what_is_wrong_with_the_bundle_arrives_as_an_exception_and_can_be_put_right(
    make: Callable[[str], Path],
) -> None:
    library = make("mended")
    entry = library.with_name("libmended.so")
    content = entry.read_bytes()
    entry.write_bytes(content[:-1])
    torch.ops.load_library(str(library))
    x = torch.randn(3)
    with pytest.raises(RuntimeError, match=r"libmended\.so` is not the file this bundle was built with"):
        torch.ops.mended.blend(x)
    entry.unlink()
    entry.write_bytes(content)
    assert torch.equal(torch.ops.mended.blend(x), 6 * x)


def test_threads_may_make_the_first_call_together(make: Callable[[str], Path]) -> None:
    torch.ops.load_library(str(make("threads")))
    x = torch.randn(3)
    barrier = threading.Barrier(8)

    def call(_: int) -> bool:
        barrier.wait()
        return all(torch.equal(torch.ops.threads.blend(x), 6 * x) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(8)))


def test_tables_of_another_build_are_refused(make: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    x, out, *scalars = KERNELS["blend"].parameters
    monkeypatch.setitem(KERNELS, "blend", KERNELS["blend"].replace(parameters=(x, *scalars[:2], out, *scalars[2:])))
    library = make("mixed")
    torch.ops.load_library(str(library))
    with pytest.raises(
        RuntimeError, match=r"its library for torch calls it with \(x, factor, count, out, flip, bias\)"
    ):
        torch.ops.mixed.blend(torch.randn(3))


OPEN = """
import ctypes, sys
for path in sys.argv[2:]:
    ctypes.CDLL(path)
function = ctypes.CDLL(sys.argv[1]).aot_alone_torch_error
function.restype = ctypes.c_char_p
print(function().decode())
"""


def test_without_torch_or_with_an_old_one_the_error_is_one_sentence(
    make: Callable[[str], Path], tmp_path: Path
) -> None:
    library = make("alone")
    source = tmp_path / "old.c"
    source.write_text(
        "#include <stdint.h>\nuint64_t aoti_torch_abi_version(void) { return (2ull << 56) | (9ull << 48); }\n"
        "void aoti_torch_get_data_ptr(void) {}\nint aoti_torch_library_init_fragment(void) { return 1; }\n"
    )
    old = tmp_path / "libtorch_cpu.so"
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libtorch_cpu.so",
        source,
        "-o",
        old,
    ]
    subprocess.run(command, check=True, capture_output=True)
    for torches, said in (
        ((), "there is no torch in this process: open this library after `libtorch_cpu.so`"),
        ((old,), "this torch 2.9 lacks `aoti_torch_library_init_impl`; operators from C need torch 2.10 or newer"),
    ):
        done = subprocess.run([sys.executable, "-c", OPEN, library, *torches], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (f"{said}\n", f"libalone_torch.so: {said}\n")
