"""CUDA's libraries without a driver, for code that opens them with ``ctypes``, as packages for NVML do: one device answers.

Engines look for a GPU in this way when they are imported. As with cuda-bindings, every function succeeds. What code asks of
the device is written to where the arguments point; other functions give no more than addresses.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib
import itertools
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from .devices import Device
from .driver import ALIGNED, TOLD, Answer, Note, answers
from .nvml import TOLD_BY_NVML, nvml_answers

__all__ = ["play_c_libraries"]

_LIBRARY = re.compile(r"lib(cuda|cudart|nvidia-ml|nvrtc)(-[\da-f]+)?\.so[.\d]*")
_FUNCTION = re.compile(r"((?:cu|cuda|nvml|nvrtc)[A-Z]\w*?)(?:_v\d+|_ptsz|_ptds)*")
_FOUND = {
    "cuda": "libcuda.so.1",
    "cudart": "libcudart.so.13",
    "nvidia-ml": "libnvidia-ml.so.1",
    "nvrtc": "libnvrtc.so.13",
}
_Argument: Any = type(ctypes.byref(ctypes.c_int()))
_Pointer: Any = ctypes.POINTER(ctypes.c_int).__base__

_addresses = itertools.count(1)
_open, _get, _find = ctypes._dlopen, ctypes.CDLL.__getitem__, ctypes.util._findSoname_ldconfig  # type: ignore[attr-defined]


def play_c_libraries(device: Device, note: Note) -> None:
    """Let libraries of CUDA that ``ctypes`` opens answer for a device, for the rest of the process; nothing without cuda-bindings.

    ``note`` is told of what is asked. What opens and what finds a library stays a function of Python's own: who calls it
    while a kernel is traced is refused.
    """
    try:
        runtime = importlib.import_module("cuda.bindings.runtime")  # it knows the numbers of attributes
    except ImportError:
        return
    known = {**answers(device, runtime, note), **nvml_answers(device, note)}

    def opened(name: Any, mode: int = ctypes.DEFAULT_MODE) -> int:
        try:
            return int(_open(name, mode))  # another library may need what this one defines
        except OSError:
            if not _is_played(name):
                raise
            return int(_open(None, mode))  # the process itself: code may ask where a handle leads

    def get(library: Any, name: Any) -> Any:
        found = _FUNCTION.fullmatch(str(name)) if _is_played(library._name) else None
        if found is None:
            return _get(library, name)
        function = _Function()
        function.__name__, function.answer = str(name), _answer(found[1], known.get(found[1]), note)
        return function

    ctypes._dlopen = opened  # type: ignore[attr-defined]
    ctypes.CDLL.__getitem__ = get  # type: ignore[method-assign]
    ctypes.util._findSoname_ldconfig = lambda name: _find(name) or _FOUND.get(name)  # type: ignore[attr-defined]


def _is_played(name: Any) -> bool:
    return name is not None and _LIBRARY.fullmatch(os.path.basename(os.fsdecode(name))) is not None


class _Function(ctypes._CFuncPtr):  # type: ignore[name-defined,misc]
    """A function of a library that succeeds. It has no address."""

    _flags_ = ctypes._FUNCFLAG_CDECL  # type: ignore[attr-defined]
    _restype_ = ctypes.c_int

    def __call__(self, *args: Any) -> Any:
        kinds = itertools.chain(self.argtypes or (), itertools.repeat(None))
        told = [(argument, _target(argument, kind)) for argument, kind in zip(args, kinds, strict=False)]
        targets = [target for _, target in told if target is not None]
        given = [getattr(argument, "value", argument) for argument, target in told if target is None]
        for target, value in zip(targets, self.answer(targets, given), strict=False):
            _write(target, value)
        result = _returned(self.restype)
        return self.errcheck(result, self, args) if self.errcheck is not None else result


def _target(argument: Any, kind: Any) -> Any:
    """What an argument points to, and a function may write; None if it is a value."""
    if isinstance(argument, _Argument):
        return argument._obj
    if isinstance(argument, ctypes.Array):
        return argument
    if isinstance(argument, _Pointer):
        return argument.contents if argument else None
    pointed = getattr(kind, "_type_", None) if isinstance(kind, type) and issubclass(kind, _Pointer) else None
    return argument if pointed is not None and isinstance(argument, pointed) else None


def _answer(name: str, known: Answer | None, note: Note) -> Callable[[list[Any], list[Any]], Iterable[Any]]:
    """What a function gives for where its arguments point, and for the arguments that are values."""

    def answer(targets: list[Any], given: list[Any]) -> Iterable[Any]:
        if name not in TOLD | TOLD_BY_NVML:
            note(name, (), None)
        if known is not None:
            return known(*given)
        # Handles are told apart. Other targets stay as they are.
        return [next(_addresses) * ALIGNED if isinstance(target, ctypes.c_void_p) else None for target in targets]

    return answer


def _write(target: Any, value: Any) -> None:
    if isinstance(target, ctypes.Structure):
        for name, *_ in getattr(type(target), "_fields_", ()):
            if hasattr(value, name):
                setattr(target, name, getattr(value, name))
    elif isinstance(value, bytes) and isinstance(target, ctypes.Array):
        target.value = value[: len(target) - 1]
    elif value is not None and hasattr(target, "value"):
        target.value = value


def _returned(kind: Any) -> Any:
    """What says that a function succeeded, as the type that code declared for it."""
    if kind is None:
        return None
    if kind is ctypes.c_char_p:
        return b"no error"
    return kind() if isinstance(kind, type) and not issubclass(kind, ctypes._SimpleCData) else 0
