"""Compiled functions without TVM-FFI: a bundle's function that is called as CuTe DSL's own convention has it.

Callers pass tensors of CuTe DSL (``from_dlpack``), pointers, typed numbers and streams. A bundle's function takes all of
these but the first as they are, or by their value. It checks what CuTe DSL does not in this convention, static extents
among it.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ..dtypes import DTYPES, Dtype
from ..errors import ArgumentError
from .forms import base_names

__all__ = ["PlainFunction", "in_groups"]

_python = ctypes.pythonapi
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_NAME, _VERSIONED = b"dltensor", b"dltensor_versioned"
_OFFSET_VERSIONED = 32  # of the tensor: a version, a context, a deleter and flags come first

# The types that frameworks pass as bytes, with the type said to CuTe DSL alone. Pairs of 4-bit floats are one element.
_DTYPES = {dtype.cutlass: dtype for dtype in DTYPES.values()} | {"Float4E2M1FN": DTYPES["f4e2m1x2"]}
_BYTE = 8


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
        versioned = bool(_python.PyCapsule_IsValid(capsule, _VERSIONED))
        place = _python.PyCapsule_GetPointer(capsule, _VERSIONED if versioned else _NAME)
        shown = _Tensor.from_address(place + (_OFFSET_VERSIONED if versioned else 0))
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
        return self.run_compiled_program(self.generate_execution_args(*args, **kwargs)[0])

    def generate_execution_args(self, *args: Any, **kwargs: Any) -> tuple[list[Any], list[Any]]:
        """What :meth:`run_compiled_program` takes, and what must live as long."""
        rest = self.parameters[len(args) :]
        unknown = [name for name in kwargs if name not in rest]
        if unknown or len(args) > len(self.parameters):
            raise ArgumentError(
                f"{self.__name__} takes {', '.join(self.parameters)}, and got {len(args)} arguments and {', '.join(kwargs)}"
            )
        given = [*args, *(kwargs.get(name) for name in rest)]
        return [_taken(value) for value in given], given

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
    kind: Any = type(value)
    if hasattr(kind, "dynamic_shapes_mask"):
        return value._tvm_ffi_tensor if hasattr(value, "_tvm_ffi_tensor") else _View(value)
    if "Numeric" in base_names(kind):
        return value.value
    if isinstance(value, (tuple, list)):
        return tuple(map(_taken, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(_taken(getattr(value, field.name)) for field in dataclasses.fields(value))
    address = getattr(value, "cuda_stream", None)  # of torch's streams
    return address if isinstance(address, int) else value
