"""Gradients of attention for sm_90a: TMA brings tiles into shared memory, wgmma multiplies them from there.

A block of threads has ``tokens`` keys with their values, 64 for each of two consumer warp groups, and goes over the queries that
see them in blocks of ``queries``, head by head of those that share the keys. For each block of queries, a warp group computes

* ``scores = k @ q.T`` and ``slopes = v @ grad_out.T``, a row for each of its keys. Both stay in registers.
* ``P`` and ``dS`` from them. In registers, both are left operands of ``grad_v += P @ grad_out`` and ``grad_k += dS @ q``.
* ``dS`` once more in shared memory, beside that of the other group: together they are what ``grad_q = dS.T @ k`` needs. Each group
  computes a part of it, and TMA adds the part to sums in memory.

So ``grad_k`` and ``grad_v`` are written once, in a fixed order. The sums of ``grad_q`` are f32: many blocks add to them, in the order
in which they come. A last kernel scales and rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._device import WARP, await_previous, fetch, store
from .._versions import SmemAllocator
from ..sm90.hardware import (
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
from ._attention import Problem, Tile
from ._backward import CHUNK, Scoring, Side, Statistics, column_of
from ._backward_tma_sm90 import STAGES, Place, Shared, TmaBackward, store_operand, turned
from ._grad_q_sm90 import PART, TOKENS, QuerySums, query_product, query_sums
from ._producer_sm90 import Operand
from ._softmax import round_to, scale_sums


@dataclass(frozen=True)
class Tiling:
    """``TOKENS`` keys against ``queries`` queries at a time. Keys and values have the same width."""

    queries: int
    dim: int
    adder: bool = True  # whether a warp of its own adds to the sums of ``grad_q``; else a consumer warp does

    @property
    def value_dim(self) -> int:
        return self.dim

    @property
    def label(self) -> str:
        return f"tile{TOKENS}x{self.queries}"

    @property
    def rows(self) -> int:
        return TOKENS

    @property
    def columns(self) -> int:
        return self.queries

    @property
    def slices(self) -> int:
        """Parts of the queries of a block."""
        return self.queries // PART

    def validate(self, target: aot.Target) -> None:
        if self.queries % PART or self.dim % PART or self.slices * (self.dim // PART) != CONSUMERS:
            raise aot.DeclarationError(
                f"{self.queries} queries of {self.dim} elements",
                hint=f"{CONSUMERS} warp groups have {PART} x {PART} of them each",
            )


class Operands(NamedTuple):
    keys: Operand
    values: Operand
    queries: Operand
    grads: Operand
    grad_k: Operand
    grad_v: Operand
    sums: Operand  # of ``grad_q``


class Products(NamedTuple):
    scores: cute.TiledMma
    sums: cute.TiledMma  # of ``grad_k`` and ``grad_v``
    grad_q: cute.TiledMma


@dataclass(frozen=True)
class Consumer:
    """Operands and accumulators of a consumer warp group."""

    mmas: Products
    key: cute.Tensor
    value: cute.Tensor
    query: cute.Tensor
    grad: cute.Tensor
    query_rows: cute.Tensor  # the same for products along queries
    grad_rows: cute.Tensor
    slopes: cute.Tensor
    key_rows: cute.Tensor
    grad_k: cute.Tensor
    grad_v: cute.Tensor
    sums: QuerySums
    place: Place


class Backward(TmaBackward):
    @cute.jit
    def __call__(
        self, grad_out: cute.Tensor, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: cute.Tensor,
        grad_q: cute.Tensor, grad_k: cute.Tensor, grad_v: cute.Tensor, grad_sinks: cute.Tensor, scale: Float32, left: Int32,
        right: Int32, q_starts, k_starts, soft_cap: Float32, sinks, deterministic: Boolean, scratch: cute.Tensor, stream: CUstream,
    ):  # fmt: skip
        self.dtype = q.element_type
        sums = self.compact(scratch, q)
        statistics = self.statistics(scratch, cute.size(sums), q)
        scoring = self.scoring(scale, Float32(0))
        problem, count = self.problem(q, k, (q_starts, k_starts), left, right, True, TOKENS)
        if self.any_pair(q, k, grad_q, grad_k, grad_v, grad_sinks, stream):
            launch = self.row_launch(q, self.tiling.dim, stream)
            self.row_kernel(grad_out, out, lse, statistics, sums).launch(**launch)
            self.launch_sinks(sinks, lse, statistics, grad_sinks, stream)
            self.launch(grad_out, q, k, v, grad_k, grad_v, sums, scoring, scale, statistics, problem, count, stream)
            self.finish_kernel(sums, grad_q, scale).launch(**launch)

    def compact(self, scratch: cute.Tensor, q: cute.Tensor) -> cute.Tensor:
        """The sums of ``grad_q`` at the beginning of the workspace, with the shape of ``q``."""
        dim = self.tiling.dim
        strides: list[Any] = [1, dim]
        for extent in reversed(q.shape[1:-1]):
            strides.append(cute.assume(Int64(extent) * strides[-1], divby=dim))
        return cute.make_tensor(scratch.iterator, cute.make_layout(tuple(q.shape), stride=tuple(reversed(strides))))

    def launch(
        self, grad_out, q, k, v, grad_k, grad_v, sums, scoring, scale, statistics, problem, count, stream
    ) -> None:
        tiling, dtype = self.tiling, self.dtype
        dim, queries = tiling.dim, tiling.queries
        rows = LayoutEnum.ROW_MAJOR
        k_staged = hopper_helpers.make_smem_layout_a(rows, (TOKENS, queries, dim), dtype, 1)
        q_staged = hopper_helpers.make_smem_layout_b(rows, (TOKENS, queries, dim), dtype, STAGES)
        stored = (WGMMA_ROWS, tma.line_of(dim))
        out_staged = hopper_helpers.make_smem_layout_epi(dtype, rows, stored, CONSUMERS * (dim // stored[1]))
        sum_staged = hopper_helpers.make_smem_layout_epi(Float32, rows, (PART, PART), CONSUMERS)
        grad_out, q, k, v, grad_k, grad_v, sums = (self.by_token(x) for x in (grad_out, q, k, v, grad_k, grad_v, sums))
        operands = Operands(
            *(tma.load_operand(x, k_staged, (TOKENS, dim)) for x in (k, v)),
            *(tma.load_operand(x, q_staged, (queries, dim)) for x in (q, grad_out)),
            *(store_operand(cpasync.CopyBulkTensorTileS2GOp(), x, out_staged, stored) for x in (grad_k, grad_v)),
            store_operand(cpasync.CopyReduceBulkTensorTileS2GOp(), sums, sum_staged, (PART, PART)),
        )
        mmas = Products(score_product(dtype, queries), value_product(dtype, dim), query_product(dtype))
        self.kernel(mmas, operands, scoring, scale, statistics, problem).launch(
            grid=[count, 1, 1], block=[THREADS, 1, 1], min_blocks_per_mp=1, use_pdl=self.early, stream=stream
        )

    @cute.kernel
    def kernel(self, mmas, operands, scoring: Scoring, scale: Float32, statistics: Statistics, problem: Problem):
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(thread // WARP)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:
            for operand in operands:
                cpasync.prefetch_descriptor(operand.atom)
        allocator = SmemAllocator()
        pipes = self.pipelines(allocator.allocate_array(cutlass.Int64, 4 + 4 * STAGES), True)
        shared = self.shared(allocator, operands)
        sums = query_sums(allocator, self.tiling, self.dtype, operands.sums, self.barriers)
        init_barriers()
        await_previous(self.early)
        side = Side(True, problem, TOKENS, self.tiling.queries)
        if index < problem.order.count():  # which only the device knows if sequences have lengths of their own
            tile = side.tile_at(index)
            if group == 0:
                cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
                if warp == 0:
                    self.load_tiles(pipes, shared, operands, side, tile)
                if warp == 1:
                    self.load_statistics(pipes.columns, shared.statistics, statistics, side, tile)
                if cutlass.const_expr(self.tiling.adder):  # noqa: SIM102 (known when the kernel is compiled)
                    if warp == 2:
                        sums.add_parts(side, tile)
            else:
                cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
                consumer = self.consumer(mmas, shared, sums, group - 1, thread % WARP_GROUP)
                self.add_up(consumer, pipes, shared.statistics, scoring, side, tile)
                scale_sums(consumer.grad_k, [scale, scale])
                self.barriers_of_all().arrive_and_wait()  # the other group needs these keys no more
                for one, memory, operand in (
                    (consumer.grad_v, shared.row_values, operands.grad_v),
                    (consumer.grad_k, shared.rows, operands.grad_k),
                ):
                    self.store_rows(consumer.place, one, mmas.sums, memory, operand, side, tile)
                cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive stores that read it

    # The consumers.

    def consumer(self, mmas: Products, shared: Shared, sums: QuerySums, group: Int32, thread: Int32) -> Consumer:
        dim = self.tiling.dim
        of_scores, of_sums, of_grad_q = (mma.get_slice(0) for mma in mmas)
        rows = [cute.local_tile(x, (WGMMA_ROWS, dim), (group, 0, 0)) for x in shared[:2]]
        columns = shared[2:4]
        key_part = turned(shared.rows)
        if dim > PART:
            key_part = cute.local_tile(key_part, (PART, TOKENS), (group, 0, None))
        gradients = [cute.make_rmem_tensor(mmas.sums.partition_shape_C((WGMMA_ROWS, dim)), Float32) for _ in range(2)]
        return Consumer(
            mmas,
            *(mmas.scores.make_fragment_A(of_scores.partition_A(x)) for x in rows),
            *(mmas.scores.make_fragment_B(of_scores.partition_B(x)) for x in columns),
            *(mmas.sums.make_fragment_B(of_sums.partition_B(turned(x))) for x in columns),
            mmas.grad_q.make_fragment_A(of_grad_q.partition_A(sums.slopes)),
            mmas.grad_q.make_fragment_B(of_grad_q.partition_B(key_part)),
            *gradients,
            sums,
            Place(group, thread, group, Int32(0), CONSUMERS),
        )

    @cute.jit
    def add_up(self, consumer, pipes, statistics, scoring, side, tile):
        """The sums of a tile's ``grad_k`` and ``grad_v``, and what its keys add to those of ``grad_q``."""
        blocks = side.blocks(tile)
        consumer.grad_k.fill(0.0)
        consumer.grad_v.fill(0.0)
        pipes.rows.consumer_wait(consumer_state(1))
        pipes.row_values.consumer_wait(consumer_state(1))
        state = consumer_state(STAGES)
        for g in cutlass.range(side.column_heads(), unroll=1):
            head = side.column_head(tile, g)
            for block in cutlass.range(blocks.begin, blocks.end, unroll=1):
                state = self.add_block(consumer, pipes, statistics, scoring, side, tile, head, blocks, block, state)

    @cute.jit
    def add_block(self, consumer, pipes, statistics, scoring, side, tile, head, blocks, block, state):
        """What one block of queries adds."""
        mmas, stage, tiling = consumer.mmas, state.index, self.tiling
        scored = mmas.scores.partition_shape_C((WGMMA_ROWS, tiling.queries))
        scores, slopes = (cute.make_rmem_tensor(scored, Float32) for _ in range(2))
        pipes.columns.consumer_wait(state)
        start_product(mmas.scores, scores, consumer.key, consumer.query[None, None, None, stage], True)
        pipes.column_values.consumer_wait(state)
        start_product(mmas.scores, slopes, consumer.value, consumer.grad[None, None, None, stage], True)
        lse = self.statistics_of_columns(statistics, 0, stage)
        warpgroup.wait_group(1)
        side.mask(scores, tile, blocks, block, self.first_row(consumer, tile))
        for i in cutlass.range_constexpr(cute.size(scores)):
            scores[i] = cute.math.exp2(scores[i] * scoring.scale - lse[column_of(i)], fastmath=True)
        weighing = mmas.sums.partition_shape_A((WGMMA_ROWS, tiling.queries))
        weights, gradients = (cute.make_rmem_tensor(weighing, self.dtype) for _ in range(2))
        round_to(weights, scores)
        delta = self.statistics_of_columns(statistics, 1, stage)
        warpgroup.wait_group(0)
        for i in cutlass.range_constexpr(cute.size(scores)):
            slopes[i] = scores[i] * (slopes[i] - delta[column_of(i)])
        round_to(gradients, slopes)
        consumer.sums.share(gradients, mmas.scores, consumer.place, stage)
        start_product(mmas.sums, consumer.grad_v, weights, consumer.grad_rows[None, None, None, stage], False)
        cute.arch.fence_proxy("async.shared", space="cta")  # wgmma reads what threads have written
        self.barriers_of_all().arrive_and_wait()  # both groups have written
        grad_q = cute.make_rmem_tensor(mmas.grad_q.partition_shape_C((WGMMA_ROWS, PART)), Float32)
        part = consumer.slopes[None, None, None, consumer.sums.index(stage, consumer.place)]
        start_product(mmas.grad_q, grad_q, part, consumer.key_rows[None, None, None, 0], True)
        warpgroup.wait_group(1)
        pipes.column_values.consumer_release(state)
        start_product(mmas.sums, consumer.grad_k, gradients, consumer.query_rows[None, None, None, stage], False)
        warpgroup.wait_group(1)
        consumer.sums.add(grad_q, mmas.grad_q, consumer.place, tile, head, block)
        warpgroup.wait_group(0)
        cute.arch.sync_warp()  # all lanes have read the statistics
        pipes.columns.consumer_release(state)
        state.advance()
        return state

    def first_row(self, consumer: Consumer, tile: Tile) -> Int32:
        """The first key of this thread."""
        return tile.index * TOKENS + consumer.place.group * WGMMA_ROWS + accumulator_row(consumer.place.thread)

    # Kernels over rows.

    @cute.kernel
    def finish_kernel(self, sums: cute.Tensor, grad_q: cute.Tensor, scale: Float32):
        """Scale the sums of ``grad_q`` and round them."""
        row, place, chunk = self.row_of_thread(grad_q, self.tiling.dim)
        await_previous(self.early)
        if row < cute.size(grad_q.shape) // self.tiling.dim:
            values = fetch(sums[(*place, None)], chunk, CHUNK).load() * scale
            store(values, grad_q[(*place, None)], chunk, self.tiling.dim // CHUNK, CHUNK)
