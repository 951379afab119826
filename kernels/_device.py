"""What the kernels share: how rows are read, written and summed, and how elementwise kernels walk them.

A thread moves data in *chunks*: 16 bytes, the widest access, where addresses and extents allow it, else
one element. A kernel is compiled for either; nothing else differs between the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu.common import CacheEvictionPriority
from cutlass.memory import SmemAllocator

import aot

ARCHS = ("sm_80", "sm_90a", "sm_100f")
DTYPES = ("f16", "bf16", "f32")

WARP = cute.arch.WARP_SIZE
VECTOR_BYTES = 16


def chunk_elements(dtype: str, vector: bool) -> int:
    """Elements in a chunk."""
    return VECTOR_BYTES // aot.Tensor(dtype, ()).element_bytes if vector else 1


# Rows: tensors of rank 1 whose elements follow each other. An index or extent is an Int32 or an Int64.


def load(row: cute.Tensor, index: Int64, size: int, cached: bool = True) -> cute.Tensor:
    """Chunk ``index`` of a row, in registers; past the end of the row, its last chunk. It must have one.

    So a load needs no branch: many are under way at once, and what they bring stays as narrow as it came.
    ``cached=False`` leaves the L1 cache to what is read again.
    """
    last = cute.size(row) // size - 1
    priority = CacheEvictionPriority.EVICT_NORMAL if cached else CacheEvictionPriority.NO_ALLOCATE
    chunk = cute.make_rmem_tensor(size, row.element_type)
    source = cute.local_tile(row, (size,), (cutlass.min(index, last),))
    cute.autovec_copy(source, chunk, l1c_evict_priority=priority)
    return chunk


@cute.jit
def store(values: cute.TensorSSA, row: cute.Tensor, index: Int64, end: Int64, size: int):
    """Round values to the row's type and write them as its chunk ``index``; from ``end`` on, nothing."""
    chunk = cute.make_rmem_tensor(size, row.element_type)
    chunk.store(values.to(row.element_type))
    if index < end:
        cute.autovec_copy(chunk, cute.local_tile(row, (size,), (index,)))


@cute.jit
def sum_over(threads: int, value: Float32) -> Float32:
    """The sum of a value over groups of threads, known to each of them: part of a warp, or the whole block.

    Every thread of the block must come here, and only once.
    """
    value = cute.arch.warp_reduction_sum(value, threads_in_group=min(threads, WARP))
    if cutlass.const_expr(threads > WARP):
        thread, _, _ = cute.arch.thread_idx()
        warps = threads // WARP
        of_warps = SmemAllocator().allocate_tensor(Float32, cute.make_layout(warps))
        if thread % WARP == 0:
            of_warps[thread // WARP] = value
        cute.arch.sync_threads()
        value = cute.arch.warp_reduction_sum(of_warps[thread % warps], threads_in_group=warps)
    return value


# Elementwise kernels.


@dataclass(frozen=True)
class ElementwiseTiling:
    """A block covers ``threads * unroll`` chunks of a row, or ``threads`` chunks of several short rows."""

    threads: int
    unroll: int  # chunks per thread, all loaded before the first is used
    vector: bool

    def validate(self, target: aot.Target) -> None:
        if self.threads & (self.threads - 1) or not WARP <= self.threads <= target.max_threads:
            raise aot.DeclarationError(
                f"{self.threads} threads per block; "
                f"{target.arch} takes a power of two from {WARP} to {target.max_threads}"
            )


class Elementwise:
    """``out = apply(*inputs)`` over tensors of one shape, of rank 1 or 2, rows any distance apart.

    Subclasses define ``apply`` on the values of a chunk, and a ``__call__`` with named arguments.
    """

    def __init__(self, tiling: ElementwiseTiling, rank: int, dtype: str) -> None:
        self.tiling = tiling
        self.chunk = chunk_elements(dtype, tiling.vector)
        # A single row may end in part of a chunk; of several, the next would start misaligned.
        self.ragged = rank == 1 and tiling.vector
        columns = aot.Dim("n", divisible_by=1 if self.ragged else self.chunk, bits=64)
        shape = (columns,) if rank == 1 else (aot.Dim("m", bits=64), columns)
        self.tensor = aot.Tensor(dtype, shape, align=VECTOR_BYTES if tiling.vector else None)

    def apply(self, *values: cute.TensorSSA) -> cute.TensorSSA:
        raise NotImplementedError

    @cute.kernel
    def kernel(self, inputs: list[cute.Tensor], out: cute.Tensor, shift: Int32, tiles_per_row: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rows, columns = _extents(out)
        whole = columns // self.chunk
        row = Int64(block // tiles_per_row) * (self.tiling.threads >> shift) + (thread >> shift)
        if row < rows:
            lane = thread & ((1 << shift) - 1)
            first = Int64(block % tiles_per_row) * (self.tiling.unroll << shift) + lane
            indices = [first + (i << shift) for i in range(self.tiling.unroll)]
            self.move([x[row, None] for x in inputs], out[row, None], indices, whole, self.chunk)
        if cutlass.const_expr(self.ragged):  # noqa: SIM102  decided when compiled: not joined by `and`
            if block == 0:
                rest = [whole * self.chunk + thread]
                self.move([x[0, None] for x in inputs], out[0, None], rest, columns, 1)

    @cute.jit
    def move(self, sources: list[cute.Tensor], target: cute.Tensor, indices: list[Int64], end, size):
        """Compute the chunks of these ascending indices, as far as they lie before ``end``."""
        if indices[0] < end:
            loaded = [[load(source, index, size) for source in sources] for index in indices]
            for index, chunks in zip(indices, loaded, strict=True):
                store(self.apply(*[chunk.load() for chunk in chunks]), target, index, end, size)

    @cute.jit
    def launch(self, inputs: list[cute.Tensor], out: cute.Tensor, stream: CUstream):
        inputs, out = [_as_rows(tensor) for tensor in inputs], _as_rows(out)
        rows, columns = _extents(out)
        chunks = _ceil_div(columns, self.chunk)
        # Threads side by side in a row: a power of two, so that each finds its place by shifts.
        shift = Int32(0)
        while shift < self.tiling.threads.bit_length() - 1 and (Int64(1) << shift) < chunks:
            shift += 1
        tiles_per_row = _ceil_div(chunks, Int64(self.tiling.unroll) << shift)
        tiles = _ceil_div(rows, Int64(self.tiling.threads) >> shift) * tiles_per_row
        if tiles > 0:  # CUDA refuses an empty grid
            self.kernel(inputs, out, shift, Int32(tiles_per_row)).launch(
                grid=[Int32(tiles), 1, 1], block=[self.tiling.threads, 1, 1], stream=stream
            )


def _as_rows(tensor: cute.Tensor) -> cute.Tensor:
    """A tensor of rank 1 as a single row."""
    if cute.rank(tensor) == 2:
        return tensor
    return cute.make_tensor(tensor.iterator, cute.make_layout((1, cute.size(tensor)), stride=(0, 1)))


def _extents(tensor: cute.Tensor) -> tuple[Int64, Int64]:
    # tensor.shape cuts extents of 64 bits to 32; cute.size does not.
    return Int64(cute.size(tensor, mode=[0])), Int64(cute.size(tensor, mode=[1]))


def _ceil_div(dividend: Int64, divisor: Int64) -> Int64:
    # cute.ceil_div takes no run-time divisor of 64 bits.
    return (dividend + divisor - 1) // divisor
