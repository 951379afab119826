"""Gradients of attention for sm_90a with wide heads: the two consumer warp groups have the same 64 keys, and halves of everything.

The accumulators of ``grad_k`` and ``grad_v`` for 64 keys of 256 elements fill the registers of two warp groups. So each has half of
the columns of both. For each block of 64 queries, a warp group computes

* ``scores = k @ q.T`` and ``slopes = v @ grad_out.T`` with half of the queries.
* ``P`` and ``dS`` from them, which it writes to shared memory beside those of the other group. Then both groups need all of them.
* half of the columns of ``grad_q = dS.T @ k``, ``grad_v += P @ grad_out`` and ``grad_k += dS @ q``. The first is added to sums in
  memory while the others are multiplied.

As in ``_backward_sm90``, the sums of ``grad_q`` are f32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._device import WARP, await_previous
from .._versions import SmemAllocator
from ..sm90.hardware import (
    BARRIER_BYTES,
    CONSUMER_REGISTERS,
    CONSUMERS,
    PRODUCER_REGISTERS,
    THREADS,
    WARP_GROUP,
    WGMMA_ROWS,
    accumulator_row,
)
from ..sm90.pipeline import consumer_state, init_barriers
from ..sm90.softmax import score_product, start_product, value_product
from . import _producer_sm90 as tma
from ._attention import ELEMENT_BYTES, Problem
from ._backward import Scoring, Side, Statistics, column_of
from ._backward_fused_sm90 import FusedBackward
from ._backward_tma_sm90 import STAGES, Place, store_operand, turned
from ._grad_q_sm90 import PART, Slopes, add_to_sums, query_product, shared_slopes
from ._producer_sm90 import Operand
from ._softmax import round_to, scale_sums

HALF = PART // CONSUMERS  # queries whose scores a warp group computes


@dataclass(frozen=True)
class Tiling:
    """64 keys against 64 queries at a time."""

    dim: int
    value_dim: int
    adder = False  # threads add to ``grad_q``
    turned = False  # which has its columns as columns

    @property
    def label(self) -> str:
        return f"wide{self.rows}x{self.columns}"

    @property
    def rows(self) -> int:
        return WGMMA_ROWS

    @property
    def columns(self) -> int:
        return PART

    @property
    def widths(self) -> tuple[int, int]:
        return self.dim, self.value_dim

    @property
    def sum_columns(self) -> int:
        """Columns of a row of the sums of ``grad_q``."""
        return self.dim

    @property
    def shared_bytes(self) -> int:
        return (
            (self.rows + STAGES * self.columns) * sum(self.widths) * ELEMENT_BYTES
            + 2 * STAGES * self.rows * self.columns * ELEMENT_BYTES
            + 2 * STAGES * self.columns * 4
            + 32 * BARRIER_BYTES
        )

    def validate(self, target: aot.Target) -> None:
        if self.shared_bytes > target.shared_memory:
            raise aot.DeclarationError(
                f"rows and {STAGES} stages take {self.shared_bytes} bytes; a block of {target.arch} has {target.shared_memory}"
            )


class Operands(NamedTuple):
    keys: Operand
    values: Operand
    queries: Operand
    grads: Operand
    grad_k: Operand
    grad_v: Operand


class Products(NamedTuple):
    scores: cute.TiledMma
    sums: tuple[cute.TiledMma, cute.TiledMma]  # of ``grad_k`` and ``grad_v``
    grad_q: cute.TiledMma


@dataclass(frozen=True)
class Consumer:
    """Operands and accumulators of a consumer warp group."""

    mmas: Products
    lefts: tuple[cute.Tensor, ...]  # keys and values
    rights: tuple[cute.Tensor, ...]  # half of queries and of ``grad_out``
    across: tuple[cute.Tensor, ...]  # half of the columns of both
    written: tuple[Slopes, Slopes]  # ``dS`` and ``P``
    weights: tuple[cute.Tensor, ...]  # both as left operands
    slopes: cute.Tensor  # ``dS.T`` as a left operand
    key_part: cute.Tensor
    sums: tuple[cute.Tensor, ...]  # of ``grad_k`` and ``grad_v``
    place: Place


class WideBackward(FusedBackward):
    def launch(
        self, grad_out, q, k, v, grad_k, grad_v, sums, scoring, scale, statistics, problem, count, stream
    ) -> None:
        tiling, dtype, major = self.tiling, self.dtype, LayoutEnum.ROW_MAJOR
        operands = []
        for tensors, lines, stages in (((k, v), tiling.rows, 1), ((q, grad_out), tiling.columns, STAGES)):
            for tensor, width in zip(tensors, tiling.widths, strict=True):
                staged = hopper_helpers.make_smem_layout_b(major, (WGMMA_ROWS, lines, width), dtype, stages)
                operands.append(tma.load_operand(self.by_token(tensor), staged, (lines, width)))
        for tensor, width in zip((grad_k, grad_v), tiling.widths, strict=True):
            tile = (WGMMA_ROWS, tma.line_of(width // CONSUMERS))
            staged = hopper_helpers.make_smem_layout_epi(dtype, major, tile, width // tile[1])
            operands.append(store_operand(cpasync.CopyBulkTensorTileS2GOp(), self.by_token(tensor), staged, tile))
        shared = warpgroup.OperandSource.SMEM
        mmas = Products(
            score_product(dtype, HALF),
            tuple(value_product(dtype, width // CONSUMERS, shared) for width in tiling.widths),
            query_product(dtype, tiling.dim // CONSUMERS, OperandMajorMode.MN),
        )
        self.kernel(mmas, Operands(*operands), sums, scoring, scale, statistics, problem).launch(
            grid=[count, 1, 1], block=[THREADS, 1, 1], min_blocks_per_mp=1, use_pdl=self.early, stream=stream
        )

    @cute.kernel
    def kernel(
        self, mmas, operands, totals: cute.Tensor, scoring: Scoring, scale: Float32, statistics: Statistics, problem: Problem
    ):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(thread // WARP)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:
            for operand in operands:
                cpasync.prefetch_descriptor(operand.atom)
        allocator, tiling = SmemAllocator(), self.tiling
        shared = self.shared(allocator, operands)
        written = tuple(
            shared_slopes(allocator, self.dtype, PART, tiling.rows, STAGES, by_queries=False) for _ in range(2)
        )
        pipes = self.pipelines(allocator.allocate_array(cutlass.Int64, 4 + 4 * STAGES), True)
        init_barriers()
        await_previous(self.early)
        side = Side(True, problem, tiling.rows, tiling.columns)
        if index < problem.order.count():  # which only the device knows if sequences have lengths of their own
            tile = side.tile_at(index)
            if group == 0:
                cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
                if warp == 0:
                    self.load_tiles(pipes, shared, operands, side, tile)
                if warp == 1:
                    self.load_statistics(pipes.columns, shared.statistics, statistics, side, tile)
            else:
                cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
                consumer = self.consumer(mmas, shared, written, group - 1, thread % WARP_GROUP)
                self.add_up(consumer, pipes, shared.statistics, totals, scoring, side, tile)
                scale_sums(consumer.sums[0], [scale, scale])
                self.barriers_of_all().arrive_and_wait()  # the other group needs these keys no more
                for i in (1, 0):
                    memory = shared.row_values if i else shared.rows
                    self.store_rows(consumer.place, consumer.sums[i], mmas.sums[i], memory, operands[4 + i], side, tile)
                cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive stores that read it

    # The consumers.

    def consumer(self, mmas: Products, shared, written, group: Int32, thread: Int32) -> Consumer:
        of_scores, of_grad_q = mmas.scores.get_slice(0), mmas.grad_q.get_slice(0)
        columns = self.tiling.dim // CONSUMERS
        lefts, rights, across, weights, sums = [], [], [], [], []
        for i, (mma, width) in enumerate(zip(mmas.sums, self.tiling.widths, strict=True)):
            lefts.append(mmas.scores.make_fragment_A(of_scores.partition_A(shared[i][None, None, 0])))
            own = cute.local_tile(shared[2 + i], (HALF, width), (group, 0, None))
            rights.append(mmas.scores.make_fragment_B(of_scores.partition_B(own)))
            own = cute.local_tile(turned(shared[2 + i]), (width // CONSUMERS, self.tiling.columns), (group, 0, None))
            across.append(mma.make_fragment_B(mma.get_slice(0).partition_B(own)))
            weights.append(mma.make_fragment_A(mma.get_slice(0).partition_A(turned(written[i].memory))))
            shape = mma.partition_shape_C((WGMMA_ROWS, width // CONSUMERS))
            sums.append(cute.make_rmem_tensor(shape, Float32))
        keys = cute.local_tile(turned(shared.rows), (columns, self.tiling.rows), (group, 0, 0))
        return Consumer(
            mmas,
            tuple(lefts),
            tuple(rights),
            tuple(across),
            written,
            tuple(weights),
            mmas.grad_q.make_fragment_A(of_grad_q.partition_A(written[0].memory)),
            mmas.grad_q.make_fragment_B(of_grad_q.partition_B(keys)),
            tuple(sums),
            Place(group, thread, Int32(0), group, 1),
        )

    @cute.jit
    def add_up(self, consumer, pipes, statistics, totals, scoring, side, tile):
        """The sums of a tile's ``grad_k`` and ``grad_v``, and what its keys add to those of ``grad_q``."""
        blocks, state = side.blocks(tile), consumer_state(STAGES)
        for one in consumer.sums:
            one.fill(0.0)
        pipes.rows.consumer_wait(consumer_state(1))
        pipes.row_values.consumer_wait(consumer_state(1))
        for g in cutlass.range(side.column_heads(), unroll=1):
            head = side.column_head(tile, g)
            for block in cutlass.range(blocks.begin, blocks.end, unroll=1):
                self.weigh_block(consumer, pipes, statistics, scoring, side, tile, blocks, block, state)
                self.add_block(consumer, pipes, totals, tile, head, block, state)
                state.advance()

    @cute.jit
    def weigh_block(self, consumer, pipes, statistics, scoring, side, tile, blocks, block, state):
        """``P`` and ``dS`` of half of a block of queries, in shared memory. Returns when those of the other half are there too."""
        mma, stage, group = consumer.mmas.scores, state.index, consumer.place.group
        shape = mma.partition_shape_C((WGMMA_ROWS, HALF))
        scores, slopes = (cute.make_rmem_tensor(shape, Float32) for _ in range(2))
        pipes.columns.consumer_wait(state)
        start_product(mma, scores, consumer.lefts[0], consumer.rights[0][None, None, None, stage], True)
        pipes.column_values.consumer_wait(state)
        start_product(mma, slopes, consumer.lefts[1], consumer.rights[1][None, None, None, stage], True)
        lse, delta = (self.statistics_of_columns(statistics, i, stage, group, CONSUMERS) for i in range(2))
        warpgroup.wait_group(1)
        row = tile.index * self.tiling.rows + accumulator_row(consumer.place.thread)
        side.mask(scores, tile, blocks, block, row, group * HALF)
        for i in cutlass.range_constexpr(cute.size(scores)):
            scores[i] = cute.math.exp2(scores[i] * scoring.scale - lse[column_of(i)], fastmath=True)
        self.write(consumer, 1, scores, stage)
        warpgroup.wait_group(0)
        for i in cutlass.range_constexpr(cute.size(slopes)):
            slopes[i] = scores[i] * (slopes[i] - delta[column_of(i)])
        self.write(consumer, 0, slopes, stage)
        cute.arch.fence_proxy("async.shared", space="cta")  # wgmma reads what threads have written
        self.barriers_of_all().arrive_and_wait()

    def write(self, consumer: Consumer, which: int, values: cute.Tensor, stage: Int32) -> None:
        """Round ``P``, or ``dS``, and write them to shared memory."""
        rounded = cute.make_rmem_tensor(cute.size(values), self.dtype)
        round_to(rounded, values)
        place = consumer.place
        consumer.written[which].write(rounded, consumer.mmas.scores, place.thread, stage, 0, place.group, HALF)

    @cute.jit
    def add_block(self, consumer, pipes, totals, tile, head, block, state):
        """What ``P`` and ``dS`` of a block of queries add to the gradients."""
        stage, mma = state.index, consumer.mmas.grad_q
        columns = self.tiling.dim // CONSUMERS
        grad_q = cute.make_rmem_tensor(mma.partition_shape_C((WGMMA_ROWS, columns)), Float32)
        start_product(mma, grad_q, consumer.slopes[None, None, None, stage], consumer.key_part, True)
        for i in cutlass.range_constexpr(2):
            which = 1 - i
            weights, across = (x[which][None, None, None, stage] for x in (consumer.weights, consumer.across))
            start_product(consumer.mmas.sums[which], consumer.sums[which], weights, across, False)
        warpgroup.wait_group(2)
        own = self.of_sequence(totals, tile.sequence, tile.first_query, head)
        row = block * self.tiling.columns + accumulator_row(consumer.place.thread)
        add_to_sums(own, grad_q, row, consumer.place.group * columns, tile.queries)
        warpgroup.wait_group(1)
        pipes.column_values.consumer_release(state)
        warpgroup.wait_group(0)
        cute.arch.sync_warp()  # all lanes have read the statistics
        pipes.columns.consumer_release(state)
