"""What kernels share that must read a whole row before they can write it: how rows are reduced."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

import aot

from .._device import VECTOR_BYTES, WARP, KernelObject, await_previous, chunk_elements, launched_early, load
from .._versions import SmemAllocator


@dataclass(frozen=True)
class RowTiling:
    """A block computes ``rows`` rows with ``threads`` threads each. A thread holds ``unroll`` chunks at a time."""

    threads: int
    unroll: int
    rows: int = 1
    looped: bool = False  # loops over rows that are longer than the threads can hold
    blocks: int = 0  # minimum resident blocks per SM (limits registers); 0 = unconstrained

    @property
    def label(self) -> str:
        return f"looped{self.threads}" if self.looped else f"threads{self.threads}"

    @property
    def chunks(self) -> int:
        return self.threads * self.unroll

    def validate(self, target: aot.Target) -> None:
        block = self.threads * self.rows
        if block % WARP or block > target.max_threads:
            raise aot.DeclarationError(
                f"{self.rows} rows of {self.threads} threads make a block of {block}; "
                f"{target.arch} takes whole warps, up to {target.max_threads} threads"
            )
        if self.threads & (self.threads - 1) or (self.rows > 1 and self.threads > WARP):
            raise aot.DeclarationError(
                f"{self.threads} threads cannot add up a row: must be a power of two, "
                f"and a whole block if more than {WARP}, not one of {self.rows} rows"
            )


# By kind of access. A row gets as many threads as can hold it; the last tiling takes longer rows.
ROW_TILINGS = {
    "vector": (
        RowTiling(threads=8, unroll=4, rows=16),
        RowTiling(threads=32, unroll=4, rows=4),
        RowTiling(threads=128, unroll=4),
        RowTiling(threads=256, unroll=4),
        RowTiling(threads=512, unroll=4),
        RowTiling(threads=512, unroll=4, looped=True),
    ),
    "scalar": (
        RowTiling(threads=32, unroll=16, rows=4),
        RowTiling(threads=256, unroll=8, looped=True),
    ),
}


class RowKernel(KernelObject):
    """The base of kernels that reduce the rows of a matrix, each row by a group of threads.

    Subclasses define the kernel; ``reductions`` says how often it reduces over the threads of a row.
    """

    reductions = 1

    def __init__(self, tiling: RowTiling, target: aot.Target, chunk: int) -> None:
        self.tiling = tiling
        self.early = launched_early(target)
        self.chunk = chunk  # elements

    @cute.jit
    def place(self, x: cute.Tensor) -> tuple[Int32, Int32, Int32]:
        """The row of this thread, its first chunk in the row, and the end of the chunks that it may write.

        Threads past the last row compute that row too, because warps reduce together. They write nothing.
        """
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rows, columns = x.shape
        row = block * self.tiling.rows + thread // self.tiling.threads
        end = columns // self.chunk if row < rows else 0
        await_previous(self.early)
        return cutlass.min(row, rows - 1), thread % self.tiling.threads, end

    def indices(self, first: Int32) -> list[Int32]:
        """The indices of the chunks that a thread holds. Neighbouring threads hold neighbouring chunks."""
        return [first + i * self.tiling.threads for i in range(self.tiling.unroll)]

    def load(self, row: cute.Tensor, first: Int32, cached: bool = True) -> list[cute.Tensor]:
        """The chunks that a thread holds. Past the end of the row, the last chunk is repeated."""
        return [load(row, index, self.chunk, cached) for index in self.indices(first)]

    def full(self, value: float) -> cute.TensorSSA:
        """An accumulator: a chunk of f32."""
        return cute.full(self.chunk, value, Float32)

    def steps(self, columns: Int32) -> Int32:
        """How often the threads of a looped tiling must load to cover a row."""
        return cute.ceil_div(columns // self.chunk, self.tiling.chunks)

    def scratch(self) -> cute.Tensor | None:
        """Shared memory for the reductions of a block. Call this once in a kernel."""
        if self.tiling.threads <= WARP:
            return None
        layout = cute.make_layout((self.tiling.threads // WARP, self.reductions))
        return SmemAllocator().allocate_tensor(Float32, layout)

    @cute.jit
    def over_row(self, combine, value: Float32, scratch, use: int) -> Float32:
        """A value combined over the threads of a row; each of them gets the result.

        Every thread of the block must call this, once for each ``use``, a number below ``reductions``.
        """
        threads = self.tiling.threads
        value = cute.arch.warp_reduction(value, combine, threads_in_group=min(threads, WARP))
        if cutlass.const_expr(threads > WARP):
            thread, _, _ = cute.arch.thread_idx()
            warps = threads // WARP
            if thread % WARP == 0:
                scratch[thread // WARP, use] = value
            cute.arch.sync_threads()
            value = cute.arch.warp_reduction(scratch[thread % warps, use], combine, threads_in_group=warps)
        return value

    def sum_over_row(self, values: cute.TensorSSA, scratch, use: int = 0) -> Float32:
        return self.over_row(add, values.reduce(cute.ReductionOp.ADD, Float32(0), 0), scratch, use)

    def grid(self, rows: Int32) -> dict:
        """The arguments of ``launch``."""
        return {
            "grid": [cute.ceil_div(rows, self.tiling.rows), 1, 1],
            "block": [self.tiling.threads * self.tiling.rows, 1, 1],
            "use_pdl": self.early,
            "min_blocks_per_mp": self.tiling.blocks,
            "preferred_smem_carveout": -1,  # the default; if it is left out, CuTe DSL asks the driver
        }


def add(left: Float32, right: Float32) -> Float32:
    return left + right


def maximum(left: Float32, right: Float32) -> Float32:
    """The larger value; NaN if one of them is NaN."""
    return cute.arch.fmax(left, right, nan=True)


@dataclass(frozen=True)
class RowTensors:
    """The arguments of kernels over rows: a matrix of ``m`` rows and ``n`` columns, and a vector as long as a row."""

    dtype: str
    vector: bool  # whole chunks, aligned

    @property
    def chunk(self) -> int:
        return chunk_elements(self.dtype, self.vector)

    @property
    def columns(self) -> aot.Dim:
        return aot.Dim("n", divisible_by=self.chunk)

    @property
    def matrix(self) -> aot.Tensor:
        return self._tensor("m", self.columns)

    @property
    def row(self) -> aot.Tensor:
        return self._tensor(self.columns)

    def _tensor(self, *shape: str | aot.Dim) -> aot.Tensor:
        return aot.Tensor(self.dtype, shape, align=VECTOR_BYTES if self.vector else None)


def row_specs(
    target: aot.Target, tilings: tuple[RowTiling, ...], chunk: int, make, arguments: dict, guards: tuple[str, ...] = ()
) -> list[aot.Spec]:
    """One spec per tiling of a kernel over rows of ``n`` columns; ``make(tiling, target, chunk)`` is the jit object."""
    specs = []
    for tiling in tilings:
        tiling.validate(target)
        fits = () if tiling.looped else (f"n <= {tiling.chunks * chunk}",)
        specs.append(aot.Spec(make(tiling, target, chunk), arguments, (*guards, *fits), tiling.label))
    return specs
