"""What blocks of keys add to ``grad_q`` on sm_90a: ``dS`` goes through shared memory, and TMA adds to sums in memory.

``grad_q = dS.T @ k`` takes the keys of both warp groups. So each writes its rows of ``dS`` to shared memory, and computes 64
queries x 64 elements of the product. From there, TMA adds them to f32 sums, which many blocks of threads add to.
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

from .._device import WARP
from .._versions import SmemAllocator
from ..sm90.hardware import ALIGNMENT, CONSUMERS, WARP_GROUP, WGMMA_ROWS, Barriers
from . import _producer_sm90 as tma
from ._attention import Tile
from ._backward_tma_sm90 import STAGES, Place, of_head, turned
from ._producer_sm90 import Operand

PART = 64  # queries, and elements, of what a warp group computes
TOKENS = CONSUMERS * WGMMA_ROWS  # keys of a block of threads


def query_product(dtype) -> cute.TiledMma:
    """``dS.T @ k`` of one warp group, both operands from shared memory, with rows along what is added up."""
    turned_rows = OperandMajorMode.MN
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, turned_rows, turned_rows, Float32, (1, 1, 1), (WGMMA_ROWS, PART)
    )


@dataclass(frozen=True)
class QuerySums:
    """The way of ``dS`` to the sums of ``grad_q``. Blocks have 64 queries, or 128: then each warp group has 64 of them."""

    slices: int  # 64 queries each
    adder: bool  # whether a warp of its own adds; else a consumer warp does
    sums: Operand
    slopes: cute.Tensor  # 64 queries x tokens x slices of all stages
    parts: cute.Tensor  # 64 queries x 64 elements x warp groups
    barriers: Barriers

    def index(self, stage: Int32, place: Place) -> Int32:
        """Where the slopes are that a warp group multiplies."""
        return stage * self.slices + (place.group if self.slices > 1 else 0)

    @cute.jit
    def share(self, gradients, mma, place, stage):
        """Write ``dS`` where both groups can multiply with it."""
        own = cute.local_tile(turned(self.slopes), (WGMMA_ROWS, PART), (place.group, 0, None))
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), gradients.element_type)
        copy = cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, mma))
        mine = copy.get_slice(place.thread)
        target = mine.partition_D(own)
        shape = cute.shape(mine.partition_S(own))[:3]
        size = cute.size(shape)
        for s in cutlass.range_constexpr(self.slices):
            values = cute.make_tensor(gradients.iterator + s * size, cute.make_layout(shape))
            cute.copy(copy, values, target[None, None, None, stage * self.slices + s])

    @cute.jit
    def add(self, grad_q, mma, place, tile, head, block):
        """Add this group's part of ``grad_q`` to the sums in memory, or hand it to the warp that does."""
        group = place.group
        together = self.barriers.together(group)
        adding = cute.arch.make_warp_uniform(place.thread // WARP) == 0
        if cutlass.const_expr(self.adder):
            self.handed(group, full=False).arrive_and_wait()
        else:
            if adding:  # the last addition has read its memory
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            together.arrive_and_wait()  # the whole warp group may write there
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float32, num_bits_per_copy=64)
        mine = cute.make_tiled_copy_C(atom, mma).get_slice(place.thread)
        cute.copy(atom, mine.retile(grad_q), mine.partition_D(self.parts[None, None, group]))
        cute.arch.fence_proxy("async.shared", space="cta")  # TMA reads what threads have written
        if cutlass.const_expr(self.adder):
            self.handed(group, full=True).arrive()
        else:
            together.arrive_and_wait()  # all of the warp group have written
            if adding:
                source, to = self.of_head(tile, head)
                self.start(source, to, block, group)

    def handed(self, group, full: bool) -> NamedBarrier:
        """Where a consumer warp group and the warp that adds hand over a part of ``grad_q``, or its memory."""
        first = self.barriers.free + 1 + (CONSUMERS if full else 0)
        return NamedBarrier(barrier_id=first + group, num_threads=WARP_GROUP + WARP)

    def of_head(self, tile: Tile, head: Int32) -> tuple:
        own = of_head(self.sums, tile.sequence, tile.first_query, tile.queries, head)
        return tma.partition(self.sums.atom, self.parts, cute.local_tile(own, (PART, PART), (None, None)))

    def start(self, source: cute.Tensor, to: cute.Tensor, block: Int32, group) -> None:
        """Start to add a group's part to the sums. TMA leaves out rows past the end."""
        row, column = (block, group) if self.slices == 1 else (block * self.slices + group, 0)
        cute.copy(self.sums.atom, source[None, group], to[None, row, column])
        cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def add_parts(self, side, tile):
        """The warp that adds parts to the sums in memory."""
        blocks = side.blocks(tile)
        for g in cutlass.range(side.column_heads(), unroll=1):
            source, to = self.of_head(tile, side.column_head(tile, g))
            for block in cutlass.range(blocks.begin, blocks.end, unroll=1):
                for group in cutlass.range_constexpr(CONSUMERS):
                    cute.arch.cp_async_bulk_wait_group(CONSUMERS - 1 - group, read=True)
                    self.handed(group, full=False).arrive()
                for group in cutlass.range_constexpr(CONSUMERS):
                    self.handed(group, full=True).arrive_and_wait()
                    self.start(source, to, block, group)
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive the additions that read it


def query_sums(allocator: SmemAllocator, tiling: Any, dtype, sums: Operand, barriers: Barriers) -> QuerySums:
    tile = (PART, PART, TOKENS)
    layout = hopper_helpers.make_smem_layout_a(LayoutEnum.COL_MAJOR, tile, dtype, tiling.slices * STAGES)
    slopes = allocator.allocate_tensor(dtype, layout.outer, ALIGNMENT, swizzle=layout.inner)
    parts = allocator.allocate_tensor(Float32, sums.staged.outer, ALIGNMENT, swizzle=sums.staged.inner)
    return QuerySums(tiling.slices, tiling.adder, sums, slopes, parts, barriers)
