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
from cutlass import Float32, Int32, Int64, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._device import WARP, await_previous, fetch, store
from .._versions import SmemAllocator
from ..sm90.hardware import (
    ALIGNMENT,
    CONSUMER_REGISTERS,
    CONSUMERS,
    GROUP_WARPS,
    PRODUCER_REGISTERS,
    THREADS,
    WARP_GROUP,
    WGMMA_ROWS,
    Barriers,
    accumulator_row,
)
from ..sm90.pipeline import consumer_state, init_barriers, producer_state, tma_pipeline
from ..sm90.softmax import score_product, start_product, value_product
from . import _producer_sm90 as tma
from ._attention import ELEMENT_BYTES, Problem, Tile
from ._backward import CHUNK, INFINITY, AttentionBackward, Scoring, Side, Statistics
from ._producer_sm90 import Operand
from ._softmax import round_to, scale_sums

STAGES = 2
PART = 64  # queries, and columns, of what a warp group computes of ``grad_q``
TOKENS = CONSUMERS * WGMMA_ROWS  # keys of a block


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
    def key_bytes(self) -> int:
        return TOKENS * self.dim * ELEMENT_BYTES

    @property
    def query_bytes(self) -> int:
        """Of one stage."""
        return self.queries * self.dim * ELEMENT_BYTES

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


class Pipelines(NamedTuple):
    keys: pipeline.PipelineTmaAsync
    values: pipeline.PipelineTmaAsync
    queries: pipeline.PipelineTmaAsync  # with the statistics of their rows
    grads: pipeline.PipelineTmaAsync


class Operands(NamedTuple):
    keys: Operand
    values: Operand
    queries: Operand
    grads: Operand
    grad_k: Operand
    grad_v: Operand
    sums: Operand  # of ``grad_q``


class Shared(NamedTuple):
    """Shared memory."""

    keys: cute.Tensor  # tokens x elements
    values: cute.Tensor
    queries: cute.Tensor  # queries x elements x stages
    grads: cute.Tensor
    slopes: cute.Tensor  # 64 queries x tokens x slices of all stages
    sums: cute.Tensor  # 64 queries x 64 elements x warp groups
    statistics: cute.Tensor  # queries x 2 x stages


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
    group: Int32
    thread: Int32


class Backward(AttentionBackward):
    def __init__(self, tiling: Tiling, target: aot.Target, layout: str) -> None:
        super().__init__(tiling, target, layout)
        self.barriers = Barriers(CONSUMERS)

    @cute.jit
    def __call__(
        self, grad_out: cute.Tensor, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: cute.Tensor,
        grad_q: cute.Tensor, grad_k: cute.Tensor, grad_v: cute.Tensor, scale: Float32, left: Int32, right: Int32, q_starts,
        k_starts, soft_cap: Float32, scratch: cute.Tensor, stream: CUstream,
    ):  # fmt: skip
        self.dtype = q.element_type
        sums = self.compact(scratch, q)
        statistics = self.statistics(scratch, cute.size(sums), q)
        scoring = self.scoring(scale, Float32(0))
        problem, count = self.problem(q, k, (q_starts, k_starts), left, right, True, TOKENS)
        # CUDA refuses an empty grid, and TMA empty tensors.
        any_query, any_key = cute.size(q.shape) > 0, cute.size(k.shape) > 0
        if any_query:
            launch = self.row_launch(q, self.tiling.dim, stream)
            self.row_kernel(grad_out, out, lse, statistics, sums).launch(**launch)
            if any_key:
                self.launch(grad_out, q, k, v, grad_k, grad_v, sums, scoring, scale, statistics, problem, count, stream)
            self.finish_kernel(sums, grad_q, scale).launch(**launch)
        elif any_key:
            launch = self.row_launch(k, self.tiling.dim, stream)
            self.blank_kernel(grad_k, grad_v).launch(**launch)

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
        turned = hopper_helpers.make_trivial_tiled_mma(
            dtype, dtype, OperandMajorMode.MN, OperandMajorMode.MN, Float32, (1, 1, 1), (WGMMA_ROWS, PART)
        )
        mmas = Products(score_product(dtype, queries), value_product(dtype, dim), turned)
        self.kernel(mmas, operands, scoring, scale, statistics, problem).launch(
            grid=[count, 1, 1], block=[THREADS, 1, 1], min_blocks_per_mp=1, use_pdl=self.early, stream=stream
        )

    def by_token(self, x: cute.Tensor) -> cute.Tensor:
        """A tensor as tokens x columns x heads x what tells sequences apart."""
        if self.ragged:
            return tma.ragged_view(cute.make_tensor(x.iterator, cute.select(x.layout, mode=[0, 2, 1])))
        return cute.make_tensor(x.iterator, cute.select(x.layout, mode=[1, 3, 2, 0]))

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
        pipes = self.pipelines(allocator.allocate_array(cutlass.Int64, 4 + 4 * STAGES))
        shared = self.shared(allocator, operands)
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
                    self.load_statistics(pipes, shared, statistics, side, tile)
                if cutlass.const_expr(self.tiling.adder):  # noqa: SIM102 (known when the kernel is compiled)
                    if warp == 2:
                        self.add_parts(shared, operands.sums, side, tile)
            else:
                cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
                consumer = self.consumer(mmas, shared, group - 1, thread % WARP_GROUP)
                self.add_up(consumer, pipes, shared, operands, scoring, side, tile)
                scale_sums(consumer.grad_k, [scale, scale])
                self.barriers_of_all().arrive_and_wait()  # the other group needs these keys no more
                self.store_gradient(consumer, consumer.grad_v, shared.values, operands.grad_v, side, tile)
                self.store_gradient(consumer, consumer.grad_k, shared.keys, operands.grad_k, side, tile)
                cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive stores that read it

    def barriers_of_all(self) -> pipeline.NamedBarrier:
        """Where all consumer warp groups wait for each other."""
        return pipeline.NamedBarrier(barrier_id=self.barriers.free, num_threads=CONSUMERS * WARP_GROUP)

    def pipelines(self, barriers: cute.Pointer) -> Pipelines:
        tiling, warps = self.tiling, CONSUMERS * GROUP_WARPS
        return Pipelines(
            tma_pipeline(barriers, 1, tiling.key_bytes, warps),
            tma_pipeline(barriers + 2, 1, tiling.key_bytes, warps),
            tma_pipeline(barriers + 4, STAGES, tiling.query_bytes, warps, producers=2),
            tma_pipeline(barriers + 4 + 2 * STAGES, STAGES, tiling.query_bytes, warps),
        )

    def shared(self, allocator: SmemAllocator, operands: Operands) -> Shared:
        tiling, dtype = self.tiling, self.dtype
        tiles = (PART, PART, TOKENS)
        columns = LayoutEnum.COL_MAJOR
        slopes = hopper_helpers.make_smem_layout_a(columns, tiles, dtype, tiling.slices * STAGES)
        layouts = [*(operand.staged for operand in operands[:4]), slopes]
        tensors = [allocator.allocate_tensor(dtype, x.outer, ALIGNMENT, swizzle=x.inner) for x in layouts]
        staged = operands.sums.staged
        sums = allocator.allocate_tensor(Float32, staged.outer, ALIGNMENT, swizzle=staged.inner)
        statistics = allocator.allocate_tensor(Float32, cute.make_layout((tiling.queries, 2, STAGES)), 128)
        return Shared(*tensors, sums, statistics)

    # The producers.

    @cute.jit
    def load_tiles(self, pipes, shared, operands, side, tile):
        """Bring keys and values, then queries and the gradients of their outputs, in the order in which they are used."""
        tiling, blocks = self.tiling, side.blocks(tile)
        first, state = producer_state(1), producer_state(STAGES)
        for pipe, target, operand in (
            (pipes.keys, shared.keys, operands.keys),
            (pipes.values, shared.values, operands.values),
        ):
            own = self.of_head(operand, tile.sequence, tile.first_token, tile.tokens, tile.head)
            load_tile(pipe, operand.atom, *self.blocks_of(operand, target, own, TOKENS), tile.index, first)
        for g in cutlass.range(side.problem.heads_of_key, unroll=1):
            head = side.query_head(tile, g)
            of_head = self.of_head(operands.queries, tile.sequence, tile.first_query, tile.queries, head)
            of_grad = self.of_head(operands.grads, tile.sequence, tile.first_query, tile.queries, head)
            queries = self.blocks_of(operands.queries, shared.queries, of_head, tiling.queries)
            grads = self.blocks_of(operands.grads, shared.grads, of_grad, tiling.queries)
            for block in cutlass.range(blocks.begin, blocks.end, unroll=1):
                load_tile(pipes.queries, operands.queries.atom, *queries, block, state)
                load_tile(pipes.grads, operands.grads.atom, *grads, block, state)
                state.advance()

    def blocks_of(self, operand: Operand, target: cute.Tensor, own: cute.Tensor, rows: int) -> tuple:
        """Stages of shared memory, and the blocks of a head that go there."""
        return tma.partition(operand.atom, target, cute.local_tile(own, (rows, self.tiling.dim), (None, 0)))

    def of_head(self, operand: Operand, sequence: Int32, first, length: Int32, head: Int32) -> cute.Tensor:
        """Tokens x elements of one head of a sequence, for TMA."""
        row, *rest = tma.origin(sequence, first, length)
        return cute.domain_offset((row, 0), operand.tensor[(None, None, head, *rest)])

    @cute.jit
    def load_statistics(self, pipes, shared, statistics, side, tile):
        """Bring the statistics of queries. Those past the end weigh nothing."""
        blocks, state = side.blocks(tile), producer_state(STAGES)
        for g in cutlass.range(side.problem.heads_of_key, unroll=1):
            own = self.statistics_of(statistics, tile, side.query_head(tile, g))
            for block in cutlass.range(blocks.begin, blocks.end, unroll=1):
                pipes.queries.sync_object_empty.wait(state.index, state.phase)
                for i in cutlass.range_constexpr(self.tiling.queries // WARP):
                    place = i * WARP + cute.arch.lane_idx()
                    row = block * self.tiling.queries + place
                    inside = cutlass.min(row, tile.queries - 1)
                    lse = own.lse[inside]
                    shared.statistics[place, 0, state.index] = lse if row < tile.queries else Float32(INFINITY)
                    shared.statistics[place, 1, state.index] = own.delta[inside]
                cute.arch.sync_warp()
                if cute.arch.lane_idx() == 0:
                    cute.arch.mbarrier_arrive(pipes.queries.producer_get_barrier(state))
                state.advance()

    # The consumers.

    def consumer(self, mmas: Products, shared: Shared, group: Int32, thread: Int32) -> Consumer:
        dim = self.tiling.dim
        of_scores, of_sums, of_grad_q = (mma.get_slice(0) for mma in mmas)
        rows = [cute.local_tile(x, (WGMMA_ROWS, dim), (group, 0, 0)) for x in (shared.keys, shared.values)]
        columns = [shared.queries, shared.grads]
        key_part, slopes = turned(shared.keys), shared.slopes
        if dim > PART:
            key_part = cute.local_tile(key_part, (PART, TOKENS), (group, 0, None))
        sums = [cute.make_rmem_tensor(mmas.sums.partition_shape_C((WGMMA_ROWS, dim)), Float32) for _ in range(2)]
        return Consumer(
            mmas,
            *(mmas.scores.make_fragment_A(of_scores.partition_A(x)) for x in rows),
            *(mmas.scores.make_fragment_B(of_scores.partition_B(x)) for x in columns),
            *(mmas.sums.make_fragment_B(of_sums.partition_B(turned(x))) for x in columns),
            mmas.grad_q.make_fragment_A(of_grad_q.partition_A(slopes)),
            mmas.grad_q.make_fragment_B(of_grad_q.partition_B(key_part)),
            *sums,
            group,
            thread,
        )

    @cute.jit
    def add_up(self, consumer, pipes, shared, operands, scoring, side, tile):
        """The sums of a tile's ``grad_k`` and ``grad_v``, and what its keys add to those of ``grad_q``."""
        blocks = side.blocks(tile)
        consumer.grad_k.fill(0.0)
        consumer.grad_v.fill(0.0)
        pipes.keys.consumer_wait(consumer_state(1))
        pipes.values.consumer_wait(consumer_state(1))
        state = consumer_state(STAGES)
        for g in cutlass.range(side.problem.heads_of_key, unroll=1):
            head = side.query_head(tile, g)
            for block in cutlass.range(blocks.begin, blocks.end, unroll=1):
                state = self.add_block(
                    consumer, pipes, shared, operands.sums, scoring, side, tile, head, blocks, block, state
                )

    @cute.jit
    def add_block(self, consumer, pipes, shared, sums, scoring, side, tile, head, blocks, block, state):
        """What one block of queries adds."""
        mmas, stage, tiling = consumer.mmas, state.index, self.tiling
        scored = mmas.scores.partition_shape_C((WGMMA_ROWS, tiling.queries))
        scores, slopes = (cute.make_rmem_tensor(scored, Float32) for _ in range(2))
        pipes.queries.consumer_wait(state)
        start_product(mmas.scores, scores, consumer.key, consumer.query[None, None, None, stage], True)
        pipes.grads.consumer_wait(state)
        start_product(mmas.scores, slopes, consumer.value, consumer.grad[None, None, None, stage], True)
        lse = self.statistics_of_columns(shared, 0, stage)
        warpgroup.wait_group(1)
        side.mask(scores, tile, blocks, block, self.first_row(consumer, tile))
        for i in cutlass.range_constexpr(cute.size(scores)):
            scores[i] = cute.math.exp2(scores[i] * scoring.scale - lse[i // 4 * 2 + i % 2], fastmath=True)
        weighing = mmas.sums.partition_shape_A((WGMMA_ROWS, tiling.queries))
        weights, gradients = (cute.make_rmem_tensor(weighing, self.dtype) for _ in range(2))
        round_to(weights, scores)
        delta = self.statistics_of_columns(shared, 1, stage)
        warpgroup.wait_group(0)
        for i in cutlass.range_constexpr(cute.size(scores)):
            slopes[i] = scores[i] * (slopes[i] - delta[i // 4 * 2 + i % 2])
        round_to(gradients, slopes)
        self.share_slopes(consumer, shared, gradients, stage)
        start_product(mmas.sums, consumer.grad_v, weights, consumer.grad_rows[None, None, None, stage], False)
        cute.arch.fence_proxy("async.shared", space="cta")  # wgmma reads what threads have written
        self.barriers_of_all().arrive_and_wait()  # both groups have written
        grad_q = cute.make_rmem_tensor(mmas.grad_q.partition_shape_C((WGMMA_ROWS, PART)), Float32)
        part = stage * tiling.slices + (consumer.group if cutlass.const_expr(tiling.slices > 1) else 0)
        start_product(
            mmas.grad_q, grad_q, consumer.slopes[None, None, None, part], consumer.key_rows[None, None, None, 0], True
        )
        warpgroup.wait_group(1)
        pipes.grads.consumer_release(state)
        start_product(mmas.sums, consumer.grad_k, gradients, consumer.query_rows[None, None, None, stage], False)
        warpgroup.wait_group(1)
        self.add_grad_q(consumer, shared, sums, grad_q, tile, head, block)
        warpgroup.wait_group(0)
        pipes.queries.consumer_release(state)
        state.advance()
        return state

    def first_row(self, consumer: Consumer, tile: Tile) -> Int32:
        """The first key of this thread."""
        return tile.index * TOKENS + consumer.group * WGMMA_ROWS + accumulator_row(consumer.thread)

    def statistics_of_columns(self, shared: Shared, which: int, stage: Int32) -> cute.Tensor:
        """Of a thread's columns: two neighbours of every eight."""
        count = self.tiling.queries // 8
        held = cute.make_rmem_tensor((2, count), Float32)
        own = shared.statistics[None, which, stage]
        for n in range(count):
            pair = cute.local_tile(own, (2,), (4 * n + cute.arch.lane_idx() % 4,))
            cute.autovec_copy(pair, held[None, n])
        return cute.make_tensor(held.iterator, cute.make_layout(2 * count))

    @cute.jit
    def share_slopes(self, consumer, shared, gradients, stage):
        """Write ``dS`` where the other group can multiply with it."""
        tiling = self.tiling
        own = cute.local_tile(turned(shared.slopes), (WGMMA_ROWS, PART), (consumer.group, 0, None))
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), self.dtype)
        copy = cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, consumer.mmas.scores))
        mine = copy.get_slice(consumer.thread)
        target = mine.partition_D(own)
        shape = cute.shape(mine.partition_S(own))[:3]
        size = cute.size(shape)
        for s in cutlass.range_constexpr(tiling.slices):
            values = cute.make_tensor(gradients.iterator + s * size, cute.make_layout(shape))
            cute.copy(copy, values, target[None, None, None, stage * tiling.slices + s])

    @cute.jit
    def add_grad_q(self, consumer, shared, sums, grad_q, tile, head, block):
        """Add this group's part of ``grad_q`` to the sums in memory, or hand it to the warp that does."""
        group = consumer.group
        together = self.barriers.together(group)
        adding = cute.arch.make_warp_uniform(consumer.thread // WARP) == 0
        if cutlass.const_expr(self.tiling.adder):
            self.handed(group, full=False).arrive_and_wait()
        else:
            if adding:  # the last addition has read its memory
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            together.arrive_and_wait()  # the whole warp group may write there
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float32, num_bits_per_copy=64)
        mine = cute.make_tiled_copy_C(atom, consumer.mmas.grad_q).get_slice(consumer.thread)
        target = mine.partition_D(shared.sums[None, None, group])
        cute.copy(atom, mine.retile(grad_q), target)
        cute.arch.fence_proxy("async.shared", space="cta")  # TMA reads what threads have written
        if cutlass.const_expr(self.tiling.adder):
            self.handed(group, full=True).arrive()
        else:
            together.arrive_and_wait()  # all of the warp group have written
            if adding:
                source, to = self.parts(shared, sums, tile, head)
                self.add_part(sums, source, to, block, group)

    def handed(self, group, full: bool) -> pipeline.NamedBarrier:
        """Where a consumer warp group and the warp that adds hand over a part of ``grad_q``, or its memory."""
        first = self.barriers.free + 1 + (CONSUMERS if full else 0)
        return pipeline.NamedBarrier(barrier_id=first + group, num_threads=WARP_GROUP + WARP)

    def parts(self, shared: Shared, sums: Operand, tile: Tile, head: Int32) -> tuple:
        own = self.of_head(sums, tile.sequence, tile.first_query, tile.queries, head)
        return tma.partition(sums.atom, shared.sums, cute.local_tile(own, (PART, PART), (None, None)))

    def add_part(self, sums: Operand, source: cute.Tensor, to: cute.Tensor, block: Int32, group) -> None:
        """Start to add a group's part to the sums. TMA leaves out rows past the end."""
        slices = self.tiling.slices
        row, column = (block, group) if slices == 1 else (block * slices + group, 0)
        cute.copy(sums.atom, source[None, group], to[None, row, column])
        cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def add_parts(self, shared, sums, side, tile):
        """The warp that adds parts of ``grad_q`` to the sums in memory."""
        blocks = side.blocks(tile)
        for g in cutlass.range(side.problem.heads_of_key, unroll=1):
            source, to = self.parts(shared, sums, tile, side.query_head(tile, g))
            for block in cutlass.range(blocks.begin, blocks.end, unroll=1):
                for group in cutlass.range_constexpr(CONSUMERS):
                    cute.arch.cp_async_bulk_wait_group(CONSUMERS - 1 - group, read=True)
                    self.handed(group, full=False).arrive()
                for group in cutlass.range_constexpr(CONSUMERS):
                    self.handed(group, full=True).arrive_and_wait()
                    self.add_part(sums, source, to, block, group)
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive the additions that read it

    @cute.jit
    def store_gradient(self, consumer, sums, memory, operand, side, tile):
        """Round sums of 64 keys, and store them through ``memory``, which was that of the keys. TMA leaves out rows past the end."""
        group = consumer.group
        shared = cute.make_tensor(memory.iterator, operand.staged.outer)
        slices = cute.size(shared, mode=[2]) // CONSUMERS
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), self.dtype)
        copy = cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, consumer.mmas.sums))
        mine = copy.get_slice(consumer.thread)
        target = mine.partition_D(shared)
        rounded = cute.make_rmem_tensor(cute.shape(mine.partition_S(shared))[:3], self.dtype)
        size = cute.size(rounded)
        for s in cutlass.range_constexpr(slices):
            round_to(rounded, cute.make_tensor(sums.iterator + s * size, cute.make_layout(size)))
            cute.copy(copy, rounded, target[None, None, None, s * CONSUMERS + group])
        cute.arch.fence_proxy("async.shared", space="cta")  # TMA reads what threads have written
        self.barriers.together(group).arrive_and_wait()  # all of the warp group have written
        if cute.arch.make_warp_uniform(consumer.thread // WARP) == 0:
            own = self.of_head(operand, tile.sequence, tile.first_token, tile.tokens, tile.head)
            own = cute.local_tile(own, (WGMMA_ROWS, self.tiling.dim // slices), (None, None))
            stored, to = tma.partition(operand.atom, shared, own)
            for s in cutlass.range_constexpr(slices):
                cute.copy(
                    operand.atom, stored[None, s * CONSUMERS + group], to[None, tile.index * CONSUMERS + group, s]
                )
            cute.arch.cp_async_bulk_commit_group()

    # Kernels over rows.

    @cute.kernel
    def finish_kernel(self, sums: cute.Tensor, grad_q: cute.Tensor, scale: Float32):
        """Scale the sums of ``grad_q`` and round them."""
        row, place, chunk = self.row_of_thread(grad_q, self.tiling.dim)
        await_previous(self.early)
        if row < cute.size(grad_q.shape) // self.tiling.dim:
            values = fetch(sums[(*place, None)], chunk, CHUNK).load() * scale
            store(values, grad_q[(*place, None)], chunk, self.tiling.dim // CHUNK, CHUNK)

    @cute.kernel
    def blank_kernel(self, grad_k: cute.Tensor, grad_v: cute.Tensor):
        """The gradients of keys and values if there is no query."""
        row, place, chunk = self.row_of_thread(grad_k, self.tiling.dim)
        await_previous(self.early)
        if row < cute.size(grad_k.shape) // self.tiling.dim:
            for target in (grad_k, grad_v):
                store(cute.full(CHUNK, 0.0, Float32), target[(*place, None)], chunk, self.tiling.dim // CHUNK, CHUNK)


def load_tile(pipe, atom: cute.CopyAtom, target: cute.Tensor, source: cute.Tensor, block: Int32, state) -> None:
    """Wait until a stage is empty, then start to fill it."""
    pipe.producer_acquire(state)
    barrier = pipe.producer_get_barrier(state)
    cute.copy(atom, source[None, block], target[None, state.index], tma_bar_ptr=barrier)


def turned(x: cute.Tensor) -> cute.Tensor:
    """The same memory with the first two modes exchanged."""
    return cute.make_tensor(x.iterator, cute.select(x.layout, mode=[1, 0, *range(2, cute.rank(x))]))


def store_operand(operation, tensor: cute.Tensor, staged: cute.ComposedLayout, tile: tuple[int, int]) -> Operand:
    """A tensor that TMA stores to, or adds to, a tile at a time."""
    one = cute.select(staged, mode=[0, 1])
    return Operand(*cpasync.make_tiled_tma_atom(operation, tensor, one, tile), staged)
