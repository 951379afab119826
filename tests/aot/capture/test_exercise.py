"""A script that uses a library shows every compile that it leads to, once, in words that are the same in every process."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import Parameter
from places import TESTS

from aot.capture.exercise import execute, run_exercise
from aot.capture.recorder import Recorder
from aot.capture.standin import Notes
from aot.compile.messages import EXERCISE, Compiled, Declared, KernelInfo, Options
from aot.compile.process import Worker
from aot.errors import DeclarationError, UsageError

FOREIGN = TESTS / "foreign"
SCRIPT = """
from rowlib.adding import add
from rowlib.scaling import Scale, _compile_scale, scale

scale(None, None, None, dtype="f16", n=64)
again = _compile_scale.__wrapped__("f16", 64, False)  # the same call from another place
scale(None, 0, None, dtype="f16", n=64)

def double(value):
    return value * 2.0

add(None, None, None, bias=0, modify=double)
modifiers = [lambda value: value + 1.0, lambda value: value - 1.0]
add(None, None, None, modify=modifiers[0])

import cutlass, cutlass.cute as cute
x = cute.runtime.make_fake_compact_tensor(cutlass.Float16, (4, 64), stride_order=(1, 0))
stream = cute.runtime.make_fake_stream()
cute.compile(Scale(cutlass.Float16, 64), x, None, x, cutlass.Float32(0), stream)
assert again(1, 2) is None and again.export_to_c("nowhere") is None and again.ir_module is None
class Packed:
    pass
def helper(weight):
    cute.compile(Scale(cutlass.Float16, 64), x, weight, x, cutlass.Float32(0), stream, options="--enable-tvm-ffi")
helper(Packed())
"""


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Declared]:
    """What a worker captures, of a library that lies in a folder of its own."""

    def run(arch: str, seed: str) -> Declared:
        folder = tmp_path_factory.mktemp("exercise")
        shutil.copytree(FOREIGN / "rowlib", folder / "rowlib", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "script.py").write_text(SCRIPT)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONHASHSEED", seed)
            script, options = str(folder / "script.py"), Options(source=EXERCISE)
            worker = Worker(script, Arch.parse(arch), options, folder / "log", module="aot.capture.worker")
            worker.close()
        return worker.declared

    return run


@pytest.fixture(scope="module")
def declared(capture: Callable[..., Declared]) -> Declared:
    return capture("sm_90a", "1")


def by_line(declared: Declared) -> dict[int, KernelInfo]:
    return {int(kernel.origin.rpartition(":")[2]): kernel for kernel in declared.kernels}


def test_the_same_call_from_two_places_is_one_kernel_named_after_its_class(declared: Declared) -> None:
    assert sorted(by_line(declared)) == [5, 7, 12, 19]
    assert [kernel.name.rpartition("_")[0] for kernel in declared.kernels] == ["add", "scale", "scale", "scale"]


def test_parameters_have_the_names_of_the_callable_and_symbols_stay_symbols(declared: Declared) -> None:
    plain, weighted, added, _ = (kernel.parameters for _, kernel in sorted(by_line(declared).items()))
    row = "tensor Float16 (?0, 64) strides (64, 1) gmem align 2"
    assert plain == (
        Parameter("x", row), Parameter("weight", "None"), Parameter("out", row), Parameter("alpha", "scalar Float32"),
    )  # fmt: skip
    assert weighted[1].doc == "tensor Float16 (64) strides (1) gmem align 2"
    assert [parameter.name for parameter in added] == ["x", "y", "out", "extra"]


def test_a_record_holds_the_call_and_who_compiled_it(declared: Declared) -> None:
    captured = by_line(declared)[5].captured or {}
    assert captured["called_from"] == "rowlib.scaling:50, script.py:5"
    assert captured["call"]["attributes"] == {
        "dtype": ["class", "cutlass.base_dsl.typing.Float16"], "n": 64, "threads": 64,
    }  # fmt: skip
    assert (by_line(declared)[12].captured or {})["call"]["options"] == {"opt-level": "2"}


def test_what_cannot_be_captured_is_named_with_the_reason(declared: Declared) -> None:
    lambdas, packed = (failure.message for failure in declared.failures)
    assert "Add, compiled by rowlib.adding:" in lambdas and "lambdas on one line" in lambdas
    assert "by script.py:24, script.py:25 for" in packed and "cannot pass its arguments through TVM-FFI" in packed


def test_an_operator_whose_body_raises_is_named_with_the_reason_once() -> None:
    recorder = Recorder(Arch.parse("sm_90a"), __file__, Notes(__file__))
    for _ in range(2):
        recorder.refuse_operator("lib::reads", ValueError("no memory"))
    (refused,) = recorder.refused.values()
    assert refused.what == "the operator lib::reads, called"
    assert refused.reason == "its body raises ValueError on tensors without memory: no memory"


def test_keys_do_not_depend_on_the_process_its_hash_seed_or_where_a_library_lies(
    declared: Declared, capture: Callable[..., Declared]
) -> None:
    again = capture("sm_100f", "2")
    one, other = ({line: kernel.captured for line, kernel in by_line(item).items()} for item in (declared, again))
    assert {line: one[line] for line in (5, 7)} == {line: other[line] for line in (5, 7)}
    assert (other[12] or {})["call"]["attributes"]["blocks"] == 148, "asked of the device, and so part of the key"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for a script that runs in this process."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "script.py"


def test_a_script_that_fails_is_blamed_with_its_own_line_and_the_one_that_raised(script: Path) -> None:
    (script.parent / "failing_library.py").write_text("def run():\n    raise ValueError('no GPU')\n")
    script.write_text("import failing_library\n\nfailing_library.run()\n")
    with pytest.raises(DeclarationError, match=r"script.py:3: .*failing_library.py:2: ValueError: no GPU"):
        execute(script)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "x = 1\n1 / 0\n",
            ":2: the exercise raises: ZeroDivisionError: division by zero",
            "nothing that it compiles is launched",
        ),
        (
            "def get_inputs():\n    return 1\nkernel_fn = print\n",
            ": the exercise raises: TypeError: ",
            "nothing that it compiles",
        ),
        (
            "raise RuntimeError('not compiled with CUDA')\n",
            ":1: the exercise raises: RuntimeError",
            "does not answer this",
        ),
        (
            "raise RuntimeError('element 0 of tensors does not require grad and does not have a grad_fn')\n",
            ":1: the exercise raises: RuntimeError",
            "call what the backward pass calls",
        ),
        ("class DataDependentError(Exception): ...\nraise DataDependentError\n", ":2: the", "look at their contents"),
        ("import no_such_library\n", ":1: the exercise raises: ModuleNotFoundError: No module", sys.executable),
        ("x = 1\ndef f(:\n", ":2: the exercise raises: SyntaxError: invalid syntax", "has version"),
        ("import sys\nsys.exit(3)\n", ":2: the exercise ends the process: exit code 3", "after `--`"),
        ("import sys\nsys.exit('usage')\n", ":2: the exercise ends the process: usage", "after `--`"),
    ],
)
def test_the_message_names_a_line_once_and_the_hint_fits_what_was_raised(
    script: Path, text: str, message: str, hint: str
) -> None:
    script.write_text(text)
    with pytest.raises(DeclarationError) as caught:
        execute(script)
    assert caught.value.message.startswith(f"{script}{message}") and hint in str(caught.value.hint)


def test_a_script_may_end_itself_and_a_file_that_only_defines_a_kernel_is_called(script: Path) -> None:
    script.write_text("import sys\nsys.exit()\n")
    execute(script)
    script.write_text("seen = []\ndef get_inputs():\n    return 1, 2\ndef kernel_fn(a, b):\n    seen.append(a + b)\n")
    execute(script)
    assert vars(sys.modules["__main__"])["seen"] == [3]


def test_a_script_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        run_exercise(str(tmp_path / "nothing.py"), Arch.parse("sm_90a"))
    with pytest.raises(UsageError, match="is not a file"):
        run_exercise(str(tmp_path), Arch.parse("sm_90a"))


CHILD = """
import multiprocessing
import cutlass, cutlass.cute as cute

@cute.kernel
def fill(x: cute.Tensor):
    x[0] = 1.0

@cute.jit
def run(x: cute.Tensor):
    fill(x).launch(grid=[1, 1, 1], block=[1, 1, 1])

def job(n):
    x = cute.runtime.make_fake_compact_tensor(cutlass.Float32, (n,))
    cute.compile(run, x, options="--enable-tvm-ffi")

job(8)
child = multiprocessing.get_context("fork").Process(target=job, args=(16,))
child.start()
child.join()
"""


def test_a_script_that_starts_a_process_is_told_that_the_process_is_not_seen(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CHILD)
    script, options = str(tmp_path / "script.py"), Options(source=EXERCISE)
    worker = Worker(script, Arch.parse("sm_90a"), options, tmp_path / "log", module="aot.capture.worker")
    worker.close()
    assert len(worker.declared.kernels) == 1
    assert [note for note in worker.declared.notes if f"{script}:19: what the process compiles" in note]


def test_a_library_in_an_exercise_finds_no_architecture_in_the_environment(tmp_path: Path) -> None:
    """A program that is served has no such variable: what a library keeps of it would differ, as in attn-gym."""
    script = tmp_path / "exercise.py"
    script.write_text("import os\nraise SystemExit(f'found {os.environ.get(\"CUTE_DSL_ARCH\")}')\n")
    with pytest.raises(DeclarationError, match="found None"):
        Worker(
            str(script), Arch.parse("sm_90a"), Options(source=EXERCISE), tmp_path / "log", module="aot.capture.worker"
        )


def test_a_script_that_compiles_nothing_is_shown_with_what_it_wrote_last(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nprint('no GPU, so ', file=sys.stderr)\nprint('slow path')\n")
    options = Options(source=EXERCISE)
    with pytest.raises(UsageError) as caught:
        Worker(
            str(tmp_path / "script.py"), Arch.parse("sm_90a"), options, tmp_path / "log", module="aot.capture.worker"
        )
    message = caught.value.message
    assert (
        "compiled nothing for sm_90a; it wrote:" in message and "\n  no GPU, so" in message and "slow path" in message
    )


RAISES_LATER = """
import cutlass, cutlass.cute as cute
from cuda.bindings.driver import CUstream

@cute.struct
class Storage:  # its annotations must not be texts
    values: cute.struct.MemRange[cutlass.Float32, 4]

@cute.kernel
def fill(x: cute.Tensor):
    x[cute.arch.thread_idx()[0]] = 1.0

@cute.jit
def run(x: cute.Tensor, stream: CUstream):
    fill(x).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream, min_blocks_per_mp=2)

run.__module__ = None  # as of functions that code has made
x = cute.runtime.make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),))
stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
cute.compile(run, x, stream, options="--enable-tvm-ffi")
raise ValueError("the results differ")
"""


AS_IT_IS = """
import sys
import cutlass, cutlass.cute as cute, numpy, numpy.testing
from cuda.bindings import driver, runtime
from cutlass.cute.runtime import from_dlpack, make_ptr
from cutlass.cute.testing import JitArguments, benchmark

@cute.kernel
def fill(out: cute.Pointer, n: cutlass.Constexpr[int]):
    cute.make_tensor(out, cute.make_layout(n))[cute.arch.thread_idx()[0]] = 1.0

@cute.jit
def run(out: cute.Pointer, n: cutlass.Constexpr[int], stream: driver.CUstream):
    fill(out, n).launch(grid=[1, 1, 1], block=[n, 1, 1], stream=stream)

@cute.jit
def of_the_host(x: cute.Tensor):
    cute.print_tensor(x)

assert driver.cuInit(0)[0] == driver.CUresult.CUDA_SUCCESS
error, stream = driver.cuStreamCreate(0)
error, address = driver.cuMemAlloc(4096)
out = make_ptr(cutlass.Float32, int(address), cute.AddressSpace.gmem, assumed_align=16)
run(out, 32, stream)
of_the_host(from_dlpack(numpy.zeros((4, 4), dtype=numpy.float32)))
compiled = cute.compile(run, out, 64, stream)
assert benchmark(compiled, kernel_arguments=JitArguments(out, stream), stream=stream) > 0
driver.cuStreamSynchronize(stream)
len(compiled.artifacts.PTX), compiled.function_name

@cute.jit
def of_pointers(x: cute.Pointer):
    cute.make_tensor(x, cute.make_layout(1))[0] = 1.0

of_pointers(out)
"""


def test_a_script_that_launches_synchronizes_and_measures_is_an_exercise_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(AS_IT_IS)
    script, options = str(tmp_path / "script.py"), Options(source=EXERCISE)
    worker = Worker(script, Arch.parse("sm_90a"), options, tmp_path / "log", module="aot.capture.worker")
    worker.close()
    assert not worker.declared.failures
    assert sorted(by_line(worker.declared)) == [24, 26]
    of_the_host, timer, of_pointers = worker.declared.notes
    assert of_the_host.startswith(f"{script}:25: of_the_host") and timer.startswith(f"{script}:27: ")
    assert of_pointers.startswith(f"{script}:35: of_pointers")


CELLS = (
    "%pip install rowlib\nfrom rowlib.scaling import scale\ndisplay(1)",
    "%%bash\nls $HOME",
    "%%time\nfor n in (32, 64):\n    !echo $n\n    scale(None, None, None, dtype='f16', n=n)\n",
    "from __future__ import annotations\ndef double(value):\n    return value * 2.0",
    "from rowlib.adding import add\nadd(None, None, None, bias=0, modify=double)",
)


def test_the_cells_of_a_notebook_are_an_exercise(tmp_path: Path) -> None:
    shutil.copytree(FOREIGN / "rowlib", tmp_path / "rowlib", ignore=shutil.ignore_patterns("__pycache__"))
    script = tmp_path / "rows.ipynb"
    cells = [{"cell_type": "code", "source": text.splitlines(keepends=True)} for text in CELLS]
    script.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["# %%bash"]}, *cells], "nbformat": 4}))
    worker = Worker(
        str(script), Arch.parse("sm_90a"), Options(source=EXERCISE), tmp_path / "log", module="aot.capture.worker"
    )
    worker.close()
    assert not worker.declared.failures
    assert [kernel.name.rpartition("_")[0] for kernel in worker.declared.kernels] == ["add", "scale", "scale"]
    assert sorted(by_line(worker.declared)) == [11, 19]  # lines count through the cells of code, with one between


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"cells": [{"cell_type": "code"}]}'])
def test_a_file_that_is_no_notebook_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.ipynb").write_text(text)
    with pytest.raises(UsageError, match="is no notebook"):
        execute(tmp_path / "rows.ipynb")


TESTS_OF_A_LIBRARY = """
import pytest
from rowlib.scaling import scale

@pytest.mark.parametrize("n", [32, 64, 128])
def test_scale(n):
    scale(None, None, None, dtype="f16", n=n)
    assert n != 64, "as on no GPU"
"""


def test_tests_of_a_library_are_an_exercise_and_those_that_fail_count_for_what_they_compiled(tmp_path: Path) -> None:
    shutil.copytree(FOREIGN / "rowlib", tmp_path / "rowlib", ignore=shutil.ignore_patterns("__pycache__"))
    script = tmp_path / "test_rows.py"
    script.write_text(TESTS_OF_A_LIBRARY)
    options = Options(source=EXERCISE, arguments=("-k", "not 128"), pytest=True)
    worker = Worker(str(script), Arch.parse("sm_90a"), options, tmp_path / "log", module="aot.capture.worker")
    worker.close()
    assert [kernel.name.rpartition("_")[0] for kernel in worker.declared.kernels] == ["scale", "scale"]
    assert not worker.declared.failures
    (note,) = worker.declared.notes
    assert note.startswith(f"{script}: 1 of 2 tests ")


def test_a_script_finds_the_arguments_that_follow_the_dashes(script: Path) -> None:
    script.write_text("import sys\nassert sys.argv[1:] == ['--size', '8']\n")
    execute(script, ("--size", "8"))


def test_tests_that_pytest_does_not_find_are_reported(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("x = 1\n")
    options = Options(source=EXERCISE, pytest=True)
    script = str(tmp_path / "test_nothing.py")
    with pytest.raises(DeclarationError, match="pytest ran no test: no tests collected"):
        Worker(script, Arch.parse("sm_90a"), options, tmp_path / "log", module="aot.capture.worker")


def test_tests_that_cannot_be_imported_are_reported_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "test_missing.py").write_text("import library_that_is_not_there\n")
    options = Options(source=EXERCISE, pytest=True)
    script = str(tmp_path / "test_missing.py")
    with pytest.raises(DeclarationError, match="No module named 'library_that_is_not_there'"):
        Worker(script, Arch.parse("sm_90a"), options, tmp_path / "log", module="aot.capture.worker")


def test_what_was_captured_before_an_exercise_raises_is_kept_and_compiles_without_a_driver(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(RAISES_LATER)
    options = Options(source=EXERCISE)
    script = str(tmp_path / "script.py")
    worker = Worker(script, Arch.parse("sm_90a"), options, tmp_path / "log", module="aot.capture.worker")
    try:
        (kernel,), (failure,) = worker.declared.kernels, worker.declared.failures
        assert "the results differ" in failure.message and "script.py:21" in failure.message
        (variant,) = worker.expand(kernel.name)
        compiled = worker.compile(kernel.name, variant.table.name, tmp_path / "x.ll", tmp_path / "log")
        assert isinstance(compiled, Compiled), compiled
        with pytest.raises(DeclarationError, match="is not there when the source is read again"):
            worker.expand("another")
    finally:
        worker.close()
