"""Arrays that TVM-FFI does not take as they are, or on the right stream, and calls with them.

* CuPy has a current stream, which DLPack does not pass on.
* Arrays of Numba have ``__cuda_array_interface__`` and no DLPack. That interface names the stream of an array.
* Views of cuda.core have DLPack, but claim that the default stream is current, so TVM-FFI would launch there even inside
  ``use_stream``.

A stream that is named counts more than those of arrays. If a tensor of torch is among the arguments, TVM-FFI launches on
torch's current stream, so no array may belong to another.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from math import prod
from threading import get_ident
from typing import Any

import tvm_ffi

from ..errors import ArgumentError, DriverError
from .named_streams import named_streams

__all__ = ["call_with_views", "has_foreign"]

_CUDA = 2  # a device of DLPack
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLPack's, by NumPy's letter for a kind of number


class _DLTensor(ctypes.Structure):
    """``DLManagedTensor`` of DLPack."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


def has_foreign(*arguments: Any) -> bool:
    """Whether one of the arguments of a refused call is an array that only :func:`call_with_views` takes."""
    return any(
        _how_to_take(type(argument)) is _from_interface and hasattr(argument, "__cuda_array_interface__")
        for argument in arguments
    )


def call_with_views(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a kernel's function with arrays of all libraries, on the stream that is named, or else on that of the arrays."""
    streams: set[tuple[int, int]] = set()  # devices, and a stream of each
    tensors = [_taken(argument, streams) for argument in arguments]
    unnamed = {pair for pair in streams if not _is_named(pair[0])}
    of_torch = _streams_of_torch(arguments, {index for index, _ in unnamed}) if unnamed else set()
    unnamed |= of_torch  # TVM-FFI launches there whatever stream is set, and would ignore the others
    if len(unnamed) > 1:
        listed = ", ".join(hex(stream) for _, stream in sorted(unnamed))
        raise ArgumentError(
            f"the arrays belong to several streams: {listed}", hint=_ONE_FOR_TORCH if of_torch else _ONE
        )
    for index, stream in unnamed:
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", index), stream):
            return function(*tensors)
    return function(*tensors)


_ONE = "order the streams, then name one: `with aot_runtime.use_stream(stream):`"
_ONE_FOR_TORCH = (
    "order the streams, then make that of the other arrays torch's: "
    "`with torch.cuda.stream(torch.cuda.ExternalStream(stream)):`"
)


def _streams_of_torch(arguments: tuple[Any, ...], devices: set[int]) -> set[tuple[int, int]]:
    """Those of the devices that tensors of torch among the arguments are on, and torch's current stream of each."""
    torch: Any = sys.modules.get("torch")
    kind: Any = getattr(torch, "Tensor", ())
    tensors: list[Any] = [argument for argument in arguments if isinstance(argument, kind)]
    shared = devices & {tensor.device.index for tensor in tensors if tensor.is_cuda}
    return {(index, torch.cuda.current_stream(index).cuda_stream) for index in shared}


def _is_named(index: int) -> bool:
    """Whether this thread has named a stream of a device. That may be the default stream, whose address is 0."""
    return (get_ident(), index) in named_streams() or bool(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", index)))


def _taken(argument: Any, streams: set[tuple[int, int]]) -> Any:
    """An argument as it is passed on. Adds its stream if it has one other than the default."""
    kind = type(argument)
    try:
        take = _takes[kind]
    except KeyError:
        if len(_takes) >= _MOST_CLASSES:  # libraries generate classes, and none is kept for the life of a process
            _takes.clear()
        take = _takes[kind] = _how_to_take(kind)
    return argument if take is None else take(argument, streams)


_Take = Callable[[Any, set[tuple[int, int]]], Any]
_takes: dict[type, _Take | None] = {}
_MOST_CLASSES = 1024


def _how_to_take(kind: type) -> _Take | None:
    """What becomes of arguments of a type; None if they are passed as they are."""
    torch, cupy = (sys.modules.get(name) for name in ("torch", "cupy"))
    if issubclass(kind, getattr(cupy, "ndarray", ())):
        return _from_cupy
    if hasattr(kind, "__dlpack_c_exchange_api__"):
        return None if torch is not None and issubclass(kind, torch.Tensor) else _without_claim
    return None if hasattr(kind, "__dlpack__") else _from_interface


def _from_cupy(array: Any, streams: set[tuple[int, int]]) -> Any:
    index = array.device.id
    stream = sys.modules["cupy"].cuda.get_current_stream(index).ptr
    if stream:
        streams.add((index, stream))
    return array


def _from_interface(argument: Any, streams: set[tuple[int, int]]) -> Any:
    """An array of a class without DLPack, as a tensor. The interface may be that of an instance; most have none."""
    interface = getattr(argument, "__cuda_array_interface__", None)
    if interface is None:
        return argument
    tensor = _view(interface)
    if interface.get("stream"):
        streams.add((tensor.device.index, interface["stream"]))
    return tensor


def _without_claim(array: Any, streams: set[tuple[int, int]]) -> tvm_ffi.Tensor:
    return tvm_ffi.from_dlpack(array)


def _view(interface: dict[str, Any]) -> tvm_ffi.Tensor:
    """A tensor over the memory of an array."""
    order, kind, size = interface["typestr"][0], interface["typestr"][1], int(interface["typestr"][2:])
    known = kind in _CODES and order != ">"  # GPUs have the other order of bytes
    if not known or interface.get("mask") is not None:
        problem = "with a mask" if known else f"of type {interface['typestr']!r}"
        raise ArgumentError(f"an array {problem} cannot be passed through `__cuda_array_interface__`")
    shape, address = interface["shape"], interface["data"][0]
    strides = interface.get("strides") or [size * prod(shape[i + 1 :]) for i in range(len(shape))]
    if any(extent > 1 and stride % size for extent, stride in zip(shape, strides, strict=True)):
        raise ArgumentError(
            f"an array of type {interface['typestr']!r} whose elements lie {tuple(strides)} bytes apart cannot be passed: "
            f"strides must be multiples of {size} bytes",
            hint="pass a contiguous copy",
        )
    device = _device_at(address)
    # One block of C's memory, which C frees: a view may outlive Python's modules, as part of a traceback that is kept.
    start, length = ctypes.sizeof(_DLTensor), ctypes.sizeof(ctypes.c_int64) * len(shape)
    block = _allocate(start + 2 * length)
    if not block:
        raise MemoryError
    (ctypes.c_int64 * (2 * len(shape))).from_address(block + start)[:] = [
        *shape,
        *(stride // size for stride in strides),
    ]
    ctypes.memmove(block, ctypes.byref(_DLTensor(
        data=address, device_type=_CUDA, device_id=device, rank=len(shape), code=_CODES[kind], bits=8 * size, lanes=1,
        shape=block + start, strides=block + start + length, deleter=_FREE,
    )), start)  # fmt: skip
    return tvm_ffi.from_dlpack(_capsule(block, b"dltensor", None))


_allocate = ctypes.CDLL(None).malloc
_allocate.argtypes, _allocate.restype = [ctypes.c_size_t], ctypes.c_void_p
_FREE = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.argtypes, _capsule.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object


def _device_at(address: int) -> int:
    """The device whose memory an address is in. Empty arrays have none, and are on the first as well as anywhere."""
    if not address:
        return 0
    index = ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    status = driver.cuPointerGetAttribute(ctypes.byref(index), _DEVICE_ORDINAL, ctypes.c_uint64(address))
    if status:
        raise DriverError(f"the driver knows no memory at {address:#x} (cuPointerGetAttribute: {status})")
    return index.value
