"""What blocks of keys add to ``grad_q`` on sm_90a: ``dS`` goes through shared memory, and parts of the product to f32 sums in memory.

``grad_q = dS.T @ k`` takes the keys of both warp groups. So each writes its rows of ``dS`` to shared memory, and computes some
columns, or some queries, of the product. Many blocks of threads add to the sums, in the order in which they come. If a call is
deterministic, they add to each block of queries in turn: see ``Side.turn``. One warp waits for turns while another one still
adds, because both take longer than a block's products.

Of every 16 columns, a thread has two neighbours of either half. They lie side by side in the sums, so that one instruction moves
four: rows of the sums have an order of their own, which ``column_in_order`` tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.pipeline import NamedBarrier
from cutlass.utils import LayoutEnum, hopper_helpers

from ..._device import WARP
from ..._versions import SmemAllocator
from ...sm90.hardware import ALIGNMENT, CONSUMERS, WARP_GROUP, WGMMA_ROWS, Barriers, accumulator_row
from ...sm90.softmax import start_product
from ..prompts import _producer_sm90 as tma
from ..prompts._producer_sm90 import Operand, of_head
from ._backward import SLAB
from ._backward_tma_sm90 import turned

PART = 64  # queries, and most columns, of what a warp group computes
TOKENS = CONSUMERS * WGMMA_ROWS  # keys of a block of threads
BOX = 16  # columns of which a thread has four


def query_product(dtype, columns: int, slopes=OperandMajorMode.K) -> cute.TiledMma:
    """``dS.T @ k`` of one warp group, both operands from shared memory. Which mode of ``dS.T`` is contiguous is ``slopes``."""
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, slopes, OperandMajorMode.MN, Float32, (1, 1, 1), (WGMMA_ROWS, columns)
    )


def turned_query_product(dtype, queries: int) -> cute.TiledMma:
    """``k.T @ dS`` of one warp group, with 64 columns of ``k``: the same for a number of queries that 64 does not divide."""
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, OperandMajorMode.MN, OperandMajorMode.K, Float32, (1, 1, 1), (WGMMA_ROWS, queries)
    )


def four_of(grad_q: cute.Tensor, r: int, box: int) -> cute.Tensor:
    """What a thread has of 16 columns in one of its two rows."""
    four = cute.make_rmem_tensor(4, Float32)
    for i in range(4):
        four[i] = grad_q[8 * box + 4 * (i // 2) + 2 * r + i % 2]
    return four


def column_in_order(i: int) -> int:
    """Which of 16 columns lies at place ``i`` of the sums."""
    return i % 4 // 2 * 8 + i // 4 * 2 + i % 2


@dataclass(frozen=True)
class Slopes:
    """``dS`` in shared memory, where both warp groups can multiply with it: queries x tokens x stages.

    Products of warp groups read rows of queries faster than rows of tokens, if these are left operands: by half of the lines.
    """

    memory: cute.Tensor
    by_queries: bool  # whether the tokens of a query are contiguous

    @cute.jit
    def write(self, gradients, mma, thread, stage, token, query, queries: cutlass.Constexpr):
        """Write accumulators of 64 tokens, of which ``token`` is the number, and ``queries`` queries, of which ``query`` is the first."""
        own = cute.domain_offset((0, query, 0), turned(self.memory))
        own = cute.local_tile(own, (WGMMA_ROWS, queries), (token, 0, stage))
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(self.by_queries, 4), gradients.element_type)
        copy = cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, mma))
        mine = copy.get_slice(thread)
        values = cute.make_tensor(gradients.iterator, cute.make_layout(cute.shape(mine.partition_S(own))))
        cute.copy(copy, values, mine.partition_D(own))


def shared_slopes(
    allocator: SmemAllocator, dtype, queries: int, tokens: int, stages: int, by_queries: bool = True
) -> Slopes:
    major = LayoutEnum.ROW_MAJOR if by_queries else LayoutEnum.COL_MAJOR
    layout = hopper_helpers.make_smem_layout_a(major, (queries, queries, tokens), dtype, stages)
    return Slopes(allocator.allocate_tensor(dtype, layout.outer, ALIGNMENT, swizzle=layout.inner), by_queries)


@dataclass(frozen=True)
class Adder:
    """A warp that adds parts of ``grad_q`` to the sums with TMA, and how it gets them from the warp groups.

    Threads could add their accumulators themselves, but that takes longer than the products. A slab of 32 columns is contiguous
    in shared memory, and in the sums. The two boxes of a slab change places in odd rows: else two rows would meet in the same banks.
    """

    tiling: Any
    sums: Operand
    memory: cute.Tensor  # queries x 32 columns x slabs of both warp groups
    barriers: Barriers
    plain: cute.Pointer  # the same memory without a swizzle

    @cute.jit
    def hand(self, grad_q, place, first, odd):
        """Hand slabs from ``first`` on to the warp that adds them. ``odd`` is 1 if the first row of this thread is odd, else 0."""
        self.handed(place.group, full=False).arrive_and_wait()  # TMA has read what was handed before
        row, slabs = accumulator_row(place.thread), cute.size(self.memory, mode=[2])
        boxes = cute.make_tensor(
            self.memory.iterator,
            cute.make_layout((PART, 4, 4, 2, slabs), stride=(SLAB, 1, 4, BOX, SLAB * PART)),
        )
        for half in cutlass.range_constexpr(2):
            at = odd if cutlass.const_expr(half == 0) else 1 - odd
            for r in cutlass.range_constexpr(2):
                for slab in cutlass.range_constexpr(cute.size(grad_q) // 16):
                    target = boxes[row + 8 * r, None, place.thread % 4, at, first + slab]
                    cute.autovec_copy(four_of(grad_q, r, 2 * slab + half), target)
        cute.arch.fence_proxy("async.shared", space="cta")  # TMA reads what threads have written
        self.handed(place.group, full=True).arrive()

    @cute.jit
    def hand_turned(self, grad_q, place):
        """The same for accumulators whose rows are columns of ``grad_q``: the first 64, or the last; then those between them."""
        self.handed(place.group, full=False).arrive_and_wait()
        warp, queries = cute.arch.make_warp_uniform(place.thread // WARP), self.tiling.queries
        slab = place.group * ((self.tiling.dim - PART) // SLAB) + warp // 2
        if cutlass.const_expr(self.tiling.between > 0):  # noqa: SIM114 (known when the kernel is compiled)
            self.write_turned(grad_q[0], slab, Int32(0), warp)
        elif slab >= place.group * (PART // SLAB):  # else the other group hands it
            self.write_turned(grad_q[0], slab, Int32(0), warp)
        if cutlass.const_expr(len(grad_q) > 1):
            self.write_turned(grad_q[1], PART // SLAB + warp // 2, place.group * (queries // CONSUMERS), warp)
        cute.arch.fence_proxy("async.shared", space="cta")  # TMA reads what threads have written
        self.handed(place.group, full=True).arrive()

    @cute.jit
    def write_turned(self, part, slab, first, warp):
        """Write accumulators of a slab from query ``first`` on. TMA's swizzle keeps the threads of a warp out of each other's banks."""
        lane, start = cute.arch.lane_idx(), self.plain + (slab * self.tiling.queries + first) * SLAB
        for r in cutlass.range_constexpr(2):
            for c in cutlass.range_constexpr(2):
                query, column = lane % 4 * 2 + c, warp % 2 * 16 + lane // 4 + 8 * r
                swizzled = (column // 4 ^ query) * 4 + column % 4
                layout = cute.make_layout(cute.size(part) // 4, stride=8 * SLAB)
                target = cute.make_tensor(start + query * SLAB + swizzled, layout)
                for n in cutlass.range_constexpr(cute.size(part) // 4):
                    target[n] = part[4 * n + 2 * r + c]

    def handed(self, group, full: bool) -> NamedBarrier:
        """Where a warp group and the warp that adds hand over a part of ``grad_q``, or its memory.

        Two barriers for each group: one tells that the memory is full, the other that TMA has read it. Who hands over arrives
        and goes on; who gets it waits.
        """
        first = self.barriers.free + 1 + (CONSUMERS if full else 0)
        return NamedBarrier(barrier_id=first + group, num_threads=WARP_GROUP + WARP)

    @cute.jit
    def add_parts(self, side, tile, turns):
        """Add the parts of a tile of keys, block by block of queries."""
        blocks, slabs, last = side.blocks(tile), self.tiling.dim // SLAB, Int32(-1)
        outer, inner = side.loops(tile, blocks)
        for i in cutlass.range(outer, unroll=1):
            for j in cutlass.range(inner, unroll=1):
                block, number = side.columns_at(tile, blocks, i, j)
                head = side.column_head(tile, number)
                targets = []
                for slab in cutlass.range_constexpr(slabs):
                    own = of_head(self.sums, tile.sequence, tile.first_query, tile.queries, head * slabs + slab)
                    own = cute.local_tile(own, (cute.size(self.memory, mode=[0]), SLAB), (None, 0))
                    source, to = tma.partition(self.sums.atom, self.memory, own)
                    targets.append(to)
                for part in cutlass.range_constexpr(self.tiling.rounds):
                    for group in cutlass.range_constexpr(self.tiling.givers):
                        later = 0 if self.tiling.between else self.tiling.givers - 1 - group
                        cute.arch.cp_async_bulk_wait_group(later, read=True)  # its last part was read
                        self.handed(group, full=False).arrive()
                    if cutlass.const_expr(part == 0):  # noqa: SIM102 (known when the kernel is compiled)
                        if side.in_turn:
                            pass_turn(turns, last)
                            last = cute.crd2idx((head, block * side.tile_columns), turns.layout)
                            self.turn_taken().arrive_and_wait()
                            cute.arch.fence_proxy("async.global")  # what TMA adds comes after what was seen
                    for group in cutlass.range_constexpr(self.tiling.givers):
                        self.handed(group, full=True).arrive_and_wait()  # each thread has fenced what it has written
                        self.start(source, targets, block, group, part)
        pass_turn(turns, last)
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive the additions that read it

    def turn_taken(self) -> NamedBarrier:
        """Where the warp that waits for turns meets the warp that adds."""
        return NamedBarrier(barrier_id=self.barriers.free + 2 + 2 * CONSUMERS, num_threads=2 * WARP)

    @cute.jit
    def await_turns(self, side, tile, turns):
        """Wait for the turns of a tile, block by block of queries, while another warp still adds to the block before."""
        if side.in_turn:
            blocks = side.blocks(tile)
            outer, inner = side.loops(tile, blocks)
            for i in cutlass.range(outer, unroll=1):
                for j in cutlass.range(inner, unroll=1):
                    block, number = side.columns_at(tile, blocks, i, j)
                    place = cute.crd2idx((side.column_head(tile, number), block * side.tile_columns), turns.layout)
                    await_turn(turns, place, side.turn(tile, block))
                    self.turn_taken().arrive_and_wait()

    def start(self, source: cute.Tensor, targets: list[cute.Tensor], block, group: int, part: int) -> None:
        """Start to add what a warp group handed on. TMA leaves out rows past the end."""
        tiling = self.tiling
        count = tiling.parts[group] // SLAB // tiling.rounds
        first = group * tiling.parts[0] // SLAB
        row, at = (block, first + part * count) if tiling.slices == 1 else (block * tiling.slices + group, 0)
        for slab in range(count):
            cute.copy(self.sums.atom, source[None, first // tiling.rounds + slab], targets[at + slab][None, row])
        cute.arch.cp_async_bulk_commit_group()


@cute.jit
def await_turn(turns, place, number):
    """Wait until ``number`` tiles of keys have added to the block of queries at ``place``. All lanes of a warp call this.

    These tiles have lower block indices, and a GPU starts blocks in the order of their indices. So all of them get there.
    """
    if cute.arch.lane_idx() == 0:  # acquire: what the tiles before have added is visible with their number
        while cute.arch.load(turns.iterator + place, Int32, sem="acquire", scope="gpu") < number:
            pass
    cute.arch.sync_warp()


@cute.jit
def pass_turn(turns, place):
    """When all that this warp has started to add is in memory, let the next tile of keys add at ``place``; not if it is negative."""
    if place >= 0:
        cute.arch.cp_async_bulk_wait_group(0)  # the additions are done, not only read from shared memory
        cute.arch.fence_proxy("async.global")  # TMA has added through another proxy than the one that tells the number
        cute.arch.sync_warp()
        if cute.arch.lane_idx() == 0:
            cute.arch.atomic_add(turns.iterator + place, Int32(1), sem="release", scope="gpu")


@dataclass(frozen=True)
class QueryPart:
    """The part of ``grad_q`` that a warp group computes, as one or two products.

    If 64 rows of a product are not queries, they are columns: 64 columns for each group, the first and the last. Those between
    them are computed by both groups, each for half of the queries.
    """

    mmas: tuple[cute.TiledMma, ...]
    operands: tuple[tuple[cute.Tensor, cute.Tensor], ...]
    columns: tuple[int, ...]  # of accumulators

    def start(self, stage) -> list[cute.Tensor]:
        """Start the products of a block of queries, whose ``dS`` is in a stage of shared memory."""
        parts = []
        for mma, (left, right), columns in zip(self.mmas, self.operands, self.columns, strict=True):
            part = cute.make_rmem_tensor(mma.partition_shape_C((WGMMA_ROWS, columns)), Float32)
            start_product(mma, part, *(in_stage(x, stage) for x in (left, right)), True)
            parts.append(part)
        return parts


def in_stage(operand: cute.Tensor, stage) -> cute.Tensor:
    """An operand, of one stage if it has several."""
    return operand[None, None, None, stage] if cute.rank(operand) == 4 else operand


def query_mmas(tiling: Any, dtype) -> tuple[cute.TiledMma, ...]:
    if not tiling.turned:
        return (query_product(dtype, tiling.parts[0]),)
    whole = turned_query_product(dtype, tiling.queries)
    return (whole, turned_query_product(dtype, tiling.queries // CONSUMERS)) if tiling.between else (whole,)


def query_part(tiling: Any, mmas: tuple[cute.TiledMma, ...], slopes: Slopes, keys: cute.Tensor, group) -> QueryPart:
    """``dS`` and ``keys`` (elements x tokens) as operands of a warp group's part of ``grad_q``."""
    mma, own, dim = mmas[0], mmas[0].get_slice(0), tiling.dim
    if not tiling.turned:
        columns = tiling.parts[0]
        mine = columns_from(keys, group * (dim - columns), columns)
        lines = (tiling.queries // tiling.slices, TOKENS)
        queries = cute.local_tile(slopes.memory, lines, (group if tiling.slices > 1 else 0, 0, None))
        operands = (mma.make_fragment_A(own.partition_A(queries)), mma.make_fragment_B(own.partition_B(mine)))
        return QueryPart(mmas, (operands,), (columns,))
    # The last 64 columns are those of the second group, some of which the first one may have too.
    placed = ((group * (dim - PART), tiling.queries, 0), (PART, tiling.queries // CONSUMERS, group))[: len(mmas)]
    operands = tuple(
        (
            mma.make_fragment_A(mma.get_slice(0).partition_A(columns_from(keys, column, PART))),
            mma.make_fragment_B(
                mma.get_slice(0).partition_B(cute.local_tile(slopes.memory, (count, TOKENS), (at, 0, None)))
            ),
        )
        for mma, (column, count, at) in zip(mmas, placed, strict=True)
    )
    return QueryPart(mmas, operands, tuple(count for _, count, _ in placed))


def columns_from(keys: cute.Tensor, first, count: int) -> cute.Tensor:
    return cute.local_tile(cute.domain_offset((first, 0), keys), (count, TOKENS), (0, 0))


def make_adder(allocator: SmemAllocator, tiling: Any, sums: Operand, barriers: Barriers) -> Adder:
    staged = sums.staged
    swizzled = isinstance(staged, cute.ComposedLayout)
    size = cute.cosize(staged.outer if swizzled else staged)
    plain = allocator.allocate_tensor(Float32, cute.make_layout(size), ALIGNMENT).iterator
    if swizzled:
        memory = cute.make_tensor(cute.recast_ptr(plain, staged.inner, dtype=Float32), staged.outer)
    else:
        memory = cute.make_tensor(plain, staged)
    return Adder(tiling, sums, memory, barriers, plain)
