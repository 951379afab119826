"""Seeing the calls of ``cute.compile`` that an exercise leads to, and making a kernel of each."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.kernel_records import Parameter
from aot_runtime.serving.calls import Call, bind, describe, is_constexpr, jit_function
from aot_runtime.serving.forms import UnstableError

from ..compile import dsl
from ..declare.arguments import Argument, Stream
from ..declare.kernel import CapturedSpec, In, Kernel, Spec
from ..errors import DeclarationError
from .closure import sources_of
from .translate import translate

__all__ = ["Recorder", "Refused"]

_KEY_LETTERS = 10
_OURS = ("aot.", "aot_runtime.", "cutlass.", "nvidia_cutlass_dsl.")


@dataclass(frozen=True)
class Refused:
    """A call that could not be captured."""

    callable: str
    called_from: str
    reason: str


class Recorder:
    """Answers compiles with functions that do nothing, and keeps a kernel of each call that it can capture."""

    def __init__(self, arch: Arch, exercise: str) -> None:
        self.kernels: dict[str, Kernel] = {}  # by key: the same call from two places is one kernel
        self.refused: dict[tuple[str, str], Refused] = {}
        self._arch, self._exercise = arch, exercise

    def answer(self, compiler: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What takes the place of ``CompileCallable._compile``."""
        called_from, line = _caller(self._exercise)
        try:
            call = describe(compiler, function, args, kwargs)
            if not call.options.tvm_ffi:
                raise DeclarationError("it is compiled without `--enable-tvm-ffi`, so that it is called in another way")
            if call.key not in self.kernels:
                self.kernels[call.key] = self._kernel(call, function, args, kwargs, called_from, line)
        except (UnstableError, DeclarationError) as error:
            message = error.message if isinstance(error, DeclarationError) else str(error)
            refused = Refused(_name_of(function), called_from, message)
            self.refused.setdefault((refused.callable, refused.reason), refused)
        return _Nothing()

    def _kernel(
        self, call: Call, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], called_from: str, line: int
    ) -> Kernel:
        owner, jit = jit_function(function)
        bound = bind(jit, owner, args, kwargs)
        values = {name: value for name, value, hint in bound if not is_constexpr(hint)}
        passed = {name: value for name, value in kwargs.items() if name not in ("options", "trace_finalize_hooks")}
        entry = dsl.installed().entry_parameters(jit, args if owner is None else (owner, *args), passed)
        arguments = translate(entry, values)
        sources = sources_of(call.modules)
        captured = {"key": call.key, "called_from": called_from, "call": call.data, "sources": sources}
        identity = json.dumps([call.key, sources], sort_keys=True)
        streams = any(isinstance(item, Stream) for item in arguments.values())
        spec = CapturedSpec(
            function, arguments, default_stream=not streams, args=args, kwargs=passed, identity=identity
        )
        return Kernel(
            name=f"{_identifier(_name_of(function))}_{call.key[:_KEY_LETTERS]}",
            doc=f"`{call.data['callable']}` as {called_from} compiles it.",
            parameters=tuple(_parameters(jit, arguments, call)),
            archs=(self._arch,),
            axes={},
            choices={},
            choice_defaults={},
            make=_making(spec),
            origin=f"{self._exercise}:{line}",
            options=call.options.text(),
            captured=captured,
        )


class _Nothing:
    """Takes the place of a compiled function: may be called and exported, and does neither."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch nothing."""

    def export_to_c(self, *args: Any, **kwargs: Any) -> None:
        """Write nothing."""


def _making(spec: Spec) -> Callable[..., Spec]:
    def make(target: Any) -> Spec:
        return spec

    return make


def _parameters(jit: Any, arguments: dict[str, Argument], call: Call) -> Iterator[Parameter]:
    """The callable's own parameters. A default that is a number or None stays if all that follow have one too."""
    public = [name for name, item in arguments.items() if item != Stream(explicit=False)]
    declared = inspect.signature(jit).parameters
    first = len(public)
    while first and _has_plain_default(declared[public[first - 1]]):
        first -= 1
    for number, name in enumerate(public):
        words = call.data["arguments"].get(name, "")
        doc = words if isinstance(words, str) else json.dumps(words)
        yield In(name, doc, default=declared[name].default) if number >= first else In(name, doc)


def _has_plain_default(parameter: Any) -> bool:
    return parameter.default is None or isinstance(parameter.default, (bool, int, float))


def _name_of(function: Any) -> str:
    """The class of a callable object, or the name of a function."""
    owner, jit = jit_function(function) if callable(function) else (None, function)
    return type(owner).__name__ if owner is not None else str(getattr(jit, "__name__", jit))


def _identifier(name: str) -> str:
    """``FlashAttentionForwardSm90`` -> ``flash_attention_forward_sm90``."""
    words = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])", r"\1\3_\2\4", name)
    text = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    return text if text[:1].isalpha() else f"kernel_{text}".strip("_")


def _caller(exercise: str) -> tuple[str, int]:
    """Who compiles, as ``module:line`` with the line of the exercise that led there; and that line."""
    place, line = "", 0
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not place and not f"{module}.".startswith(_OURS) and module != "functools":
            place = f"{module}:{frame.f_lineno}"
        if frame.f_code.co_filename == exercise:
            line = frame.f_lineno
            break
        frame = frame.f_back
    script = f"{os.path.basename(exercise)}:{line}"
    return (script if place.startswith("__main__:") else f"{place}, {script}"), line
