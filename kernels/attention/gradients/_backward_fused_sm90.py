"""Gradients of attention by one kernel for sm_90a that adds to sums of ``grad_q``, between two kernels over rows.

The first computes the statistics of queries and clears the sums; the last scales and rounds the sums. What the kernel between
them does with tiles of keys is in ``_backward_sm90``, and in ``_backward_wide_sm90`` for wide heads.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Boolean, Float32, Int32, Int64

from ..._device import await_previous, store
from ...sm90.hardware import PRODUCER_REGISTERS
from ..prompts._producer_sm90 import Operand
from ._backward import CHUNK
from ._backward_tma_sm90 import TmaBackward
from ._grad_q_sm90 import BOX, SLAB, column_in_order

ROWS = 2  # of which a thread of the last kernel has a part


class Operands(NamedTuple):
    keys: Operand
    values: Operand
    queries: Operand
    grads: Operand
    grad_k: Operand
    grad_v: Operand
    sums: Operand  # of ``grad_q``


class FusedBackward(TmaBackward):
    @cute.jit
    def __call__(
        self, grad_out: cute.Tensor, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: cute.Tensor,
        grad_q: cute.Tensor, grad_k: cute.Tensor, grad_v: cute.Tensor, grad_sinks: cute.Tensor, scale: Float32, left: Int32,
        right: Int32, q_starts, k_starts, soft_cap: Float32, sinks, deterministic: Boolean, scratch: cute.Tensor, stream: CUstream,
    ):  # fmt: skip
        self.dtype = q.element_type
        sums = self.compact(scratch, q)
        statistics = self.statistics(scratch, cute.size(sums), q, turns=True)
        scoring = self.scoring(scale, Float32(0))
        problem, count = self.problem(
            q, k, (q_starts, k_starts), left, right, True, self.tiling.rows, in_turn=deterministic
        )
        if self.any_pair(q, k, grad_q, grad_k, grad_v, grad_sinks, stream):
            self.launch_rows(grad_out, out, lse, statistics, sums, sinks, grad_sinks, stream)
            inputs, gradients = (grad_out, q, k, v), (grad_k, grad_v)
            self.launch(inputs, gradients, sums, scoring, scale, statistics, problem, deterministic, count, stream)
            launch = self.row_launch(q, self.tiling.dim * CHUNK // BOX, stream, ROWS)
            self.finish_kernel(sums, grad_q, scale).launch(**launch)

    def compact(self, scratch: cute.Tensor, q: cute.Tensor) -> cute.Tensor:
        """The sums of ``grad_q`` at the beginning of the workspace, with the modes of ``q``. What one copy adds is contiguous."""
        columns, parts = SLAB, self.tiling.dim // SLAB
        *outer, tokens, heads, _ = q.shape
        of_part = cute.assume(Int64(tokens) * columns, divby=columns)
        of_sequence = cute.assume(of_part * (heads * parts), divby=columns)
        strides = (*(of_sequence for _ in outer), columns, of_part, 1)
        return cute.make_tensor(
            scratch.iterator, cute.make_layout((*outer, tokens, heads * parts, columns), stride=strides)
        )

    @cute.jit
    def produce(self, warp, pipes, shared, operands, adder, statistics, side, tile):
        """What each warp of the producer warp group does for a tile."""
        cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
        if warp == 0:
            self.load_tiles(pipes, shared, operands, side, tile)
        if warp == 1:
            self.load_statistics(pipes.columns, shared.statistics, statistics, side, tile)
        if warp == 2:
            adder.add_parts(side, tile, self.turns_of(statistics, tile))
        if warp == 3:
            adder.await_turns(side, tile, self.turns_of(statistics, tile))

    def column_at(self, i: int) -> int:
        """Which of 16 columns lies at place ``i`` of the sums."""
        return i if self.tiling.turned else column_in_order(i)

    # Kernels over rows.

    @cute.kernel
    def finish_kernel(self, sums: cute.Tensor, grad_q: cute.Tensor, scale: Float32):
        """Scale the sums of ``grad_q``, put the columns in order, and round them."""
        dim = self.tiling.dim
        await_previous(self.early)
        held = [cute.make_rmem_tensor(BOX, Float32) for _ in range(ROWS)]
        ordered = cute.make_rmem_tensor(BOX, Float32)
        for i in cutlass.range_constexpr(ROWS):
            row, place, chunk = self.row_of_thread(grad_q, dim * CHUNK // BOX, ROWS, i)
            if row < cute.size(grad_q.shape) // dim and chunk < dim // BOX:
                own, box = self.place_of_sums(place, chunk, BOX)
                if cutlass.const_expr(not self.tiling.turned):
                    box = box ^ place[-2] % 2  # see ``Adder``
                cute.autovec_copy(cute.local_tile(sums[own], (BOX,), (box,)), held[i])
        for i in cutlass.range_constexpr(ROWS):
            row, place, chunk = self.row_of_thread(grad_q, dim * CHUNK // BOX, ROWS, i)
            if row < cute.size(grad_q.shape) // dim and chunk < dim // BOX:
                for j in cutlass.range_constexpr(BOX):
                    ordered[self.column_at(j)] = held[i][j]
                store(ordered.load() * scale, grad_q[(*place, None)], chunk, dim // BOX, BOX)
