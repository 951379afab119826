"""The stream that kernels are launched on: ``with aot_runtime.use_stream(stream): ...``.

Calls use torch's current stream for torch tensors, CuPy's for arrays of CuPy, and the stream that an array of Numba
belongs to. For arrays of other libraries, and to use another stream, name it here.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

import tvm_ffi

from ..errors import ArgumentError
from .named_streams import named_streams

__all__ = ["use_stream"]

_MOST_DEVICES = 64  # TVM-FFI keeps a list as long as the largest number


class _Named(tvm_ffi.StreamContext):  # type: ignore[misc]  # TVM-FFI is not typed everywhere
    """TVM-FFI's context, which calls also look for: see :mod:`.arrays`."""

    def __enter__(self) -> _Named:
        super().__enter__()
        self._entry = get_ident(), self.device_id
        named_streams().append(self._entry)
        return self

    def __exit__(self, *error: Any) -> None:
        named_streams().remove(self._entry)
        super().__exit__(*error)


def use_stream(stream: Any, device: int | None = None) -> tvm_ffi.StreamContext:
    """Launch kernels on that stream inside a ``with`` statement; the stream before it is restored afterwards.

    ``stream`` is a stream of torch, CuPy, Numba or cuda.core, anything with ``__cuda_stream__``, or the address of a
    ``cudaStream_t``. ``device`` is the index of its device; by default the one that the stream names, else 0.
    """
    index = device if device is not None else _device_of(stream)
    if not hasattr(index, "__index__") or not 0 <= index < _MOST_DEVICES:
        raise ArgumentError(f"device {index!r} is not one of 0 to {_MOST_DEVICES - 1}", hint="pass the index of a GPU")
    return _Named(tvm_ffi.device("cuda", index), _address_of(stream))


def _address_of(stream: Any) -> int:
    if isinstance(stream, int) and not isinstance(stream, bool) and 0 <= stream < 1 << 64:
        return stream
    if hasattr(stream, "__cuda_stream__"):  # NVIDIA's protocol: (version, address)
        version, address = stream.__cuda_stream__()
        if version != 0:
            raise ArgumentError(f"version {version} of the protocol __cuda_stream__ is not known; known: 0")
        return int(address)
    for name in ("cuda_stream", "ptr", "handle"):  # torch, CuPy, Numba
        address = getattr(stream, name, None)
        address = getattr(address, "value", address)  # Numba's handle is a ctypes pointer, whose value 0 is None
        if isinstance(address, int) or (name == "handle" and hasattr(stream, name)):
            return int(address or 0)
    raise ArgumentError(
        f"not a CUDA stream: {stream!r}",
        hint="pass a stream of torch, CuPy, Numba or cuda.core, or its address as an int",
    )


def _device_of(stream: Any) -> int:
    """The device that a stream names, under the name that its library uses."""
    index = getattr(stream, "device_index", getattr(stream, "device_id", None))  # torch, CuPy
    if index is None:
        owner = getattr(stream, "device", None)
        index = getattr(owner, "device_id", getattr(owner, "index", None))  # cuda.core, others
    return index if isinstance(index, int) and index >= 0 else 0  # CuPy's default stream says -1
