"""Rounding to f8e4m3 with the scales that ``gemm_fp8`` takes: per 128 elements of a row, per 128 x 128 elements, or given.

Memory is the limit: each element is read once, kept in registers until the largest of its block is known, and written.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

from .._device import (
    VECTOR_BYTES,
    WARP,
    KernelObject,
    await_previous,
    chunk_elements,
    fetch,
    launched_early,
    maximum,
    store,
)
from .._versions import SmemAllocator
from ..contracts._f8 import BLOCK, LARGEST, SMALLEST

THREADS = 256
UNROLL = 4  # blocks of a row, or chunks, that a thread has in flight


def magnitude(largest: Float32, chunk: cute.Tensor, size: int) -> Float32:
    """The largest magnitude among ``largest`` and the elements of a chunk."""
    values = chunk.load().to(Float32)
    for i in range(size):
        largest = maximum(largest, maximum(values[i], -values[i]))
    return largest


class Quantize(KernelObject):
    """The base: ``chunk`` elements are what a thread reads at once."""

    def __init__(self, target: aot.Target, chunk: int) -> None:
        self.chunk = chunk
        self.early = launched_early(target)

    @cute.jit
    def __call__(self, x: cute.Tensor, scale: cute.Tensor, out: cute.Tensor, stream: CUstream):
        count = self.blocks(x)
        if count > 0:  # CUDA refuses an empty grid
            self.kernel(x, scale, out).launch(
                grid=[count, 1, 1], block=[THREADS, 1, 1], use_pdl=self.early, stream=stream
            )


class QuantizeBlocks(Quantize):
    """A scale for each 128 elements of a row. Some lanes of a warp have such a block."""

    def blocks(self, x: cute.Tensor):
        rows, columns = x.shape
        return cute.ceil_div(rows * (columns // BLOCK), UNROLL * THREADS * self.chunk // BLOCK)

    @cute.kernel
    def kernel(self, x: cute.Tensor, scale: cute.Tensor, out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        lanes = BLOCK // self.chunk
        row_blocks = cute.size(x, mode=[1]) // BLOCK
        count = cute.size(x, mode=[0]) * row_blocks
        await_previous(self.early)
        places, held = [], []
        for i in cutlass.range_constexpr(UNROLL):
            place = (index * UNROLL + i) * (THREADS // lanes) + thread // lanes
            near = cutlass.min(place, count - 1)  # warps reduce together, so lanes past the end repeat the last block
            places.append((place, near // row_blocks, near % row_blocks))
            held.append(
                fetch(x[near // row_blocks, None], near % row_blocks * lanes + thread % lanes, self.chunk, cached=False)
            )
        for i in cutlass.range_constexpr(UNROLL):
            place, row, column = places[i]
            largest = magnitude(Float32(SMALLEST), held[i], self.chunk)
            largest = cute.arch.warp_reduction(largest, maximum, threads_in_group=lanes)
            first = column * lanes + thread % lanes
            end = first + 1 if place < count else first
            store(held[i].load().to(Float32) * (LARGEST / largest), out[row, None], first, end, self.chunk)
            if thread % lanes == 0 and place < count:
                scale[row, column] = largest * (1 / LARGEST)


class QuantizeSquares(Quantize):
    """A scale for each 128 x 128 elements, which a block of threads has in registers."""

    def blocks(self, x: cute.Tensor):
        rows, columns = x.shape
        return cute.ceil_div(rows, BLOCK) * (columns // BLOCK)

    @cute.kernel
    def kernel(self, x: cute.Tensor, scale: cute.Tensor, out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        lanes = BLOCK // self.chunk
        rows, row_blocks = cute.size(x, mode=[0]), cute.size(x, mode=[1]) // BLOCK
        top, column = index // row_blocks * BLOCK, index % row_blocks
        shared = SmemAllocator().allocate_tensor(Float32, cute.make_layout(THREADS // WARP))
        await_previous(self.early)
        first = column * lanes + thread % lanes
        each = BLOCK * lanes // THREADS
        held = []
        for i in cutlass.range_constexpr(each):
            # Rows past the end repeat the last one, which belongs to the same square.
            row = cutlass.min(top + i * (THREADS // lanes) + thread // lanes, rows - 1)
            held.append(fetch(x[row, None], first, self.chunk, cached=False))
        largest = Float32(SMALLEST)
        for i in cutlass.range_constexpr(each):
            largest = magnitude(largest, held[i], self.chunk)
        largest = cute.arch.warp_reduction(largest, maximum)
        if thread % WARP == 0:
            shared[thread // WARP] = largest
        cute.arch.sync_threads()  # the largest of all warps are there
        largest = cute.arch.warp_reduction(
            shared[thread % (THREADS // WARP)], maximum, threads_in_group=THREADS // WARP
        )
        for i in cutlass.range_constexpr(each):
            row = top + i * (THREADS // lanes) + thread // lanes
            end = first + 1 if row < rows else first
            values = held[i].load().to(Float32) * (LARGEST / largest)
            store(values, out[cutlass.min(row, rows - 1), None], first, end, self.chunk)
        if thread == 0:
            scale[index // row_blocks, column] = largest * (1 / LARGEST)


class QuantizeScaled(Quantize):
    """A given scale for all elements. What is too large becomes the largest number."""

    def blocks(self, x: cute.Tensor):
        rows, columns = x.shape
        return cute.ceil_div(rows * (columns // self.chunk), THREADS * UNROLL)

    @cute.kernel
    def kernel(self, x: cute.Tensor, scale: cute.Tensor, out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        row_chunks = cute.size(x, mode=[1]) // self.chunk
        count = cute.size(x, mode=[0]) * row_chunks
        await_previous(self.early)
        factor = 1 / scale[0]
        places, held = [], []
        for i in cutlass.range_constexpr(UNROLL):
            place = (index * UNROLL + i) * THREADS + thread
            near = cutlass.min(place, count - 1)
            places.append((place, near // row_chunks, near % row_chunks))
            held.append(fetch(x[near // row_chunks, None], near % row_chunks, self.chunk, cached=self.chunk == 1))
        for i in cutlass.range_constexpr(UNROLL):
            place, row, column = places[i]
            end = column + 1 if place < count else column
            store(held[i].load().to(Float32) * factor, out[row, None], column, end, self.chunk)


def arguments_of(dtype: str, vector: bool, scale: aot.Tensor, columns: aot.Dim) -> dict:
    """Of the kernels here, in the order of their ``__call__``."""
    chunk = chunk_elements(dtype, vector)
    return {
        "x": aot.Tensor(dtype, ("m", columns), align=VECTOR_BYTES if vector else None),
        "scale": scale,
        "out": aot.Tensor("f8e4m3", ("m", columns), align=chunk),
        "stream": aot.Stream(),
    }
