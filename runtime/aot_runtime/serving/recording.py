"""Recording what a real program compiles, so that it can be built elsewhere: one file per call of ``cute.compile``.

The program compiles and runs as ever. A file holds the description of a call, its callable and constants by name or as
data (a pickle only if there is no other way, and then the record says so), and its arguments as far as the compiler is told
of them. Nothing of the values in tensors is written.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import sys
import threading
from contextlib import suppress
from typing import Any

from .calls import bind, describe, is_constexpr, jit_function, with_tensors_of_cute_dsl
from .hook import Hook
from .objects import Objects, name_of
from .server import is_own
from .values.digests import UnstableError, digest
from .values.held import attributes_of
from .values.libraries import MAIN, is_of_cute_dsl
from .values.named import qualified

__all__ = ["Recording"]

_PACKAGE = '''"""Calls of cute.compile that were recorded: build them with `python -m aot build --source` and this folder."""

from aot.capture.replay import recorded_kernels

globals().update(recorded_kernels(__file__))
'''
_NUMBERS = frozenset({bool, int, float, type(None)})
_MODE = re.compile(r"\?(?:\{([^}]*)\})?|(-?\d+)")


class Recording:
    """Writes every compile of this process into a folder, until it is closed. Processes may share the folder.

    The program goes on if a file cannot be written, as on a full disk. Then ``losses``, a named pipe, gets a line.
    """

    def __init__(self, folder: str, losses: str = "") -> None:
        self.folder, self.losses = os.path.abspath(folder), losses
        self._write("__init__.py", _PACKAGE)
        self._hook = Hook(self._answer)
        self._hook.install()

    def close(self) -> None:
        self._hook.remove()

    def _answer(
        self, original: Any, compiler: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not is_own(function) and "compile_to_precompiled_mlir" not in kwargs:
            self._record(compiler, function, args, kwargs)
        return original(compiler, function, *args, **kwargs)

    def _record(self, compiler: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        called_from = _caller()
        try:
            args, kwargs = with_tensors_of_cute_dsl(args, kwargs)
            call = describe(compiler, function, args, kwargs)
            owner, jit = jit_function(function)
            if MAIN in (jit.__module__, type(owner).__module__):
                raise UnstableError(
                    "it is defined in the program itself, which a build cannot import: move it into a module, or pass "
                    "the program to `python -m aot capture`"
                )
            encoder = _Encoder()
            arguments = {
                name: {"default": name} if _is_default(jit, name, value) else encoder.of(value, name, hint)
                for name, value, hint in bind(jit, owner, args, kwargs)
            }
            name, record = call.key, {
                "key": call.key, "call": call.data, "called_from": called_from, "options": call.options.text(),
                "callable": encoder.objects.of(function, "the callable"), "arguments": arguments,
            }  # fmt: skip
            if encoder.objects.pickled:
                record["pickled"] = encoder.objects.pickled
        except Exception as error:  # objects of other libraries are looked at, and these may raise anything
            reason = str(error) if isinstance(error, UnstableError) else f"{type(error).__name__}: {error}"
            record = {"refused": reason, "callable": _name(function), "called_from": called_from}
            name = f"refused-{digest(record)[:16]}"
        self._write(f"{name}.json", json.dumps(record, indent=1, sort_keys=True) + "\n")

    def _write(self, name: str, text: str) -> None:
        try:
            os.makedirs(self.folder, exist_ok=True)
            _write(os.path.join(self.folder, name), text)
        except OSError as error:
            _tell(self.losses, f"`{os.path.join(self.folder, name)}`: {error.strerror}")


class _Encoder:
    """Arguments as JSON's types, in enough detail to make fakes of them."""

    def __init__(self) -> None:
        self.objects = Objects()
        self.symbols: dict[int, dict[str, int]] = {}
        self.kept: list[Any] = []

    def of(self, value: Any, where: str, hint: Any = None) -> dict[str, Any]:
        names = {base.__name__ for base in type(value).__mro__}
        if is_constexpr(hint):
            return {"constant": self.objects.of(value, where)}
        if type(value) in _NUMBERS:
            return {"number": value}
        if hasattr(value, "dynamic_shapes_mask"):
            return self._tensor(value)
        if "SymInt" in names:
            return {"integer": self._symbol(value)}
        if "Pointer" in names:
            return {"pointer": value.dtype.__name__, "space": value.memspace.name, "align": value._assumed_align}
        if "Numeric" in names:
            return {"scalar": type(value).__name__}
        if names & {"_FakeStream", "CUstream"}:
            return {"stream": bool(getattr(value, "use_tvm_ffi_env_stream", False))}
        if isinstance(value, (tuple, list)) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            return self._several(value, where)
        return {"constant": self.objects.of(value, where)}

    def _several(self, value: Any, where: str) -> dict[str, Any]:
        kind: Any = type(value)
        if kind in (tuple, list):
            return {kind.__name__: [self.of(item, f"{where}[{number}]") for number, item in enumerate(value)]}
        if not hasattr(kind, "_fields") and not dataclasses.is_dataclass(kind):
            raise UnstableError(
                f"{where} is a {qualified(kind)}: a recording holds tuples and lists of Python's own classes"
            )
        names = kind._fields if hasattr(kind, "_fields") else [field.name for field in dataclasses.fields(value)]
        if others := sorted(attributes_of(value).keys() - names):
            raise UnstableError(f"{where}.{others[0]} is no field of {qualified(kind)}")
        hints = {name: getattr(kind, "__annotations__", {}).get(name) for name in names}
        fields = {name: self.of(getattr(value, name), f"{where}.{name}", hints[name]) for name in names}
        return {"fields": fields, "class": self.objects.of(kind, f"the class of {where}")}

    def _tensor(self, value: Any) -> dict[str, Any]:
        key = value.__cache_key__
        align = getattr(value, "_assumed_align", None) or value.element_type.width // 8
        found = {"tensor": value.element_type.__name__, "space": value.memspace.name, "align": align}
        if not isinstance(key[-1], str):
            return {**found, "shape": self._modes(value.shape), "strides": self._modes(value.stride)}
        shape, strides = (_parsed(part) for part in key[-1].partition(" o ")[2].split(":"))
        return {**found, "shape": shape, "strides": strides}

    def _modes(self, modes: Any) -> list[Any]:
        return [mode if isinstance(mode, int) else self._symbol(mode) for mode in modes]

    def _symbol(self, symbol: Any) -> dict[str, int]:
        self.kept.append(symbol)
        facts = {"symbol": len(self.symbols), "divisibility": symbol.divisibility, "width": symbol.width}
        return self.symbols.setdefault(id(symbol), facts)


def _parsed(text: str) -> list[Any]:
    """``(?{i64 div=16},1)`` -> the modes of a layout; those that are dynamic have no names."""
    modes: list[Any] = []
    for match in _MODE.finditer(text):
        words = (match[1] or "").split()
        divisors = [int(word.partition("=")[2]) for word in words if word.startswith("div=")]
        free = {"divisibility": divisors[0] if divisors else 1, "width": 64 if "i64" in words else 32}
        modes.append(int(match[2]) if match[2] is not None else free)
    return modes


def _is_default(jit: Any, name: str, value: Any) -> bool:
    """Whether an argument is a function that only a default leads to, as `epilogue_op=lambda x: x`."""
    declared = inspect.signature(jit).parameters.get(name)
    return declared is not None and declared.default is value and callable(value) and name_of(value) is None


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _caller() -> str:
    """Who compiles, as ``module:line``."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not f"{module}.".startswith(("aot_runtime.", "functools.")) and not is_of_cute_dsl(module):
            return f"{module}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _tell(pipe: str, loss: str) -> None:
    """Write to a named pipe what was lost; to stderr if nobody reads the pipe, since the command was ended."""
    try:
        end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(end, f"{loss}\n".encode())
        finally:
            os.close(end)
    except BlockingIOError:  # the pipe is full of losses
        pass
    except OSError:
        with suppress(OSError):  # stderr may be a file on the same full disk, and then nobody is left to tell
            print(f"aot: a call could not be recorded: {loss}", file=sys.stderr, flush=True)


def _write(path: str, text: str) -> None:
    """Write a file whole: several processes may write the same one, with the same content."""
    temporary = f"{path}.{os.getpid()}.{threading.get_ident()}.tmp"  # threads may record the same call
    try:
        with open(temporary, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
