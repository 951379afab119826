"""Torch's switch of devices for a torch without CUDA: it looks for one before it indexes or copies a CUDA tensor.

``FakeTensorMode`` puts one that does nothing into a torch with CUDA that finds no GPU, and leaves a torch without CUDA as
it is. There is no interface for it: the table is a variable of ``libc10``. A torch that has another layout is left
alone, and raises in the exercise, "not linked with support for cuda devices".
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cuda_guard"]

_TABLE = "_ZN3c104impl26device_guard_impl_registryE"
_CPU, _CUDA = 0, 1  # of ``c10::DeviceType``


@contextmanager
def cuda_guard() -> Iterator[None]:
    """Within the context, switching to a CUDA device does what switching to the CPU does: nothing."""
    table = _table()
    if table is None or table[_CUDA] is not None:
        yield
        return
    table[_CUDA] = table[_CPU]
    try:
        yield
    finally:
        table[_CUDA] = None


def _table() -> ctypes.Array[ctypes.c_void_p] | None:
    import torch

    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        return (ctypes.c_void_p * 2).in_dll(library, _TABLE)
    except (OSError, ValueError):
        return None
