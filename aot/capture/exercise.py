"""Running the author's script under a device that only answers, and collecting what it compiles."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from aot_runtime.arch import Arch

from ..compile import dsl
from ..compile.devices import Device
from ..declare.discover import Family, Found, place
from ..errors import DeclarationError, UsageError
from .recorder import Recorder, Refused
from .standin import Notes, standin_device

__all__ = ["run_exercise"]


def run_exercise(path: str, arch: Arch) -> Found:
    """The kernels that a script compiles for an architecture; what could not be captured are failures."""
    if not Path(path).is_file():
        wrong = "is not a file" if Path(path).exists() else "does not exist"
        raise UsageError(f"`{path}` {wrong}", hint="pass a Python file that calls what is to be captured")
    notes = Notes(str(Path(path).resolve()))
    recorder = Recorder(arch, str(Path(path).resolve()), notes)
    ended: tuple[DeclarationError, ...] = ()
    with standin_device(Device.of(arch), recorder.refuse_operator, notes), dsl.installed().intercept(recorder.answer):
        try:
            _execute(Path(path).resolve())
        except DeclarationError as error:
            if not recorder.kernels:
                raise
            ended = (error,)  # what was captured before stays
    if not recorder.kernels and not recorder.refused:
        raise UsageError(
            f"`{path}` compiled nothing for {arch}",
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


def _execute(path: Path) -> None:
    """Run a script as the program that it is: its functions and classes belong to ``__main__``, as in production."""
    module = ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module  # it stays: kernels that the script defines are compiled later
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    try:
        # Without this module's own `from __future__`: `@cute.struct` reads annotations that are no texts.
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
        _call_entry(vars(module))
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code in (0, None):
            return
        raise DeclarationError(_described(error, path), hint=_hint(error)) from error


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
        return "an exercise runs without arguments, and has to go through to its end"
    if isinstance(error, SyntaxError):
        return f"the Python that captures has version {sys.version_info.major}.{sys.version_info.minor}"
    if any(word in f"{type(error).__name__}: {error}" for word in _CONTENTS):
        return "an exercise runs on tensors without memory: it may not look at their contents, compare or print them"
    if any(word in f"{type(error).__name__}: {error}".lower() for word in _DEVICE):
        return (
            "an exercise runs without a GPU, and the device that stands in for one does not answer this; call the library's "
            "function below that line, or record the program on a GPU: `python -m aot capture --record DIR -- PROGRAM`"
        )
    return "an exercise runs without a GPU, and nothing that it compiles is launched: results cannot be used"


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
