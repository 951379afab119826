"""Gradients of attention for sm_90a: TMA loads tiles into shared memory, wgmma multiplies them from there.

A block of threads has 128 keys with their values, 64 for each of two consumer warp groups, and goes over the queries that
see them in blocks of ``queries``, head by head of those that share the keys. For each block of queries, a warp group computes

* ``scores = k @ q.T`` and ``slopes = v @ grad_out.T``, a row for each of its keys. Both stay in registers.
* ``P`` and ``dS`` from them. In registers, both are left operands of ``grad_v += P @ grad_out`` and ``grad_k += dS @ q``.
* ``dS`` once more in shared memory, beside that of the other group: together they are what ``grad_q = dS.T @ k`` needs. Each group
  computes a part of it, or one group all of it, and adds the part to sums in memory.

So ``grad_k`` and ``grad_v`` are written once, in a fixed order. The sums of ``grad_q`` are f32: many blocks add to them, in the order
in which they come, or in turn if the call is deterministic.

Both warp groups wait for each other once in a block of queries. So they compute exponentials at the same time, and the tensor
cores must have other products meanwhile: ``slopes`` run beside the exponentials, ``grad_v`` beside ``dS`` if there are registers
for it, and ``grad_k`` while ``grad_q`` is handed on. No product may run across the end of the loop: the assembler would wait for each.

The bandwidth of shared memory is the limit. A product of 64 rows reads both operands from there, unless the left one is in
registers: the more queries a block has, the less often keys and values are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32
from cutlass.cute.nvgpu import warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from ...sm90.hardware import (
    BARRIER_BYTES,
    CONSUMER_REGISTERS,
    CONSUMERS,
    WGMMA_ROWS,
    accumulator_row,
)
from ...sm90.pipeline import consumer_state
from ...sm90.softmax import score_product, start_product, value_product
from .._softmax import scale_sums
from ..prompts import _producer_sm90 as tma
from ..prompts._attention import ELEMENT_BYTES, Tile
from ..prompts._store_sm90 import Place
from ._backward import SLAB, column_of, require_room
from ._backward_fused_sm90 import FusedBackward, Memory
from ._backward_tma_sm90 import STAGES, thread_of_group, turned
from ._grad_q_sm90 import (
    PART,
    TOKENS,
    Adder,
    QueryPart,
    Slopes,
    query_mmas,
    query_part,
)

# Of warp groups of which one computes all of ``grad_q``. Together as many as two equal ones have: see ``hardware``.
MORE_REGISTERS, FEWER_REGISTERS = 256, 224


@dataclass(frozen=True)
class Tiling:
    """128 keys against ``queries`` queries at a time."""

    queries: int
    dim: int
    value_dim: int
    cut: tuple[int, ...] = ()  # queries of each portion: see ``weigh_portions``; without portions, see ``weigh_all``
    exact: bool = True  # whether portions of ``dS`` are computed from ``P`` in f32; else as it was rounded for ``grad_v``, in fewer registers
    single: bool = False  # whether the first warp group computes all of ``grad_q``, and the other one none
    rounds = 1  # in which a warp group hands its part of ``grad_q`` on
    slope_stages = STAGES

    @property
    def label(self) -> str:
        return f"tile{TOKENS}x{self.queries}"

    @property
    def between(self) -> int:
        """Columns of ``grad_q`` that both warp groups compute: see ``QueryPart``."""
        return max(self.dim - CONSUMERS * PART, 0) if self.turned else 0

    @property
    def rows(self) -> int:
        return TOKENS

    @property
    def columns(self) -> int:
        return self.queries

    @property
    def slices(self) -> int:
        """64 queries each."""
        return max(self.queries // PART, 1)

    @property
    def turned(self) -> bool:
        """Whether ``grad_q`` is computed with its columns as rows, because 64 rows of a product are not queries."""
        return self.queries % PART != 0

    @property
    def portions(self) -> list[tuple[int, int]]:
        """Where each portion begins, and how many queries it has."""
        return [(sum(self.cut[:i]), size) for i, size in enumerate(self.cut)]

    @property
    def givers(self) -> int:
        """Warp groups that compute ``grad_q``."""
        return 1 if self.single else CONSUMERS

    @property
    def alone(self) -> bool:
        """Whether ``grad_v`` is there before ``grad_q`` is begun: there are too few registers for both."""
        return self.between > 0 and self.queries > 32

    @property
    def parts(self) -> tuple[int, int]:
        """Columns of ``grad_q`` that the warp groups compute: some for all queries, or all for half of the queries."""
        if self.single:
            return self.dim, 0
        if self.slices > 1:
            return self.dim, self.dim
        line = tma.line_of(self.dim)
        first = PART if self.turned else -(-self.dim // (2 * line)) * line
        return first, self.dim - first

    @property
    def shared_bytes(self) -> int:
        lines = TOKENS + STAGES * self.queries  # of keys with values, and of queries with ``grad_out``
        slopes = STAGES * self.queries * TOKENS
        return (
            (lines * (self.dim + self.value_dim) + slopes) * ELEMENT_BYTES
            + (self.queries * self.dim + 2 * STAGES * self.queries) * 4  # of ``grad_q``, and statistics
            + 32 * BARRIER_BYTES
        )

    def validate(self, target: aot.Target) -> None:
        if (
            self.queries % 16
            or self.dim % SLAB
            or (self.slices == 1 and not self.turned and not self.single and len({*self.parts}) > 1)
        ):
            raise aot.DeclarationError(
                f"{self.queries} queries of {self.dim} elements", hint="queries come in 16s, and elements in 32s"
            )
        require_room(self, f"keys and {STAGES} stages", target)


class Products(NamedTuple):
    scores: cute.TiledMma  # and slopes
    sums: tuple[cute.TiledMma, cute.TiledMma]  # of ``grad_k`` and ``grad_v``
    grad_q: tuple[cute.TiledMma, ...]


@dataclass(frozen=True)
class Consumer:
    """Operands and accumulators of a consumer warp group."""

    mmas: Products
    lefts: tuple[cute.Tensor, ...]  # keys and values
    rights: tuple[cute.Tensor, ...]  # queries and ``grad_out``
    across: tuple[cute.Tensor, ...]  # the same for products along queries
    query_part: QueryPart | None  # none if the other warp group computes all of it
    grad_k: cute.Tensor
    grad_v: cute.Tensor
    shared_slopes: Slopes
    adder: Adder
    place: Place


class Backward(FusedBackward):
    @property
    def together(self) -> int:
        """Each read of four costs a cycle more than two reads of two. With one portion, the loop has time to spare for that."""
        return 4 if len(self.tiling.portions) == 1 else 2

    def slabs(self) -> tuple[Any, tuple[int, int]]:
        tiling = self.tiling
        lines, handed = tiling.queries // tiling.slices, sum(tiling.parts) // SLAB
        if tiling.turned:
            layout = hopper_helpers.make_smem_layout_epi(Float32, LayoutEnum.ROW_MAJOR, (lines, SLAB), handed)
        else:
            layout = cute.make_layout((lines, SLAB, handed), stride=(SLAB, 1, lines * SLAB))
        return layout, (lines, SLAB)

    def products(self) -> Products:
        tiling, dtype = self.tiling, self.dtype
        return Products(
            score_product(dtype, tiling.queries),
            tuple(value_product(dtype, width) for width in (tiling.dim, tiling.value_dim)),
            query_mmas(tiling, dtype),
        )

    # The consumers.

    @cute.jit
    def consume(self, mmas, memory, operands, scoring, scale, statistics, side, tile, group):
        rest = (mmas, memory, operands, scoring, scale, side, tile, thread_of_group())
        if cutlass.const_expr(self.tiling.single):
            if group == 1:
                self.consume_as(MORE_REGISTERS, Int32(1), True, *rest)
            else:
                self.consume_as(FEWER_REGISTERS, Int32(2), False, *rest)
        else:
            self.consume_as(CONSUMER_REGISTERS, group, True, *rest)

    def consume_as(
        self, registers: int, group: Int32, gives: bool, mmas, memory, operands, scoring, scale, side, tile, thread
    ) -> None:
        """Compute the sums of a tile, and store them. Whether this warp group computes ``grad_q`` is ``gives``."""
        cute.arch.setmaxregister_increase(registers)
        consumer, shared = self.consumer(mmas, memory, group - 1, thread, gives), memory.shared
        self.add_up(consumer, memory.pipes, shared.statistics, scoring, side, tile)
        scale_sums(consumer.grad_k, [scale, scale])
        stored = (
            (consumer.grad_v, mmas.sums[1], shared.row_values, operands.value_gradient),
            (consumer.grad_k, mmas.sums[0], shared.rows, operands.gradient),
        )
        self.store_all(consumer.place, stored, side, tile)

    def consumer(self, mmas: Products, memory: Memory, group: Int32, thread: Int32, gives: bool) -> Consumer:
        _, shared, slopes, adder, _ = memory
        widths = (self.tiling.dim, self.tiling.value_dim)
        own = mmas.scores.get_slice(0)
        rows = [cute.local_tile(x, (WGMMA_ROWS, dim), (group, 0, 0)) for x, dim in zip(shared[:2], widths, strict=True)]
        return Consumer(
            mmas,
            tuple(mmas.scores.make_fragment_A(own.partition_A(x)) for x in rows),
            tuple(mmas.scores.make_fragment_B(own.partition_B(x)) for x in shared[2:4]),
            tuple(
                mma.make_fragment_B(mma.get_slice(0).partition_B(turned(x)))
                for mma, x in zip(mmas.sums, shared[2:4], strict=True)
            ),
            query_part(self.tiling, mmas.grad_q, slopes, turned(shared.rows)[None, None, 0], group) if gives else None,
            *(
                cute.make_rmem_tensor(mma.partition_shape_C((WGMMA_ROWS, dim)), Float32)
                for mma, dim in zip(mmas.sums, widths, strict=True)
            ),
            slopes,
            adder,
            Place(group, thread, group, Int32(0), CONSUMERS),
        )

    def share(self, consumer: Consumer, gradients: cute.Tensor, stage: Int32, first: int, queries: int) -> None:
        """Write the group's rows of ``dS`` to shared memory."""
        group, thread = consumer.place.group, consumer.place.thread
        mma = consumer.mmas.scores
        consumer.shared_slopes.write(gradients, mma, thread, stage, group, first, queries)

    @cute.jit
    def add_up(self, consumer, pipes, statistics, scoring, side, tile):
        """The sums of a tile's ``grad_k`` and ``grad_v``, and what its keys add to those of ``grad_q``."""
        blocks = side.blocks(tile)
        consumer.grad_k.fill(0.0)
        consumer.grad_v.fill(0.0)
        state = consumer_state(STAGES)
        outer, inner = side.loops(tile, blocks)
        for i in cutlass.range(outer, unroll=1):
            for j in cutlass.range(inner, unroll=1):
                block, _ = side.columns_at(tile, blocks, i, j)
                state = self.add_block(consumer, pipes, statistics, scoring, side, tile, blocks, block, state)

    @cute.jit
    def add_block(self, consumer, pipes, statistics, scoring, side, tile, blocks, block, state):
        """What one block of queries adds."""
        stage = state.index
        scores, slopes = (self.new_scores(consumer) for _ in range(2))
        pipes.columns.consumer_wait(state)
        self.start_scores(consumer, scores, 0, stage)
        pipes.column_values.consumer_wait(state)
        self.start_scores(consumer, slopes, 1, stage)
        if cutlass.const_expr(len(self.tiling.portions) > 0):
            gradients, last = self.weigh_portions(
                consumer, statistics, scoring, side, tile, blocks, block, stage, scores, slopes
            )
        else:
            gradients, last = self.weigh_all(
                consumer, statistics, scoring, side, tile, blocks, block, stage, scores, slopes
            )
        return self.finish_block(consumer, pipes, gradients, tile, state, last)

    @cute.jit
    def weigh_portions(self, consumer, statistics, scoring, side, tile, blocks, block, stage, scores, slopes):
        """Add to ``grad_v``, one portion of the queries after the other: products of one run beside the exponentials of the next.

        Also add to ``grad_k``, but for the last portion. Returns its ``dS``, and where it begins.
        """
        warpgroup.wait_group(1)  # for the scores, not for the slopes
        side.mask(scores, tile, blocks, block, self.first_row(consumer, tile))
        for first, queries in self.tiling.portions:
            own, own_slopes = (
                cute.make_tensor(x.iterator + first // 2, cute.make_layout(queries // 2)) for x in (scores, slopes)
            )
            self.weigh_columns(own, scoring, self.statistics_of_columns(statistics, 0, stage, first, queries))
            weights = self.rounded(consumer.mmas.sums[0], own)
            if cutlass.const_expr(not self.tiling.exact):
                own = widened(registers_of(weights), self.dtype)
            self.start_sums(consumer, consumer.grad_v, weights, 1, stage, first)
            delta = self.statistics_of_columns(statistics, 1, stage, first, queries)
            if cutlass.const_expr(first == 0):
                warpgroup.wait_group(1)  # for the slopes
            self.slope_columns(own, own_slopes, delta)
            gradients = self.rounded(consumer.mmas.sums[0], own_slopes)
            self.share(consumer, gradients, stage, first, queries)
            if cutlass.const_expr(first + queries < self.tiling.queries):
                self.start_sums(consumer, consumer.grad_k, gradients, 0, stage, first)
        return gradients, first

    @cute.jit
    def weigh_all(self, consumer, statistics, scoring, side, tile, blocks, block, stage, scores, slopes):
        """Add to ``grad_v`` when ``dS`` is there, for which fewer registers are enough. Returns ``dS``, which begins at 0."""
        lse = self.statistics_of_columns(statistics, 0, stage)
        warpgroup.wait_group(1)  # for the scores, not for the slopes
        side.mask(scores, tile, blocks, block, self.first_row(consumer, tile))
        self.weigh_columns(scores, scoring, lse)
        delta = self.statistics_of_columns(statistics, 1, stage)
        warpgroup.wait_group(
            0
        )  # for the slopes: the assembler waits amid the exponentials, some of which then run beside ``dS``
        self.slope_columns(scores, slopes, delta)
        weights, gradients = (self.rounded(consumer.mmas.sums[0], x) for x in (scores, slopes))
        self.share(consumer, gradients, stage, 0, self.tiling.queries)
        self.start_sums(consumer, consumer.grad_v, weights, 1, stage)
        return gradients, 0

    def first_row(self, consumer: Consumer, tile: Tile) -> Int32:
        """The first key of this thread."""
        return tile.index * TOKENS + consumer.place.group * WGMMA_ROWS + accumulator_row(consumer.place.thread)

    def new_scores(self, consumer: Consumer) -> cute.Tensor:
        return cute.make_rmem_tensor(consumer.mmas.scores.partition_shape_C((WGMMA_ROWS, self.tiling.queries)), Float32)

    def start_scores(self, consumer: Consumer, target: cute.Tensor, which: int, stage: Int32) -> None:
        """Start scores, or slopes."""
        right = consumer.rights[which][None, None, None, stage]
        start_product(consumer.mmas.scores, target, consumer.lefts[which], right, True)

    def start_sums(self, consumer: Consumer, sums, left: cute.Tensor, which: int, stage: Int32, first: int = 0) -> None:
        """Start to add what comes from queries to ``grad_k``, or what comes from ``grad_out`` to ``grad_v``: from ``first`` on."""
        across = consumer.across[which][None, None, None, stage]
        start_product(consumer.mmas.sums[which], sums, left, across, False, first // 16)

    @cute.jit
    def weigh_columns(self, scores, scoring, lse):
        """Scores become ``P``."""
        for i in cutlass.range_constexpr(cute.size(scores)):
            scores[i] = cute.math.exp2(scores[i] * scoring.scale - lse[column_of(i)], fastmath=True)

    @cute.jit
    def slope_columns(self, weights, slopes, delta):
        """Slopes become ``dS``."""
        for i in cutlass.range_constexpr(cute.size(slopes)):
            slopes[i] = weights[i] * (slopes[i] - delta[column_of(i)])

    @cute.jit
    def finish_block(self, consumer, pipes, gradients, tile, state, first: cutlass.Constexpr = 0):
        """When both groups have written ``dS``, add to ``grad_q`` and ``grad_k``, and release the stage."""
        cute.arch.fence_proxy("async.shared", space="cta")  # wgmma reads what threads have written
        self.barriers_of_all().arrive_and_wait()  # both groups have: ``grad_q`` takes the rows of both
        if cutlass.const_expr(self.tiling.alone):
            warpgroup.wait_group(0)  # for ``grad_v``: its weights give their registers to ``grad_q``
        gives = consumer.query_part is not None
        grad_q = consumer.query_part.start(state.index) if cutlass.const_expr(gives) else None
        self.start_sums(consumer, consumer.grad_k, gradients, 0, state.index, first)
        warpgroup.wait_group(1)  # ``grad_q`` and ``grad_v`` have ended, ``grad_k`` runs beside what follows
        pipes.column_values.consumer_release(state)
        if cutlass.const_expr(gives):
            self.hand(consumer, grad_q, tile)
        warpgroup.wait_group(0)  # ``grad_k`` does not run into the next block: see above
        cute.arch.sync_warp()  # all lanes have read the statistics
        pipes.columns.consumer_release(state)
        state.advance()
        return state

    def hand(self, consumer: Consumer, grad_q: list[cute.Tensor], tile: Tile) -> None:
        """Hand a part of ``grad_q`` to the warp that adds it."""
        place = consumer.place
        if self.tiling.turned:
            consumer.adder.hand_turned(grad_q, place)
        else:
            first = tile.first_query if self.ragged else 0
            odd = (accumulator_row(place.thread) + first) % 2
            consumer.adder.hand(grad_q[0], place, place.group * (self.tiling.parts[0] // SLAB), odd)


def registers_of(weights: cute.Tensor) -> cute.Tensor:
    """A copy of registers with two elements each, the second one first. While a product reads the registers, nobody else may."""
    source = cute.recast_tensor(cute.make_tensor(weights.iterator, cute.make_layout(cute.size(weights))), Int32)
    copy = cute.make_rmem_tensor(cute.size(source), Int32)
    for i in range(cute.size(source)):
        copy[i] = Int32(cute.arch.prmt(source[i], 0, 0x1032))
    return copy


def widened(pairs: cute.Tensor, dtype) -> cute.Tensor:
    """What ``registers_of`` gives, as f32 in order."""
    wide = cute.make_rmem_tensor(2 * cute.size(pairs), Float32)
    bits, elements = cute.recast_tensor(wide, Int32), cute.recast_tensor(pairs, dtype)
    for i in range(cute.size(pairs)):
        if dtype == BFloat16:  # the upper half of f32
            bits[2 * i], bits[2 * i + 1] = pairs[i] & -65536, pairs[i] << 16
        else:
            wide[2 * i], wide[2 * i + 1] = (elements[2 * i + c].to(Float32) for c in (1, 0))
    return wide
