"""The streams that are named with ``use_stream``, for everything that calls kernels."""

from __future__ import annotations

__all__ = ["named_streams"]


def named_streams() -> list[tuple[int, int]]:
    """The thread and the device of each ``use_stream`` that is active, in any thread.

    Every generated package brings a copy of this module. A stream is named for the kernels of all of them, so the list is
    kept by TVM-FFI, which a process has once.
    """
    import tvm_ffi  # not where this module is imported: the builder does so without TVM-FFI

    named: list[tuple[int, int]] = tvm_ffi.__dict__.setdefault("_aot_named_streams", [])
    return named
