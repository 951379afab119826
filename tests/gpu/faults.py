"""What the tests of faults do in processes of their own: ``python tests/gpu/faults.py WHAT BUNDLE``.

Without torch, which takes seconds to import: memory comes from the driver itself, and arrays say where they lie.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import signal
import sys
from collections.abc import Callable

import aot_runtime
from aot_runtime.core.arrays import _view

_DRIVER = ctypes.CDLL("libcuda.so.1")
_ILLEGAL_ADDRESS = 700


class DriverError(Exception):
    """What the driver refused, by its number."""


def _driver(name: str, *arguments: object) -> None:
    code = getattr(_DRIVER, name)(*arguments)
    if code:
        raise DriverError(f"{name} failed: {'out of memory' if code == 2 else code}")


class Memory:
    """Numbers of f32 on the GPU."""

    def __init__(self, count: int) -> None:
        pointer = ctypes.c_uint64()
        _driver("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(4 * count))
        self.pointer, self.count = pointer, count
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "<f4", "data": (pointer.value, False), "version": 3, "stream": None
        }  # fmt: skip

    def fill(self, value: float) -> Memory:
        numbers = array.array("f", [value]) * self.count
        _driver(
            "cuMemcpyHtoD_v2",
            self.pointer,
            (ctypes.c_char * (4 * self.count)).from_buffer(numbers),
            ctypes.c_size_t(4 * self.count),
        )
        return self

    def content(self) -> set[float]:
        numbers = array.array("f", [0.0]) * self.count
        _driver(
            "cuMemcpyDtoH_v2",
            (ctypes.c_char * (4 * self.count)).from_buffer(numbers),
            self.pointer,
            ctypes.c_size_t(4 * self.count),
        )
        return set(numbers)

    def free(self) -> None:
        _driver("cuMemFree_v2", self.pointer)


def start() -> None:
    """Make the primary context current, as CUDA's runtime does."""
    context = ctypes.c_void_p()
    _driver("cuInit", 0)
    _driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    _driver("cuCtxSetCurrent", context)


def launch_forever(bundle: aot_runtime.Bundle) -> None:
    """Launches without a pause; one line says that they have begun."""
    x, out = Memory(1 << 20).fill(1.0), Memory(1 << 20)
    for step in itertools.count():
        bundle["add"](x, x, out)
        if step == 1000:
            print("launching", flush=True)
        if step % 1000 == 0:
            _driver("cuCtxSynchronize")


def compute(bundle: aot_runtime.Bundle) -> None:
    """Many calls, each compared."""
    x = Memory(4099).fill(1.5)
    for _ in range(300):
        out = Memory(4099).fill(0.0)
        bundle["add"](x, x, out)
        assert out.content() == {3.0}
        out.free()
    print("right", flush=True)


def fault(bundle: aot_runtime.Bundle) -> None:
    """A kernel that reads memory which is gone ends this context. What the next call says of it, then."""
    x, gone, out = (Memory(1 << 24).fill(1.0) for _ in range(3))
    view = _view(gone.__cuda_array_interface__)  # which asks the driver where the memory lies, while it knows it
    bundle["add"](x, view, out)
    assert out.content() == {2.0}
    gone.free()
    bundle["add"](x, view, out)
    code = _DRIVER.cuCtxSynchronize()
    print("illegal address" if code == _ILLEGAL_ADDRESS else f"synchronizing gave {code}", flush=True)
    try:
        bundle["activation"](x, x, op="relu")
    except aot_runtime.AotError as error:
        print("refused", type(error).__name__, error, flush=True)


def fill(bundle: aot_runtime.Bundle) -> None:
    """First calls while no memory of the GPU is left, and once more when there is."""
    x, out = Memory(8).fill(1.0), Memory(8).fill(0.0)
    held = _all_memory()
    try:
        bundle["add"](x, x, out)
        _driver("cuCtxSynchronize")
        print("fitted", flush=True)
    except aot_runtime.AotError as error:
        print("refused", error, flush=True)
    for memory in held:
        memory.free()
    bundle["add"](x, x, out)
    assert out.content() == {2.0}
    print("works again", flush=True)


def preload(bundle: aot_runtime.Bundle) -> None:
    """The bundle is the first in this process that uses the GPU."""
    bundle.preload(0)
    print("loaded", flush=True)


def hold(bundle: aot_runtime.Bundle) -> None:
    """All memory of the GPU, until the process is killed; one line says that it is taken."""
    _all_memory()
    print("held", flush=True)
    signal.pause()


def _all_memory() -> list[Memory]:
    held = []
    for size in (1 << 30, 1 << 24, 1 << 20, 1 << 16):
        while True:
            try:
                held.append(Memory(size // 4))
            except DriverError:
                break
    return held


WHAT: dict[str, Callable[[aot_runtime.Bundle], None]] = {
    own.__name__: own for own in (launch_forever, compute, fault, fill, preload, hold)
}

if __name__ == "__main__":
    try:
        loaded = aot_runtime.load(sys.argv[2])
        if sys.argv[1] != "preload":
            start()
        WHAT[sys.argv[1]](loaded)
    except (DriverError, aot_runtime.AotError) as refused:
        sys.exit(f"{type(refused).__name__}: {refused}")
