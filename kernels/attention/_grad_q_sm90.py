"""What blocks of keys add to ``grad_q`` on sm_90a: ``dS`` goes through shared memory, and parts of the product to f32 sums in memory.

``grad_q = dS.T @ k`` takes the keys of both warp groups. So each writes its rows of ``dS`` to shared memory, and computes some
columns, or some queries, of the product. Many blocks of threads add to the sums, in the order in which they come.

Of every 16 columns, a thread has two neighbours of either half. They lie side by side in the sums, so that one instruction moves
four: rows of the sums have an order of their own, which ``column_in_order`` tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.pipeline import NamedBarrier
from cutlass.utils import LayoutEnum, hopper_helpers

from .._device import WARP
from .._versions import SmemAllocator
from ..sm90.hardware import ALIGNMENT, CONSUMERS, WARP_GROUP, WGMMA_ROWS, Barriers, accumulator_row
from . import _producer_sm90 as tma
from ._backward_tma_sm90 import of_head, turned
from ._producer_sm90 import Operand

PART = 64  # queries, and most columns, of what a warp group computes
TOKENS = CONSUMERS * WGMMA_ROWS  # keys of a block of threads
BOX = 16  # columns of which a thread has four
SLAB = 2 * BOX  # columns that one copy adds: a line of 128 bytes in each row


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


@cute.jit
def add_to_sums(own, grad_q, row, column, queries):
    """Add a thread's accumulators to those of its head in memory: from ``row`` on, and from the ``column`` of its warp group."""
    column += cute.arch.lane_idx() % 4 * 4
    for r in cutlass.range_constexpr(2):
        if row + 8 * r < queries:
            start = own[row + 8 * r, None].iterator + column
            for box in cutlass.range_constexpr(cute.size(grad_q) // 8):
                values = four_of(grad_q, r, box).load().ir_value()
                cute.arch.red(start + BOX * box, values, op="add", dtype="f32", sem="relaxed", scope="gpu")


@dataclass(frozen=True)
class Slopes:
    """``dS`` in shared memory, where both warp groups can multiply with it: queries x tokens x stages.

    Products of warp groups read rows of queries faster than rows of tokens, if these are left operands: by half of the lines.
    """

    memory: cute.Tensor
    by_queries: bool  # whether the tokens of a query are contiguous

    @cute.jit
    def write(self, gradients, mma, thread, stage, token, query, queries: cutlass.Constexpr):
        """Write accumulators of 64 tokens and so many ``queries``: which of these is ``token``, and ``query``."""
        own = cute.local_tile(turned(self.memory), (WGMMA_ROWS, queries), (token, query, stage))
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
        self.handed(place.group, full=False).arrive_and_wait()
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
        """The same for accumulators whose rows are columns of ``grad_q``: the first 64, or the last.

        TMA's swizzle keeps the threads of a warp out of each other's banks.
        """
        self.handed(place.group, full=False).arrive_and_wait()
        queries = self.tiling.queries
        warp, lane = cute.arch.make_warp_uniform(place.thread // WARP), cute.arch.lane_idx()
        slab = place.group * ((self.tiling.dim - PART) // SLAB) + warp // 2
        if slab // 2 == place.group:  # else the other group hands it
            start = self.plain + slab * (queries * SLAB)
            for r in cutlass.range_constexpr(2):
                for c in cutlass.range_constexpr(2):
                    query, column = lane % 4 * 2 + c, warp % 2 * 16 + lane // 4 + 8 * r
                    swizzled = (column // 4 ^ query) * 4 + column % 4
                    layout = cute.make_layout(queries // 8, stride=8 * SLAB)
                    target = cute.make_tensor(start + query * SLAB + swizzled, layout)
                    for n in cutlass.range_constexpr(queries // 8):
                        target[n] = grad_q[4 * n + 2 * r + c]
        cute.arch.fence_proxy("async.shared", space="cta")  # TMA reads what threads have written
        self.handed(place.group, full=True).arrive()

    def handed(self, group, full: bool) -> NamedBarrier:
        """Where a warp group and the warp that adds hand over a part of ``grad_q``, or its memory."""
        first = self.barriers.free + 1 + (CONSUMERS if full else 0)
        return NamedBarrier(barrier_id=first + group, num_threads=WARP_GROUP + WARP)

    @cute.jit
    def add_parts(self, side, tile):
        """Add the parts of a tile of keys, block by block of queries."""
        blocks, slabs = side.blocks(tile), self.tiling.dim // SLAB
        for g in cutlass.range(side.column_heads(), unroll=1):
            head = side.column_head(tile, g) * slabs
            targets = []
            for slab in cutlass.range_constexpr(slabs):
                own = of_head(self.sums, tile.sequence, tile.first_query, tile.queries, head + slab)
                own = cute.local_tile(own, (cute.size(self.memory, mode=[0]), SLAB), (None, 0))
                source, to = tma.partition(self.sums.atom, self.memory, own)
                targets.append(to)
            for block in cutlass.range(blocks.begin, blocks.end, unroll=1):
                for group in cutlass.range_constexpr(CONSUMERS):
                    cute.arch.cp_async_bulk_wait_group(CONSUMERS - 1 - group, read=True)  # its last part was read
                    self.handed(group, full=False).arrive()
                for group in cutlass.range_constexpr(CONSUMERS):
                    self.handed(group, full=True).arrive_and_wait()
                    first, row = self.tiling.first_slab(group), block
                    at = first
                    if cutlass.const_expr(self.tiling.slices > 1):
                        row, at = block * self.tiling.slices + group, 0
                    for slab in cutlass.range_constexpr(self.tiling.parts[group] // SLAB):
                        # TMA leaves out rows past the end.
                        cute.copy(self.sums.atom, source[None, first + slab], targets[at + slab][None, row])
                    cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive the additions that read it


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
