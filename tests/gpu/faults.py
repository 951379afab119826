"""What the tests of faults do in processes of their own: ``python tests/gpu/faults.py WHAT BUNDLE``."""

from __future__ import annotations

import ctypes
import itertools
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
    """An illegal access ends this context. What a call says of it, then."""
    x = torch.ones(8, device="cuda")
    bundle["add"](x, x, torch.empty_like(x))
    try:
        torch.ones(2, device="cuda")[torch.full((1,), 1 << 40, device="cuda")].sum().item()
    except RuntimeError as error:  # torch names its class differently by version
        print("faulted", type(error).__name__, flush=True)
    try:
        bundle["activation"](x, x, op="relu")
    except aot_runtime.CudaError as error:
        print("refused", error, flush=True)


def fill(bundle: aot_runtime.Bundle) -> None:
    """First calls while no memory of the GPU is left, and once more when there is."""
    x = torch.ones(8, device="cuda")
    out = torch.empty_like(x)
    held = []
    for size in (1 << 30, 1 << 24, 1 << 20, 1 << 16):
        while True:
            try:
                held.append(_allocate(size))
            except MemoryError:
                break
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


def _allocate(size: int) -> int:
    """From the driver itself: torch's allocator would keep a reserve."""
    pointer = ctypes.c_uint64()
    if _DRIVER.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)):
        raise MemoryError
    return pointer.value


WHAT: dict[str, Callable[[aot_runtime.Bundle], None]] = {
    own.__name__: own for own in (launch_forever, compute, fault, fill)
}

if __name__ == "__main__":
    WHAT[sys.argv[1]](aot_runtime.load(sys.argv[2]))
