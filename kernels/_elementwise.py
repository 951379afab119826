"""What elementwise kernels share: how they walk tensors of one shape, whatever their row strides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32, Int64

import aot

from ._anywhere import LONGEST, SHORTEST, cut_ends, load_around, shifted
from ._device import (
    VECTOR_BYTES,
    WARP,
    KernelObject,
    await_previous,
    chunk_elements,
    fetch,
    launched_early,
    load,
    store,
)


@dataclass(frozen=True)
class ElementwiseTiling:
    """A thread moves ``unroll`` chunks. If rows are not adjacent, up to ``width`` threads work side by side in a row."""

    threads: int
    unroll: int  # chunks per thread, all loaded before the first is used
    vector: bool
    width: int = WARP  # upper bound; threads past the end of a row are idle
    shifted: bool = False  # whole chunks of rows that may start anywhere: see `Elementwise.move_anywhere`
    cached: bool = True  # reads through the L1 cache

    def validate(self, target: aot.Target) -> None:
        if self.threads & (self.threads - 1) or not WARP <= self.threads <= target.max_threads:
            raise aot.DeclarationError(
                f"{self.threads} threads per block; "
                f"{target.arch} takes a power of two from {WARP} to {target.max_threads}"
            )
        if self.width & (self.width - 1) or self.width > self.threads:
            raise aot.DeclarationError(f"{self.width} threads side by side: not a power of two up to {self.threads}")


# By kind of access.
ELEMENTWISE_TILINGS = {
    "vector": ElementwiseTiling(threads=256, unroll=1, vector=True, width=8),
    "scalar": ElementwiseTiling(threads=256, unroll=4, vector=False),
}

# For rows of which halves, or the next row, start in the middle of a chunk: the bytes of a smaller chunk that all of them are
# made of and start at, with its tiling and the longest row that it is for; then the tiling for all others. Measured on an
# H200: silu_and_mul of 6365 x 36472 takes 164 us in chunks of 8 bytes, and 175 us in whole chunks that are shifted into
# place; 146 x 3940 takes 2.5 us in chunks of 4 bytes, and 2.3 us in whole chunks.
NARROW_TILINGS = (
    (8, ElementwiseTiling(threads=256, unroll=2, vector=False), LONGEST),
    (4, ElementwiseTiling(threads=256, unroll=4, vector=False), 1536),
)
SHIFTED_TILING = ElementwiseTiling(threads=256, unroll=1, vector=False, width=8, shifted=True)

# Chunks of a small problem. Measured on an H200: bypassing the L1 cache makes those faster and larger ones slower.
SMALL = 1 << 19


class Elementwise(KernelObject, ABC):
    """``out = apply(*inputs)`` over tensors of one shape, of rank 1 or 2, with any row stride.

    Subclasses define ``apply`` on the values of a chunk, and on numbers that a call passes to every thread, and a
    ``__call__`` with named arguments.
    """

    lines = True  # whether rows may lie without gaps, all of them as one line

    def __init__(self, tiling: ElementwiseTiling, target: aot.Target, rank: int, dtype: str) -> None:
        tiling.validate(target)
        self.tiling = tiling
        self.early = launched_early(target)
        self.chunk = chunk_elements(dtype, tiling.vector)
        self.rank = rank
        # A single row may end with part of a chunk. With several rows, the next one would start misaligned, unless they
        # have no gaps and are treated as one row.
        self.line_chunk = chunk_elements(dtype, tiling.vector or rank == 2)
        self.line_unroll = tiling.unroll if self.line_chunk == self.chunk else 1
        self.ragged = tiling.vector == (rank == 1) and self.line_chunk > 1
        columns = aot.Dim("n", divisible_by=1 if rank == 1 else self.chunk, bits=64)
        shape = (columns,) if rank == 1 else (aot.Dim("m", bits=64), columns)
        self.tensor = aot.Tensor(dtype, shape, align=VECTOR_BYTES if tiling.vector else None)

    @abstractmethod
    def apply(self, *values: cute.TensorSSA | Int32) -> cute.TensorSSA: ...

    @cute.jit
    def launch(self, inputs: list[cute.Tensor], out: cute.Tensor, stream: CUstream, numbers: tuple[Int32, ...] = ()):
        if cutlass.const_expr(self.rank == 1):
            self.launch_line(inputs, out, stream, numbers)
        elif cutlass.const_expr(not self.lines):
            self.launch_rows(inputs, out, stream, numbers)
        else:
            rows, columns = extents(out)
            # Rows without gaps are treated as one row, so a thread finds its place without a division.
            gapless = rows > 0
            for tensor in (*inputs, out):
                gapless = gapless and tensor.stride[0] == columns
                if cutlass.const_expr(not self.tiling.vector):
                    gapless = gapless and tensor.iterator.toint() % VECTOR_BYTES == 0
            if gapless:
                line = cute.make_layout(rows * columns)
                starts = [tensor.iterator.align(VECTOR_BYTES) for tensor in (*inputs, out)]
                lines = [cute.make_tensor(start, line) for start in starts]
                self.launch_line(lines[:-1], lines[-1], stream, numbers)
            else:
                self.launch_rows(inputs, out, stream, numbers)

    @cute.jit
    def launch_anywhere(self, inputs: list[cute.Tensor], out: cute.Tensor, stream: CUstream):
        """Launch with smaller chunks if all rows are made of them and start at them; otherwise with whole chunks of ``out``,
        and of inputs wherever they start; short rows element by element.
        """
        size = out.element_type.width // 8
        _, columns = extents(out)
        starts = columns * size
        for tensor in (*inputs, out):
            starts = starts | tensor.iterator.toint() | Int64(tensor.stride[0]) * size
        launched = Int32(0)
        for width, tiling, longest in NARROW_TILINGS:
            if cutlass.const_expr(width > size):  # noqa: SIM102  decided when compiled: not joined by `and`
                if launched == 0 and starts % width == 0 and columns <= longest:
                    self.tiled(tiling, width // size).launch_rows(inputs, out, stream)
                    launched = Int32(1)
        if launched == 0:
            if columns > SHORTEST and columns <= LONGEST:
                self.tiled(SHIFTED_TILING, VECTOR_BYTES // size).launch_rows(inputs, out, stream)
            else:
                self.launch_rows(inputs, out, stream)

    def tiled(self, tiling: ElementwiseTiling, chunk: int) -> Elementwise:
        """This kernel with another tiling; ``chunk`` is the number of elements of a chunk."""
        own = copy(self)
        own.tiling, own.chunk = tiling, chunk
        return own

    def row(self, tensor: cute.Tensor, row: Int64) -> cute.Tensor:
        """A row, of which it is known where chunks start."""
        cut = tensor[row, None]
        start = cut.iterator.align(self.chunk * tensor.element_type.width // 8)
        return cute.make_tensor(start, cut.layout)

    @cute.jit
    def launch_line(
        self, inputs: list[cute.Tensor], out: cute.Tensor, stream: CUstream, numbers: tuple[Int32, ...] = ()
    ):
        chunks = _ceil_div(Int64(cute.size(out)), Int64(self.line_chunk))
        blocks = _ceil_div(chunks, Int64(self.tiling.threads * self.line_unroll))
        if blocks > 0:  # CUDA refuses an empty grid
            if cutlass.const_expr(self.tiling.vector):
                if chunks <= SMALL:
                    self.past_cache().line_kernel(inputs, out, numbers).launch(**self.grid(blocks), stream=stream)
                else:
                    self.line_kernel(inputs, out, numbers).launch(**self.grid(blocks), stream=stream)
            else:
                self.line_kernel(inputs, out, numbers).launch(**self.grid(blocks), stream=stream)

    def past_cache(self) -> Elementwise:
        """This kernel without the L1 cache."""
        return self.tiled(replace(self.tiling, cached=False), self.chunk)

    @cute.kernel
    def line_kernel(self, inputs: list[cute.Tensor], out: cute.Tensor, numbers: tuple[Int32, ...]):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        size = Int64(cute.size(out))
        whole = size // self.line_chunk
        first = Int64(block) * (self.tiling.threads * self.line_unroll) + thread
        indices = [first + i * self.tiling.threads for i in range(self.line_unroll)]
        await_previous(self.early)
        self.move(inputs, out, indices, whole, self.line_chunk, numbers)
        if cutlass.const_expr(self.ragged):  # noqa: SIM102  decided when compiled: not joined by `and`
            if block == 0:
                self.move(inputs, out, [whole * self.line_chunk + thread], size, 1, numbers)

    @cute.jit
    def launch_rows(
        self, inputs: list[cute.Tensor], out: cute.Tensor, stream: CUstream, numbers: tuple[Int32, ...] = ()
    ):
        rows, columns = extents(out)
        chunks = columns // self.chunk
        if cutlass.const_expr(self.tiling.shifted):
            chunks = cutlass.max(chunks, Int64(WARP))  # as many threads as there may be elements at the ends
        # The number of threads side by side in a row is a power of two, so that a thread finds its place by shifts. It is
        # the smallest one that covers the row with `unroll` chunks per thread.
        shift = Int32(0)
        while shift < self.tiling.width.bit_length() - 1 and (Int64(self.tiling.unroll) << shift) < chunks:
            shift += 1
        tiles_per_row = _ceil_div(chunks, Int64(self.tiling.unroll) << shift)
        blocks = _ceil_div(rows * tiles_per_row, Int64(self.tiling.threads) >> shift)
        if blocks > 0:  # CUDA refuses an empty grid
            arguments = (inputs, out, shift, Int32(tiles_per_row), numbers)
            if cutlass.const_expr(self.tiling.vector and not self.lines):
                if rows * chunks <= SMALL:
                    self.past_cache().rows_kernel(*arguments).launch(**self.grid(blocks), stream=stream)
                else:
                    self.rows_kernel(*arguments).launch(**self.grid(blocks), stream=stream)
            else:
                self.rows_kernel(*arguments).launch(**self.grid(blocks), stream=stream)

    @cute.kernel
    def rows_kernel(
        self,
        inputs: list[cute.Tensor],
        out: cute.Tensor,
        shift: Int32,
        tiles_per_row: Int32,
        numbers: tuple[Int32, ...],
    ):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rows, columns = extents(out)
        # A row's tiles go to neighbouring groups of threads. Rows of several tiles fill memory long before
        # their number exceeds 32 bits.
        row = Int64(block) * (self.tiling.threads >> shift) + (thread >> shift)
        tile = Int32(0)
        if tiles_per_row > 1:
            tile = Int32(row) % tiles_per_row
            row = Int64(Int32(row) // tiles_per_row)
        await_previous(self.early)
        if row < rows:
            lane = thread & ((1 << shift) - 1)
            first = Int64(tile) * (self.tiling.unroll << shift) + lane
            indices = [first + (i << shift) for i in range(self.tiling.unroll)]
            if cutlass.const_expr(self.tiling.shifted):
                self.move_anywhere([self.short(tensor[row, None]) for tensor in (out, *inputs)], Int32(first), numbers)
            else:
                sources, end = [self.row(x, row) for x in inputs], columns // self.chunk
                self.move(sources, self.row(out, row), indices, end, self.chunk, numbers)

    def grid(self, blocks: Int64) -> dict:
        """The arguments of ``launch``."""
        return {"grid": [Int32(blocks), 1, 1], "block": [self.tiling.threads, 1, 1], "use_pdl": self.early}

    @cute.jit
    def move(self, sources: list[cute.Tensor], target: cute.Tensor, indices: list[Int64], end, size, numbers):
        """Compute the chunks at these ascending indices, if they are before ``end``."""
        if indices[0] < end:
            get = fetch if len(indices) == 1 else load
            loaded = [[get(source, index, size, self.tiling.cached) for source in sources] for index in indices]
            for index, chunks in zip(indices, loaded, strict=True):
                store(self.apply(*[chunk.load() for chunk in chunks], *numbers), target, index, end, size)

    def short(self, row: cute.Tensor) -> cute.Tensor:
        """A row whose length has 32 bits."""
        return cute.make_tensor(row.iterator, cute.make_layout(Int32(cute.size(row))))

    @cute.jit
    def move_anywhere(self, rows: list[cute.Tensor], index: Int32, numbers):
        """Compute chunk ``index`` of the first row, if there is one, and element ``index`` of its ends."""
        (body, *others), (edge, *edges), _ = cut_ends(rows, index, self.chunk)
        around = [load_around(other, index, self.chunk) for other in others]
        if index < cute.size(edge):  # while chunks are on their way
            elements = [fetch(other, index, 1).load() for other in edges]
            store(self.apply(*elements, *numbers), edge, index, cute.size(edge), 1)
        chunks = [shifted(*chunk).load() for chunk in around]
        store(self.apply(*chunks, *numbers), body, index, cute.size(body) // self.chunk, self.chunk)


def extents(tensor: cute.Tensor) -> tuple[Int64, Int64]:
    # tensor.shape cuts extents of 64 bits to 32; cute.size does not.
    return Int64(cute.size(tensor, mode=[0])), Int64(cute.size(tensor, mode=[1]))


def _ceil_div(dividend: Int64, divisor: Int64) -> Int64:
    # cute.ceil_div takes no run-time divisor of 64 bits.
    return (dividend + divisor - 1) // divisor
