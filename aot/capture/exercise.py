"""Running the author's script under a device that only answers, and collecting what it compiles."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from aot_runtime.arch import Arch

from ..compile import dsl
from ..compile.device.devices import Device
from ..compile.messages import Options
from ..compile.reading.watching import environment_seen
from ..declare.discover import Family, Found, place
from ..errors import DeclarationError, UsageError
from .notebook import NOTEBOOK, read_cells
from .recorder import Recorder, Refused
from .standin import Notes, standin_device

__all__ = ["Counts", "execute", "run_exercise", "run_tests"]

_AS_IT_IS = Options()
# A worker has this, and a program has not. Libraries ask for the device then, and keep what they were told.
_ARCH = frozenset({"CUTE_DSL_ARCH"})


def run_exercise(path: str, arch: Arch, options: Options = _AS_IT_IS, log: Path | None = None) -> Found:
    """The kernels that a script compiles for an architecture; what could not be captured are failures.

    ``log`` is the file that standard output and error go to.
    """
    if not Path(path).is_file():
        wrong = "is not a file" if Path(path).exists() else "does not exist"
        raise UsageError(f"`{path}` {wrong}", hint="pass a Python file that calls what is to be captured")
    notes = Notes(str(Path(path).resolve()))
    recorder = Recorder(arch, str(Path(path).resolve()), notes)
    ended: tuple[DeclarationError, ...] = ()
    device = standin_device(Device.of(arch), recorder.refuse_operator, notes)
    without_arch = environment_seen(lambda *asked: None, _ARCH)
    with (
        device,
        _children_noted(notes),
        without_arch,
        dsl.installed().intercept(recorder.answer),
        recorder.stored.answered(),
    ):
        try:
            if options.pytest:
                run_tests(Path(path).resolve(), options.arguments, notes)
            else:
                execute(Path(path).resolve(), options.arguments)
        except DeclarationError as error:
            if not recorder.kernels:
                raise
            ended = (error,)  # what was captured before stays
    if not recorder.kernels and not recorder.refused:
        raise UsageError(
            f"`{path}` compiled nothing for {arch}{_last_words(log)}",
            hint="call the library's functions in it; what a disk cache answers, or an operator of C++ hides, is not seen",
        )
    kernels = sorted(recorder.kernels.values(), key=lambda kernel: kernel.name)
    return Found(
        tuple(kernels),
        (*(_failure(refused, arch) for refused in recorder.refused.values()), *ended),
        dict.fromkeys((kernel.name for kernel in kernels), Family()),
        notes.lines,
    )


def _failure(refused: Refused, arch: Arch) -> DeclarationError:
    return DeclarationError(f"{refused.what} by {refused.called_from} for {arch}, is not captured: {refused.reason}")


@contextmanager
def _children_noted(notes: Notes) -> Iterator[None]:
    """Within the context, each start of a process is noted: the recorder does not see what a child compiles."""
    start = BaseProcess.start

    def noted(process: BaseProcess) -> None:
        notes.add(_CHILD)
        start(process)

    with mock.patch.object(BaseProcess, "start", noted):
        yield


_CHILD = (
    "what the process compiles that is started here is not captured: compile it in the exercise itself, or record the "
    "program on a GPU: `python -m aot capture --record DIR -- PROGRAM`"
)


def _last_words(log: Path | None) -> str:
    """What a script wrote last: many libraries catch what goes wrong, log it, and go on without CuTe DSL."""
    if log is None:
        return ""
    sys.stdout.flush()
    sys.stderr.flush()
    lines = [line[:_LONGEST] for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "; it wrote:" + "".join(f"\n  {line}" for line in lines[-_WORDS:]) if lines else ""


_WORDS, _LONGEST = 8, 300  # lines that are shown, and characters of each


def execute(path: Path, arguments: Sequence[str] = ()) -> None:
    """Run a script as the program that it is: its functions and classes belong to ``__main__``, as in production."""
    module = ModuleType("__main__")
    module.__file__ = str(path)
    sources = _sources(path, vars(module))
    sys.modules["__main__"] = module  # it stays: kernels that the script defines are compiled later
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path), *arguments]
    try:
        for source in sources:
            # Without this module's own `from __future__`: `@cute.struct` reads annotations that are no texts.
            exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
        _call_entry(vars(module))
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code in (0, None):
            return
        raise DeclarationError(_described(error, path), hint=_hint(error)) from error


def _sources(path: Path, names: dict[str, Any]) -> Sequence[str | bytes]:
    """A script, or the cells of a notebook, which may show values by a function that notebooks have."""
    if path.suffix != NOTEBOOK:
        return [path.read_bytes()]
    names["display"] = print
    return read_cells(path)


class Counts:
    """Counts the tests that ran, those that skipped themselves, and those that failed by their reasons."""

    def __init__(self) -> None:
        self.ran = 0
        self.skipped = 0
        self.failed: dict[str, int] = {}
        self.not_collected: list[str] = []  # why files of tests could not be imported

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.not_collected.append(_reason(report))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.ran += report.when == "call" and not report.skipped
        self.skipped += report.skipped
        if report.failed:
            reason = _reason(report)
            self.failed[reason] = self.failed.get(reason, 0) + 1


def _reason(report: Any) -> str:
    """The last line of what a test, or the import of its file, ended with."""
    return str(getattr(report.longrepr, "reprcrash", None) or report.longrepr).strip().splitlines()[-1]


def run_tests(path: Path, arguments: Sequence[str], notes: Notes) -> Counts:
    """Run tests for what they compile: those that fail without a GPU are counted, and what they compiled first stays."""
    import pytest

    counts = Counts()
    # Assertions stay as they are: rewritten ones print what a tensor without memory holds.
    command = [str(path), "-q", "--assert=plain", "--tb=line", "-p", "no:cacheprovider", "-W", "ignore", *arguments]
    code = pytest.main(command, plugins=[counts])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        ended = counts.not_collected or [pytest.ExitCode(code).name.lower().replace("_", " ")]
        raise DeclarationError(
            f"{path}: pytest ran no test: {ended[0]}",
            hint="pass what pytest takes after `--`: `python -m aot capture --pytest tests/test_x.py --arch sm90 -- -k norm`",
        )
    for reason, count in sorted(counts.failed.items()):
        notes.add(f"{count} of {counts.ran} tests did not go through: {reason}")
    return counts


def _described(error: BaseException, path: Path) -> str:
    """What a script raised, with the author's own line and, if it is another one, the line that raised."""
    if isinstance(error, SystemExit):
        ended = f"exit code {error.code}" if isinstance(error.code, int) else error.code
        return f"{_line(error, path)}: the exercise ends the process: {ended}"
    raised_at = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else place(error)
    own = raised_at if raised_at.startswith(f"{path}:") else _line(error, path)
    inner = f"{raised_at}: " if raised_at not in (own, "?") else ""
    text = error.msg if isinstance(error, SyntaxError) else error
    return f"{own}: the exercise raises: {inner}{type(error).__name__}: {text}"


def _hint(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return f"install what the exercise imports for the Python that captures, `{sys.executable}`"
    if isinstance(error, SystemExit):
        return "pass what the script takes after `--`: `python -m aot capture script.py --arch sm90 -- --size 8`"
    if isinstance(error, SyntaxError):
        return f"the Python that captures has version {sys.version_info.major}.{sys.version_info.minor}"
    if _NO_GRADIENT in str(error):
        return (
            "gradients are not computed on tensors without memory: call what the backward pass calls, or record the program "
            "on a GPU: `python -m aot capture --record DIR -- PROGRAM`"
        )
    if any(word in f"{type(error).__name__}: {error}" for word in _CONTENTS):
        return "an exercise runs on tensors without memory: it may not look at their contents, compare or print them"
    if any(word in f"{type(error).__name__}: {error}".lower() for word in _DEVICE):
        return (
            "an exercise runs without a GPU, and the device that stands in for one does not answer this; call the library's "
            "function below that line, or record the program on a GPU: `python -m aot capture --record DIR -- PROGRAM`"
        )
    return "an exercise runs without a GPU, and nothing that it compiles is launched: results cannot be used"


_NO_GRADIENT = "does not require grad and does not have a grad_fn"
_CONTENTS = ("DataDependent", "DynamicOutputShape", "GuardOnDataDependent", "FakeTensor", ".item()")
_DEVICE = ("cuda", "nvml", "nvtx", "driver", "gpu")


def _line(error: BaseException, path: Path) -> str:
    """The author's own line that an error came through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _call_entry(names: Mapping[str, Any]) -> None:
    """Call the kernel of a file that only defines one: ``kernel_fn`` with what ``get_inputs`` gives."""
    kernel, inputs = names.get("kernel_fn"), names.get("get_inputs")
    if callable(kernel) and callable(inputs):
        given = inputs()
        kernel(**given) if isinstance(given, Mapping) else kernel(*given)
