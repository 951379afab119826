"""Gradients of attention by one kernel for sm_90a that adds to sums of ``grad_q``, between two kernels over rows.

The first computes the statistics of queries and clears the sums; the last scales and rounds the sums. What the kernel between
them does with tiles of keys is in ``_backward_sm90``, and in ``_backward_wide_sm90`` for wide heads.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64
from cutlass.cute.nvgpu import cpasync

from ..._device import await_previous, store
from ..._versions import SmemAllocator
from ..prompts._producer_sm90 import Operand
from ._backward import CHUNK
from ._backward_tma_sm90 import Operands, Pipelines, Shared, TmaBackward, store_operand
from ._grad_q_sm90 import BOX, SLAB, Adder, Slopes, column_in_order, make_adder, shared_slopes

ROWS = 2  # of which a thread of the last kernel has a part


class Memory(NamedTuple):
    pipes: Pipelines
    shared: Shared
    slopes: Slopes
    adder: Adder
    weights: cute.Tensor | None  # of this thread


class FusedBackward(TmaBackward):
    """Subclasses define ``slabs``: the layout of what a block hands on of ``grad_q``, and the extents that one copy adds."""

    def sums_in(self, scratch: cute.Tensor, q: cute.Tensor) -> cute.Tensor:
        """The sums of ``grad_q`` at the beginning of the workspace, with the modes of ``q``. What one copy adds is contiguous."""
        columns, parts = SLAB, self.tiling.dim // SLAB
        *outer, tokens, heads, _ = q.shape
        of_part = cute.assume(Int64(tokens) * columns, divby=columns)
        of_sequence = cute.assume(of_part * (heads * parts), divby=columns)
        strides = (*(of_sequence for _ in outer), columns, of_part, 1)
        return cute.make_tensor(
            scratch.iterator, cute.make_layout((*outer, tokens, heads * parts, columns), stride=strides)
        )

    def sum_operand(self, sums: cute.Tensor) -> Operand:
        return store_operand(cpasync.CopyReduceBulkTensorTileS2GOp(), self.by_token(sums), *self.slabs())

    def allocate(self, allocator: SmemAllocator, operands: Operands, by_keys: bool) -> Memory:
        pipes, shared = super().allocate(allocator, operands, by_keys)
        tiling = self.tiling
        slopes = shared_slopes(allocator, self.dtype, tiling.columns, tiling.rows, tiling.slope_stages)
        adder = make_adder(allocator, tiling, operands.sums, self.barriers)
        return Memory(pipes, shared, slopes, adder, self.shared_weights(allocator))

    def shared_weights(self, allocator: SmemAllocator) -> cute.Tensor | None:
        """Where one warp group hands weights to the other, if it does."""

    def produce(self, warp, memory, operands, statistics, side, tile) -> None:
        super().produce(warp, memory, operands, statistics, side, tile)
        self.add_parts(warp, memory.adder, statistics, side, tile)

    @cute.jit
    def add_parts(self, warp, adder, statistics, side, tile):
        if warp == 2:
            adder.add_parts(side, tile, self.turns_of(statistics, tile))
        if warp == 3:
            adder.await_turns(side, tile, self.turns_of(statistics, tile))

    def column_at(self, i: int) -> int:
        """Which of 16 columns lies at place ``i`` of the sums."""
        return i if self.tiling.turned else column_in_order(i)

    # The kernel over rows.

    def finish(self, sums: cute.Tensor, grad_q: cute.Tensor, scale: Float32, stream) -> None:
        launch = self.row_launch(grad_q, self.tiling.dim * CHUNK // BOX, stream, ROWS)
        self.finish_kernel(sums, grad_q, scale).launch(**launch)

    @cute.kernel
    def finish_kernel(self, sums: cute.Tensor, grad_q: cute.Tensor, scale: Float32):
        """Scale the sums of ``grad_q``, put the columns in order, and round them."""
        dim = self.tiling.dim
        await_previous(self.early)
        held = [cute.make_rmem_tensor(BOX, Float32) for _ in range(ROWS)]
        ordered = cute.make_rmem_tensor(BOX, Float32)
        rows = [self.row_of_thread(grad_q, dim * CHUNK // BOX, ROWS, i) for i in range(ROWS)]
        for row, own in zip(rows, held, strict=True):
            if row.exists and row.chunk < dim // BOX:
                of_row, box = self.place_of_sums(row.place, row.chunk, BOX)
                if cutlass.const_expr(not self.tiling.turned):
                    box = box ^ row.place[-2] % 2  # see ``Adder``
                cute.autovec_copy(cute.local_tile(sums[of_row], (BOX,), (box,)), own)
        for row, own in zip(rows, held, strict=True):
            if row.exists and row.chunk < dim // BOX:
                for j in cutlass.range_constexpr(BOX):
                    ordered[self.column_at(j)] = own[j]
                store(ordered.load() * scale, grad_q[(*row.place, None)], row.chunk, dim // BOX, BOX)
