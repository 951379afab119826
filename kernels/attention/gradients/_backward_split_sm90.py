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
from cuda.bindings.driver import CUstream
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import warpgroup

import aot

from ..._device import WARP, await_previous
from ..._versions import SmemAllocator
from ...sm90.hardware import (
    ALIGNMENT,
    BARRIER_BYTES,
    CONSUMER_REGISTERS,
    CONSUMERS,
    PRODUCER_REGISTERS,
    THREADS,
    WARP_GROUP,
    WGMMA_ROWS,
    accumulator_row,
)
from ...sm90.pipeline import consumer_state, init_barriers
from ...sm90.softmax import all_before_wait, score_product, start_product, value_product
from .._softmax import round_to, scale_sums
from ..prompts._attention import ELEMENT_BYTES, Problem
from ._backward import Scoring, Side, Statistics, column_of, row_of
from ._backward_tma_sm90 import STAGES, Place, Shared, TmaBackward, turned


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
        if self.shared_bytes > target.shared_memory:
            raise aot.DeclarationError(
                f"rows and {STAGES} stages take {self.shared_bytes} bytes; a block of {target.arch} has {target.shared_memory}"
            )


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
    @cute.jit
    def __call__(
        self, grad_out: cute.Tensor, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: cute.Tensor,
        grad_q: cute.Tensor, grad_k: cute.Tensor, grad_v: cute.Tensor, grad_sinks: cute.Tensor, scale: Float32, left: Int32,
        right: Int32, q_starts, k_starts, soft_cap: Float32, sinks, deterministic: Boolean, scratch: cute.Tensor, stream: CUstream,
    ):  # fmt: skip
        self.dtype = q.element_type
        scoring, statistics = self.scoring(scale, soft_cap), self.statistics(scratch, 0, q)
        if self.any_pair(q, k, grad_q, grad_k, grad_v, grad_sinks, stream):
            self.launch_rows(grad_out, out, lse, statistics, None, sinks, grad_sinks, stream)
            for by_keys in (True, False):
                problem, count = self.problem(q, k, (q_starts, k_starts), left, right, by_keys, self.tiling.rows)
                rows, columns = ((k, v), (q, grad_out)) if by_keys else ((q, grad_out), (k, v))
                gradients = (grad_k, grad_v) if by_keys else (grad_q,)
                self.launch(rows, columns, gradients, scoring, scale, statistics, problem, count, by_keys, stream)

    def launch(
        self, rows, columns, gradients, scoring, scale, statistics, problem, count, by_keys: bool, stream
    ) -> None:
        tiling, dtype = self.tiling, self.dtype
        widths = (tiling.dim, tiling.value_dim)
        operands = (*self.load_operands(rows, columns), *self.store_operands(gradients, tiling.bands, tiling.parts))
        mmas = Products(
            score_product(dtype, tiling.columns), *(value_product(dtype, width // tiling.parts) for width in widths)
        )
        self.kernel(mmas, operands, scoring, scale, statistics, problem, by_keys).launch(
            grid=[count, 1, 1], block=[THREADS, 1, 1], min_blocks_per_mp=1, use_pdl=self.early, stream=stream
        )

    @cute.kernel
    def kernel(
        self, mmas, operands, scoring: Scoring, scale: Float32, statistics: Statistics, problem: Problem,
        by_keys: cutlass.Constexpr,
    ):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(thread // WARP)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        self.prefetch(warp, operands)
        allocator = SmemAllocator()
        pipes = self.pipelines(allocator.allocate_array(cutlass.Int64, 4 * STAGES), by_keys)
        shared = self.shared(allocator, operands)
        init_barriers()
        await_previous(self.early)
        side = Side(by_keys, problem, self.tiling.rows, self.tiling.columns)
        if index < problem.order.count():  # which only the device knows if sequences have lengths of their own
            tile = side.tile_at(index)
            if group == 0:
                cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
                if warp == 0:
                    self.load_tiles(pipes, shared, operands, side, tile)
                if cutlass.const_expr(by_keys):  # noqa: SIM102 (known when the kernel is compiled)
                    if warp == 1:
                        self.load_statistics(pipes.columns, shared.statistics, statistics, side, tile)
            else:
                cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
                consumer = self.consumer(mmas, shared, by_keys, group - 1, thread % WARP_GROUP)
                self.add_up(consumer, pipes, shared, scoring, statistics, side, tile)
                scale_sums(consumer.sums, [scale, scale])
                self.barriers_of_all().arrive_and_wait()  # the other group needs these rows no more
                sums = (consumer.sums, consumer.value_sums) if by_keys else (consumer.sums,)
                for one, memory, operand in zip(sums, shared[:2], operands[4:], strict=False):
                    self.store_rows(consumer.place, one, mmas.sums, memory, operand, side, tile)
                cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive stores that read it

    # The consumers.

    def consumer(self, mmas: Products, shared: Shared, by_keys: bool, group: Int32, thread: Int32) -> Consumer:
        tiling = self.tiling
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
        warpgroup.wait_group(1)
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
            warpgroup.wait_group(0)
        for i in cutlass.range_constexpr(cute.size(scores)):
            slopes[i] = scores[i] * (slopes[i] - own[1][statistic(i)])
        round_to(gradients, slopes)
        start_product(mmas.sums, consumer.sums, gradients, consumer.across[0][None, None, None, stage], False)
        warpgroup.wait_group(1)
        pipes.column_values.consumer_release(state)
        warpgroup.wait_group(0)
        cute.arch.sync_warp()  # all lanes have read the statistics
        pipes.columns.consumer_release(state)
        state.advance()
        return state
