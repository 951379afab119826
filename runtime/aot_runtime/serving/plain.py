"""Compiled functions without TVM-FFI: a bundle's function that is called as CuTe DSL's own convention has it.

Callers pass tensors of CuTe DSL (``from_dlpack``), pointers, typed numbers and streams. A bundle's function takes all of
these but the first as they are, or by their value. It checks what CuTe DSL does not in this convention, static extents
among it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..dtypes import DTYPES, Dtype
from ..errors import ArgumentError
from .values.forms import ByClass
from .values.named import base_names

__all__ = ["PlainFunction", "in_groups"]

_python = ctypes.pythonapi
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_GetName.restype = ctypes.c_char_p
_python.PyCapsule_GetName.argtypes = [ctypes.py_object]
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_NAME, _VERSIONED = b"dltensor", b"_versioned"
_OFFSET_VERSIONED = 32  # of the tensor: a version, a context, a deleter and flags come first

# The types that frameworks pass as bytes, with the type said to CuTe DSL alone. Pairs of 4-bit floats are one element.
_DTYPES = {dtype.cutlass: dtype for dtype in DTYPES.values()} | {"Float4E2M1FN": DTYPES["f4e2m1x2"]}
_BYTE = 8
_KEPT = "_aot_tensor"  # the attribute of a tensor of CuTe DSL that holds it as one of TVM-FFI


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """``DLManagedTensor``, without a deleter: the tensor of CuTe DSL owns the memory."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _View:
    """A tensor of CuTe DSL for callers that take DLPack. It keeps the tensor, whose shape and memory it shows."""

    def __init__(self, tensor: Any) -> None:
        self._owner, capsule = tensor, tensor._dlpack_data
        name = _python.PyCapsule_GetName(capsule)
        place = _python.PyCapsule_GetPointer(capsule, name)
        shown = _Tensor.from_address(place + (_OFFSET_VERSIONED if name.endswith(_VERSIONED) else 0))
        self._managed = _Managed(_Tensor.from_buffer_copy(shown), None, None)
        dtype = _DTYPES.get(tensor.element_type.__name__)
        if dtype is not None and shown.bits == _BYTE and shown.lanes == 1:
            self._say(dtype, tensor)
        self._device = shown.device_type, shown.device_id

    def _say(self, dtype: Dtype, tensor: Any) -> None:
        """Give bytes the type that they are used with."""
        said = self._managed.tensor
        said.code, said.bits, said.lanes = dtype.code, dtype.bits, dtype.lanes
        if dtype.lanes > 1:
            shape, strides = in_groups(tensor.shape, tensor.stride, dtype.lanes)
            extents = ctypes.c_int64 * len(shape)
            self._shape, self._strides = extents(*shape), extents(*strides)  # they must live as long as the view
            said.shape, said.strides = ctypes.addressof(self._shape), ctypes.addressof(self._strides)

    def __dlpack__(self, **options: Any) -> Any:
        return _python.PyCapsule_New(ctypes.addressof(self._managed), _NAME, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def in_groups(shape: Sequence[int], strides: Sequence[int], lanes: int) -> tuple[list[int], list[int]]:
    """The layout of a tensor whose elements are groups of what are elements now, along the extent of stride 1."""
    inner = list(strides).index(1)
    extents = [extent // lanes if place == inner else extent for place, extent in enumerate(shape)]
    return extents, [stride if place == inner else stride // lanes for place, stride in enumerate(strides)]


class PlainFunction:
    """What ``cute.compile`` gives without TVM-FFI, as far as callers use it; ``function`` is that of the bundle."""

    def __init__(self, function: Callable[..., Any], parameters: list[str]) -> None:
        self._function, self.parameters = function, parameters
        self.__name__ = self.__qualname__ = self.function_name = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        if kwargs or len(args) != len(self.parameters):
            args = self._in_order(args, kwargs)
        self._function(*[_ways[type(value)](value) for value in args])
        return 0

    def generate_execution_args(self, *args: Any, **kwargs: Any) -> tuple[list[Any], list[Any]]:
        """What :meth:`run_compiled_program` takes, and what must live as long."""
        given = self._in_order(args, kwargs)
        return [_taken(value) for value in given], list(given)

    def _in_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        rest = self.parameters[len(args) :]
        unknown = [name for name in kwargs if name not in rest]
        if unknown or len(args) > len(self.parameters):
            raise ArgumentError(
                f"{self.__name__} takes {', '.join(self.parameters)}, and got {len(args)} arguments and {', '.join(kwargs)}"
            )
        return (*args, *(kwargs.get(name) for name in rest))

    def run_compiled_program(self, exe_args: list[Any]) -> int:
        """Launch it; 0 is CUDA's success."""
        self._function(*exe_args)
        return 0

    def to(self, device: Any = None) -> PlainFunction:
        """The same function: a bundle finds the device of each call by its tensors, or takes the current one."""
        return self

    def export_to_c(self, *args: Any, **kwargs: Any) -> None:
        """Libraries export what they compiled into a disk cache. The bundle takes the place of such a cache."""


def _taken(value: Any) -> Any:
    """An argument as a bundle's function takes it."""
    return _ways[type(value)](value)


def _way(kind: Any) -> Callable[[Any], Any]:
    """How the objects of a class are passed."""
    if hasattr(kind, "dynamic_shapes_mask"):
        return _tensor
    if "Numeric" in base_names(kind):
        return lambda value: value.value
    if issubclass(kind, (tuple, list)):
        return lambda value: tuple(map(_taken, value))
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        return lambda value: tuple(_taken(getattr(value, name)) for name in names)
    if hasattr(kind, "cuda_stream"):  # torch's
        return lambda value: value.cuda_stream
    return lambda value: value


_ways = ByClass(_way)


def _tensor(value: Any) -> Any:
    """A tensor of CuTe DSL as one of TVM-FFI, which is kept beside it: callers pass the same one again.

    One of bytes that are used as another type is shown again each time: what shows it must outlive the call alone.
    """
    kept = value.__dict__.get(_KEPT)
    if kept is not None and kept[0] is value._dtype:
        return kept[1]
    if hasattr(value, "_tvm_ffi_tensor"):
        return value._tvm_ffi_tensor
    # What CuTe DSL reads of the capsule it reads here, since the capsule may be used up below.
    dtype = value.element_type
    if kept is not None or dtype.width <= _BYTE:
        return _View(value)
    found = sys.modules["tvm_ffi"].from_dlpack(_Capsule(value._dlpack_data))
    value.__dict__[_KEPT] = dtype, found
    return found


class _Capsule:
    """The memory of a tensor of CuTe DSL, to be moved: who takes it must live as long as the tensor."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule
