"""Seeing the calls of ``cute.compile`` that an exercise leads to, and making a kernel of each."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.serving.calls import describe, jit_function, with_tensors_of_cute_dsl
from aot_runtime.serving.server import is_own
from aot_runtime.serving.values.digests import UnstableError
from aot_runtime.serving.values.libraries import is_of_cute_dsl, uses_cute_dsl

from ..compile.device.anything import Anything
from ..declare.kernel import Kernel
from ..errors import DeclarationError
from .kernels import CapturedCall, captured_kernel, launches_kernels, name_of, note_values
from .standin import Notes
from .stored import Stored
from .translate import HostCodeError

__all__ = ["Recorder", "Refused"]

_NO_CALLERS = ("aot.", "aot_runtime.", "functools.")


@dataclass(frozen=True)
class Refused:
    """A call that could not be captured."""

    what: str  # and what was done with it
    called_from: str
    reason: str


class Recorder:
    """Answers compiles with functions that do nothing, and keeps a kernel of each call that it can capture."""

    def __init__(self, arch: Arch, exercise: str, notes: Notes) -> None:
        self.kernels: dict[str, Kernel] = {}  # by key: the same call from two places is one kernel
        self.refused: dict[tuple[str, str], Refused] = {}
        self.stored = Stored(notes)
        self._arch, self._exercise, self._notes = arch, exercise, notes

    def answer(self, compiler: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What takes the place of a compile; of the call of a ``@cute.jit`` function if there is no compiler."""
        if is_own(function):
            return _Nothing() if compiler is not None else None
        called_from, line = _caller(self._exercise)
        try:
            args, kwargs = with_tensors_of_cute_dsl(args, kwargs)
            call = describe(compiler, function, args, kwargs)
            caught = CapturedCall(call.key, call.data, call.options.text(), function, args, kwargs, called_from)
            if call.key not in self.kernels:
                if not launches_kernels(caught):
                    raise HostCodeError("it launches no kernel")
                self.kernels[call.key] = captured_kernel(caught, (self._arch,), f"{self._exercise}:{line}")
            else:
                note_values(self.kernels[call.key].make(None).seen, caught)
            self.stored.add(*jit_function(function))
        except HostCodeError as error:
            self._notes.add(f"{name_of(function)} was not run: {error.message}")
        except (UnstableError, DeclarationError) as error:
            message = error.message if isinstance(error, DeclarationError) else str(error)
            self._refuse(Refused(f"{name_of(function)}, compiled", called_from, message))
        return _Nothing() if compiler is not None else None

    def refuse_operator(self, name: str, error: Exception) -> None:
        """Say of an operator of torch that what its body compiles was not seen."""
        reason = f"its body raises {type(error).__name__} on tensors without memory: {error}"
        self._refuse(Refused(f"the operator {name}, called", _caller(self._exercise)[0], reason))

    def _refuse(self, refused: Refused) -> None:
        self.refused.setdefault((refused.what, refused.reason), refused)


class _Nothing:
    """Takes the place of a compiled function: may be called and exported, and does neither."""

    ir_module = None  # libraries write it into caches of their own, which would answer later processes with nothing

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch nothing."""

    def export_to_c(self, *args: Any, **kwargs: Any) -> None:
        """Write nothing."""

    # The same in the convention without TVM-FFI.

    def to(self, device: Any = None) -> _Nothing:
        return self

    def generate_execution_args(self, *args: Any, **kwargs: Any) -> tuple[list[Any], list[Any]]:
        return [], []

    def run_compiled_program(self, exe_args: list[Any]) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        """Whatever else a caller asks of a compiled function: its artifacts, its text, the arguments that it takes."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


def _may_compile(module: str) -> bool:
    """Torch leads to others' compiles, and compiles in modules of its own that use CuTe DSL."""
    if is_of_cute_dsl(module):
        return False
    return not f"{module}.".startswith("torch.") or uses_cute_dsl(module)


def _caller(exercise: str) -> tuple[str, int]:
    """Who compiles, as ``module:line``, with the lines of the exercise that led there; and the innermost of these.

    An exercise may compile in a function of its own, whose line alone would not tell its calls apart.
    """
    place, lines = "", list[int]()
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not place and not f"{module}.".startswith(_NO_CALLERS) and _may_compile(module):
            place = f"{module}:{frame.f_lineno}"
        if frame.f_code.co_filename == exercise:
            lines.append(frame.f_lineno)
        frame = frame.f_back
    script = [f"{os.path.basename(exercise)}:{line}" for line in lines or [0]]
    return ", ".join(script if place.startswith("__main__:") else [place, *script]), lines[0] if lines else 0
