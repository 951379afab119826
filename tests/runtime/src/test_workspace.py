"""Scratch memory of a call: from the framework's allocator, or from the caller; cleared where declared so."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aot_runtime
import pytest
import tvm_ffi
from aot_runtime import ArgumentError, CudaError
from standin import CUDA, Standin, _capsule, _extents, address_of

ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_void_p
)


class _Tensor(ctypes.Structure):
    """The beginning of a DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    ]  # fmt: skip


@dataclass
class Memory:
    """Bytes of this process that say they are on a device: an allocator as a framework has one."""

    cuda: Standin
    asked: list[tuple[int, int]] = field(default_factory=list)  # bytes, device
    fails: bool = False

    def managed(self, size: int, device: int = 0) -> int:
        length, step = _extents([size]), _extents([1])
        return int(self.cuda._state.standin_new_tensor(0, max(size, 1), 0, CUDA, device, 1, length, step, 1, 8, 1))

    def tensor(self, size: int, device: int = 0) -> tvm_ffi.Tensor:
        made: tvm_ffi.Tensor = tvm_ffi.from_dlpack(_capsule(self.managed(size, device)))
        return made

    def allocate(self, prototype: int, out: Any, context: int, set_error: int) -> int:
        wanted = _Tensor.from_address(prototype)
        if self.fails:
            report = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)(set_error)
            report(context, b"MemoryError", b"nothing left on the device")
            return -1
        self.asked.append((wanted.shape[0], wanted.device_id))
        out[0] = self.managed(wanted.shape[0], wanted.device_id)
        return 0


@pytest.fixture
def memory(cuda: Standin) -> Iterator[Memory]:
    """An allocator that is set in this thread, as TVM-FFI sets torch's for a call with a tensor of torch's."""
    ffi = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    made = Memory(cuda)
    callback = ALLOCATE(made.allocate)
    assert ffi.TVMFFIEnvSetDLPackManagedTensorAllocator(callback, 0, None) == 0
    yield made
    assert ffi.TVMFFIEnvSetDLPackManagedTensorAllocator(None, 0, None) == 0


def test_a_call_takes_what_it_needs_and_gives_it_back(
    cuda: Standin, bundle: aot_runtime.Bundle, memory: Memory
) -> None:
    out = cuda.tensor((1000,), "float32")
    before = cuda.live_tensors
    for count in (3, 7):
        bundle.fill_parts(out, count)
    assert memory.asked == [(12, 0), (28, 0)]
    assert [launch.grid[0] for launch in cuda.launches] == [3, 7]  # the kernel sees as many elements as fit
    assert cuda.live_tensors == before
    assert cuda.calls("cudaMemsetAsync") == 2
    assert cuda.calls("cudaMalloc") == cuda.calls("cudaMallocAsync") == 0


def test_a_variant_that_needs_none_asks_for_none(cuda: Standin, bundle: aot_runtime.Bundle, memory: Memory) -> None:
    out = cuda.tensor((1000,), "float32")
    bundle.fill_parts(out, 1)
    bundle.fill_parts(out, 1, memory.tensor(64))  # and looks at none
    assert memory.asked == []
    assert [launch.grid[0] for launch in cuda.launches] == [1, 1]


def test_no_bytes_need_no_memory(cuda: Standin, bundle: aot_runtime.Bundle, memory: Memory) -> None:
    with pytest.raises(CudaError):  # CUDA refuses an empty grid; that is the kernel's own matter
        bundle.fill_parts(cuda.tensor((8,), "float32"), 0)
    assert memory.asked == []


def test_memory_that_the_caller_passes_is_used_and_cleared(
    cuda: Standin, bundle: aot_runtime.Bundle, memory: Memory
) -> None:
    given = memory.tensor(64)
    address = address_of(given)
    ctypes.memset(address, 0xFF, 64)
    bundle.fill_parts(cuda.tensor((1000,), "float32"), 4, given)
    assert memory.asked == []
    assert ctypes.string_at(address, 64) == bytes(16) + b"\xff" * 48  # what the kernel may use, and no more
    assert cuda.launches[0].grid[0] == 4


def test_memory_that_will_not_do_is_refused(cuda: Standin, bundle: aot_runtime.Bundle, memory: Memory) -> None:
    out = cuda.tensor((1000,), "float32")
    too_short, elsewhere = memory.tensor(15), memory.tensor(64, device=1)
    others = [cuda.tensor((4,), "float32"), cuda.tensor((4, 4), "uint8"), 5]
    misplaced = [cuda.tensor((64,), "uint8", byte_offset=offset) for offset in (1, 8, 64, 127, 192)]
    for given in (too_short, elsewhere, *others, *misplaced):
        with pytest.raises(
            ArgumentError, match="`parts` must be a tensor of u8 on device 0 with one dimension of at least 16"
        ):
            bundle.fill_parts(out, 4, given)
    with pytest.raises(ArgumentError, match="parts"):
        bundle.fill_parts(out, 4, cuda.tensor((64,), "uint8", address=address_of(out)))
    assert cuda.launches == []


def test_without_an_allocator_the_error_names_what_to_pass(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(ArgumentError) as caught:
        bundle.fill_parts(cuda.tensor((8,), "float32"), 4)
    assert "fill_parts needs 16 bytes of scratch memory, `parts`" in str(caught.value)
    assert "pass `parts`, a tensor of u8 on the device with that many elements, aligned to 128" in str(caught.value)


def test_a_size_that_is_negative_is_refused(cuda: Standin, bundle: aot_runtime.Bundle, memory: Memory) -> None:
    with pytest.raises(ArgumentError, match="the size of its workspace, 4 \\* count bytes, is negative"):
        bundle.fill_parts(cuda.tensor((8,), "float32"), -2)


def test_an_allocator_that_fails_fails_the_call(cuda: Standin, bundle: aot_runtime.Bundle, memory: Memory) -> None:
    memory.fails = True
    before = cuda.live_tensors
    out = cuda.tensor((8,), "float32")
    with pytest.raises(MemoryError, match="nothing left on the device"):
        bundle.fill_parts(out, 4)
    memory.fails = False
    cuda.fail("cudaMemsetAsync", 2)
    with pytest.raises(CudaError, match="cannot clear the workspace of fill_parts__parts on device 0"):
        bundle.fill_parts(out, 4)
    cuda.fail("cudaLaunchKernelExC", 701)
    with pytest.raises(CudaError, match="701"):
        bundle.fill_parts(out, 4)
    assert cuda.live_tensors == before + 1


def test_callers_see_an_optional_parameter(bundle: aot_runtime.Bundle) -> None:
    (*_, parts) = bundle.manifest.kernels["fill_parts"].parameters
    assert (parts.workspace, parts.zeroed, parts.type, parts.default) == ("4 * count", True, "tensor?", None)


def test_a_refused_call_names_scratch_memory_only_if_it_was_passed(
    cuda: Standin, bundle: aot_runtime.Bundle, memory: Memory
) -> None:
    out = cuda.tensor((8,), "int8")
    with pytest.raises(ArgumentError) as caught:
        bundle.fill_parts(out, 4)
    assert "  called as: fill_parts(out, count) with int8[8] strides (1); an int" in caught.value.message
    with pytest.raises(ArgumentError, match=r"called as: fill_parts\(out, count, parts\) with int8"):
        bundle.fill_parts(out, 4, memory.tensor(16))
