"""Gradients of attention for sm_90a in two kernels of one shape, for scores with a soft cap.

Rows are keys with their values, or queries with their ``grad_out``. A block of threads keeps ``rows`` rows in shared memory and
goes over blocks of ``columns`` columns, which are the other of the two. A consumer warp group has 64 rows and needs nothing from
the others:

* ``scores = rows @ columns.T`` and ``slopes = row values @ column values.T``, both operands from shared memory.
* They become ``P`` and ``dS`` in registers, where they are left operands.
* ``grad_k += dS @ q`` and ``grad_v += P @ grad_out`` if rows are keys; ``grad_q += dS @ k`` if rows are queries.

Scores are computed twice: seven products in place of the five of ``_backward_sm90``. In return, nothing is added in memory. Wide
heads are cut: both warp groups have the same 64 rows, and each computes a half of the columns of the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import warpgroup

import aot

from ..._device import WARP
from ...sm90.hardware import (
    ALIGNMENT,
    BARRIER_BYTES,
    CONSUMER_REGISTERS,
    CONSUMERS,
    WGMMA_ROWS,
    accumulator_row,
)
from ...sm90.pipeline import consumer_state
from ...sm90.softmax import all_before_wait, score_product, start_product, value_product
from .._softmax import round_to, scale_sums
from ..prompts._attention import ELEMENT_BYTES
from ..prompts._store_sm90 import Place
from ._backward import column_of, require_room, row_of
from ._backward_tma_sm90 import STAGES, Shared, TmaBackward, thread_of_group, turned


@dataclass(frozen=True)
class Tiling:
    """``rows`` rows against ``columns`` columns at a time."""

    columns: int
    dim: int
    value_dim: int
    parts: int = 1  # of the columns of gradients; each is computed by a warp group

    @property
    def label(self) -> str:
        return f"split{self.rows}x{self.columns}"

    @property
    def bands(self) -> int:
        """64 rows each."""
        return CONSUMERS // self.parts

    @property
    def rows(self) -> int:
        return self.bands * WGMMA_ROWS

    @property
    def shared_bytes(self) -> int:
        statistics = 2 * STAGES * self.columns * 4
        return (
            (self.rows + STAGES * self.columns) * (self.dim + self.value_dim) * ELEMENT_BYTES
            + statistics
            + 32 * BARRIER_BYTES
            + 5 * ALIGNMENT
        )

    def validate(self, target: aot.Target) -> None:
        if self.columns % WARP or any(width % (16 * self.parts) for width in (self.dim, self.value_dim)):
            raise aot.DeclarationError(
                f"{self.columns} columns of {self.dim} and {self.value_dim} elements",
                hint=f"columns are a multiple of {WARP}, elements of {16 * self.parts}",
            )
        require_room(self, f"rows and {STAGES} stages", target)


class Products(NamedTuple):
    scores: cute.TiledMma
    sums: cute.TiledMma
    value_sums: cute.TiledMma


@dataclass(frozen=True)
class Consumer:
    """Operands and accumulators of a consumer warp group."""

    mmas: Products
    lefts: tuple[cute.Tensor, cute.Tensor]
    rights: tuple[cute.Tensor, cute.Tensor]
    across: tuple[cute.Tensor, cute.Tensor]  # the same as ``rights`` for products along columns
    sums: cute.Tensor
    value_sums: cute.Tensor | None
    place: Place


class SplitBackward(TmaBackward):
    sides = (True, False)

    @property
    def parts(self) -> int:
        return self.tiling.parts

    def products(self) -> Products:
        tiling = self.tiling
        widths = (width // tiling.parts for width in (tiling.dim, tiling.value_dim))
        return Products(
            score_product(self.dtype, tiling.columns), *(value_product(self.dtype, width) for width in widths)
        )

    # The consumers.

    def consume(self, mmas, memory, operands, scoring, scale, statistics, side, tile, group) -> None:
        cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
        pipes, shared = memory
        consumer = self.consumer(mmas, shared, side.by_keys, group - 1)
        self.add_up(consumer, pipes, shared, scoring, statistics, side, tile)
        scale_sums(consumer.sums, [scale, scale])
        sums = (consumer.sums, consumer.value_sums) if side.by_keys else (consumer.sums,)
        stored = [
            (one, mmas.sums, own, operand) for one, own, operand in zip(sums, shared[:2], operands[4:], strict=False)
        ]
        self.store_all(consumer.place, stored, side, tile)

    def consumer(self, mmas: Products, shared: Shared, by_keys: bool, group: Int32) -> Consumer:
        tiling, thread = self.tiling, thread_of_group()
        band, part = (group, Int32(0)) if tiling.parts == 1 else (Int32(0), group)
        lefts, rights, across, sums = [], [], [], []
        for i, mma in enumerate((mmas.sums, mmas.value_sums)):
            width = cute.size(shared[i], mode=[1])
            rows = cute.local_tile(shared[i], (WGMMA_ROWS, width), (band, 0, 0))
            lefts.append(mmas.scores.make_fragment_A(mmas.scores.get_slice(0).partition_A(rows)))
            rights.append(mmas.scores.make_fragment_B(mmas.scores.get_slice(0).partition_B(shared[2 + i])))
            own = turned(shared[2 + i])
            if tiling.parts > 1:
                own = cute.local_tile(own, (width // tiling.parts, tiling.columns), (part, 0, None))
            across.append(mma.make_fragment_B(mma.get_slice(0).partition_B(own)))
            shape = mma.partition_shape_C((WGMMA_ROWS, width // tiling.parts))
            sums.append(cute.make_rmem_tensor(shape, Float32) if by_keys or i == 0 else None)
        place = Place(group, thread, band, part, tiling.bands)
        return Consumer(mmas, tuple(lefts), tuple(rights), tuple(across), *sums, place)

    @cute.jit
    def add_up(self, consumer, pipes, shared, scoring, statistics, side, tile):
        """The sums of a tile's gradients."""
        blocks = side.blocks(tile)
        row = tile.index * self.tiling.rows + consumer.place.band * WGMMA_ROWS + accumulator_row(consumer.place.thread)
        consumer.sums.fill(0.0)
        held = None
        if cutlass.const_expr(side.by_keys):
            consumer.value_sums.fill(0.0)
        else:
            held = self.row_statistics(statistics, tile, row)
        state = consumer_state(STAGES)
        for _ in cutlass.range(side.column_heads(), unroll=1):
            for block in cutlass.range(blocks.begin, blocks.end, unroll=1):
                state = self.add_block(consumer, pipes, shared, scoring, held, side, tile, blocks, block, row, state)

    @cute.jit
    def add_block(self, consumer, pipes, shared, scoring, held, side, tile, blocks, block, row, state):
        """What one block of columns adds."""
        mmas, stage, columns = consumer.mmas, state.index, self.tiling.columns
        scored = mmas.scores.partition_shape_C((WGMMA_ROWS, columns))
        scores, slopes = (cute.make_rmem_tensor(scored, Float32) for _ in range(2))
        pipes.columns.consumer_wait(state)
        start_product(mmas.scores, scores, consumer.lefts[0], consumer.rights[0][None, None, None, stage], True)
        pipes.column_values.consumer_wait(state)
        start_product(mmas.scores, slopes, consumer.lefts[1], consumer.rights[1][None, None, None, stage], True)
        statistic, own = row_of, held
        if cutlass.const_expr(side.by_keys):
            statistic = column_of
            own = [self.statistics_of_columns(shared.statistics, which, stage) for which in range(2)]
        warpgroup.wait_group(1)  # for the scores, not for the slopes
        self.cap(scores, scoring)
        side.mask(scores, tile, blocks, block, row)
        weighing = mmas.sums.partition_shape_A((WGMMA_ROWS, columns))
        weights, gradients = (cute.make_rmem_tensor(weighing, self.dtype) for _ in range(2))
        if cutlass.const_expr(side.by_keys):
            self.weigh(scores, weights, scoring, own[0], statistic)
            across = consumer.across[1][None, None, None, stage]
            start_product(mmas.value_sums, consumer.value_sums, weights, across, False)
            warpgroup.wait_group(1)  # for the slopes, not for the sums
        else:
            self.weigh(scores, None, scoring, own[0], statistic)
            all_before_wait(scores)
            warpgroup.wait_group(0)  # for the slopes
        for i in cutlass.range_constexpr(cute.size(scores)):
            slopes[i] = scores[i] * (slopes[i] - own[1][statistic(i)])
        round_to(gradients, slopes)
        start_product(mmas.sums, consumer.sums, gradients, consumer.across[0][None, None, None, stage], False)
        warpgroup.wait_group(1)  # all but this product have ended: column values are no longer read
        pipes.column_values.consumer_release(state)
        warpgroup.wait_group(0)
        cute.arch.sync_warp()  # all lanes have read the statistics
        pipes.columns.consumer_release(state)
        state.advance()
        return state
