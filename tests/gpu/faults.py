"""What the tests of faults do in processes of their own: ``python tests/gpu/faults.py WHAT BUNDLE``."""

from __future__ import annotations

import ctypes
import itertools
import signal
import sys
from collections.abc import Callable

import aot_runtime
import torch

_DRIVER = ctypes.CDLL("libcuda.so.1")


def launch_forever(bundle: aot_runtime.Bundle) -> None:
    """Launches without a pause; one line says that they have begun."""
    x = torch.ones(1 << 20, device="cuda")
    out = torch.empty_like(x)
    for step in itertools.count():
        bundle["add"](x, x, out)
        if step == 1000:
            print("launching", flush=True)
        if step % 1000 == 0:
            torch.cuda.synchronize()


def compute(bundle: aot_runtime.Bundle) -> None:
    """Many calls, each compared."""
    x = torch.randn(4099, device="cuda")
    for _ in range(300):
        out = torch.empty_like(x)
        bundle["add"](x, x, out)
        assert torch.equal(out, x + x)
    print("right", flush=True)


def fault(bundle: aot_runtime.Bundle) -> None:
    """A kernel that reads memory which is gone ends this context. What the next call says of it, then."""
    x = torch.ones(1 << 24, device="cuda")
    memory = _Memory(4 << 24)
    gone = torch.as_tensor(memory, device="cuda")
    bundle["add"](x, gone, torch.empty_like(x))
    torch.cuda.synchronize()
    _DRIVER.cuMemFree_v2(ctypes.c_uint64(memory.pointer))
    try:
        bundle["add"](x, gone, torch.empty_like(x))
        torch.cuda.synchronize()
    except RuntimeError as error:  # torch names its class differently by version
        print("faulted", str(error).splitlines()[0], flush=True)
    try:
        bundle["activation"](x, x, op="relu")
    except aot_runtime.CudaError as error:
        print("refused", error, flush=True)


def fill(bundle: aot_runtime.Bundle) -> None:
    """First calls while no memory of the GPU is left, and once more when there is."""
    x = torch.ones(8, device="cuda")
    out = torch.empty_like(x)
    held = _all_memory()
    try:
        bundle["add"](x, x, out)
        torch.cuda.synchronize()
        print("fitted", flush=True)
    except aot_runtime.AotError as error:
        print("refused", error, flush=True)
    for pointer in held:
        _DRIVER.cuMemFree_v2(ctypes.c_uint64(pointer))
    bundle["add"](x, x, out)
    torch.cuda.synchronize()
    assert torch.equal(out, x + x)
    print("works again", flush=True)


def hold(bundle: aot_runtime.Bundle) -> None:
    """All memory of the GPU, until the process is killed; one line says that it is taken."""
    torch.ones(8, device="cuda")
    _all_memory()
    print("held", flush=True)
    signal.pause()


def _all_memory() -> list[int]:
    held = []
    for size in (1 << 30, 1 << 24, 1 << 20, 1 << 16):
        while True:
            try:
                held.append(_allocate(size))
            except MemoryError:
                break
    return held


class _Memory:
    """Memory of the driver that torch takes for a tensor of f32."""

    def __init__(self, size: int) -> None:
        self.pointer = _allocate(size)
        array = {"shape": (size // 4,), "typestr": "<f4", "data": (self.pointer, False), "version": 3}
        self.__cuda_array_interface__ = array


def _allocate(size: int) -> int:
    """From the driver itself: torch's allocator would keep a reserve."""
    pointer = ctypes.c_uint64()
    if _DRIVER.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)):
        raise MemoryError
    return pointer.value


WHAT: dict[str, Callable[[aot_runtime.Bundle], None]] = {
    own.__name__: own for own in (launch_forever, compute, fault, fill, hold)
}

if __name__ == "__main__":
    WHAT[sys.argv[1]](aot_runtime.load(sys.argv[2]))
