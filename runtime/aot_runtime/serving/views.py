"""Tensors of CuTe DSL that are bytes to their framework, shown to TVM-FFI with the type that they are used with."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ..dtypes import DTYPES, Dtype

__all__ = ["View", "in_groups"]

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


class View:
    """A tensor of CuTe DSL for callers that take DLPack. It keeps the tensor, whose memory it shows, with its shape or another."""

    def __init__(self, tensor: Any, extents: Sequence[int] | None = None) -> None:
        self._owner, capsule = tensor, tensor._dlpack_data
        name = _python.PyCapsule_GetName(capsule)
        place = _python.PyCapsule_GetPointer(capsule, name)
        shown = _Tensor.from_address(place + (_OFFSET_VERSIONED if name.endswith(_VERSIONED) else 0))
        self._managed = _Managed(_Tensor.from_buffer_copy(shown), None, None)
        dtype = _DTYPES.get(tensor.element_type.__name__)
        if dtype is not None and shown.bits == _BYTE and shown.lanes == 1:
            self._say(dtype, tensor)
        if extents is not None:
            self._lay_out(extents, tensor.stride)
        self._device = shown.device_type, shown.device_id

    def _say(self, dtype: Dtype, tensor: Any) -> None:
        """Give bytes the type that they are used with."""
        said = self._managed.tensor
        said.code, said.bits, said.lanes = dtype.code, dtype.bits, dtype.lanes
        if dtype.lanes > 1:
            self._lay_out(*in_groups(tensor.shape, tensor.stride, dtype.lanes))

    def _lay_out(self, shape: Sequence[int], strides: Sequence[int]) -> None:
        extents, said = ctypes.c_int64 * len(shape), self._managed.tensor
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
