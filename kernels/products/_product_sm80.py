"""Scaled and grouped products for architectures without code of their own: cp.async, ldmatrix, mma.sync.

Numbers in f8 become f16 in registers, which is exact, so that any architecture with tensor cores multiplies them. Pairs
of f8 travel as if they were f16. What a thread gets of a row by that, four numbers side by side, is not what the
instruction calls their places along k, but the same for ``a`` and ``b``, and a sum does not depend on the order.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float8E4M3FN, Float16, Float32, Int32, Uint32
from cutlass.utils import LayoutEnum

import aot

from .._device import KernelObject
from .._scheduler import count_tiles_of_experts, tile_of_expert
from .._scheduler import swizzled as swizzled_tile
from ..contracts._f8 import BLOCK
from ..sm80.mainloop import ROWS, Mainloop
from ..sm80.operands import Tiling
from ..sm80.tiles import CHUNK

SMALLER = 2.0**-8  # what f8e4m3 becomes as f16, times its value: their exponents differ by 8


class Product(Mainloop, KernelObject):
    """``out = (a @ b.T) * scales``; if ``grouped``, rows of ``a`` belong to experts, each with a ``b`` of its own."""

    def __init__(self, tiling: Tiling, target: aot.Target, scales: str, grouped: bool = False) -> None:
        self.tiling, self.scales, self.grouped = tiling, scales, grouped

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, a_scale, b_scale, offsets, stream: CUstream):
        tiling = self.tiling
        self.f8 = a.element_type.width == 8
        self.f8_dtypes = a.element_type, b.element_type
        dtype = Float16 if self.f8 else a.element_type
        if cutlass.const_expr(self.f8):
            a, b = as_pairs(a), as_pairs(b)
        m, n = out.shape
        tiles = (cute.ceil_div(m, tiling.m), cute.ceil_div(n, tiling.n))
        count = tiles[0] * tiles[1]
        if count > 0:  # CUDA refuses an empty grid
            if cutlass.const_expr(self.grouped):
                count += cute.size(offsets) * tiles[1]
            self.kernel(a, b, out, a_scale, b_scale, offsets, self.tiled_mma(dtype), tiles).launch(
                grid=[count, 1, 1], block=[tiling.threads, 1, 1], stream=stream
            )

    @cute.kernel
    def kernel(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, a_scale, b_scale, offsets, mma: cute.TiledMma, tiles
    ):
        index, _, _ = cute.arch.block_idx()
        tiling, zero = self.tiling, Int32(0)
        if cutlass.const_expr(self.grouped):
            if index < count_tiles_of_experts(offsets, tiles[1], tiling.m):
                expert, start, limit, m, n, _, _ = tile_of_expert(
                    index, offsets, tiles[1], tiling.m, tiling.group, zero, zero
                )
                column_scale = None if b_scale is None else b_scale[expert, None]
                top = start + m * tiling.m
                self.compute(a, b[expert, None, None], out, a_scale, column_scale, mma, top, limit, n)
        else:
            m, n = swizzled_tile(index, *tiles, tiling.group)
            self.compute(a, b, out, a_scale, b_scale, mma, m * tiling.m, cute.size(out, mode=[0]), n)

    @cute.jit
    def compute(self, a, b, out, a_scale, b_scale, mma, top, limit, n):
        """One tile: its rows start at ``top``, and those from ``limit`` on are not written."""
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        rows = cute.make_tensor(
            cute.domain_offset((top, 0), a).iterator,
            cute.make_layout((cute.size(a, mode=[0]) - top, cute.size(a, mode=[1])), stride=a.stride),
        )
        stages = self.stages_of(mma, rows, 0, b, n, (ROWS, LayoutEnum.from_tensor(b)), thread)
        sums = stages.sums
        places = cute.local_tile(
            cute.domain_offset((top, n * tiling.n), cute.make_identity_tensor(out.shape)), (tiling.m, tiling.n), (0, 0)
        )
        of_sums = mma.get_slice(thread).partition_C(places)
        sums.fill(0.0)
        products = cute.make_rmem_tensor_like(sums) if self.scales == "blocks" else sums
        steps = cute.size(stages.operands[0].source, mode=[3])
        arguments = (mma, sums, products, *stages.fragments, a_scale, b_scale, of_sums)
        self.multiply(*stages.operands, 0, steps, arguments)
        self.scale(sums, a_scale, b_scale, of_sums)
        self.write_rows(mma, sums, stages.storage, out, places, limit, thread)

    @cute.jit
    def add_step(self, stage, step, mma, sums, products, a, b, a_scale, b_scale, places):
        """Multiply a stage. With scales of blocks, its sums are promoted."""
        if cutlass.const_expr(self.scales == "blocks"):
            products.fill(0.0)
        self.multiply_stage(mma, products, a, b, stage)
        if cutlass.const_expr(self.scales == "blocks"):
            self.promote(sums, products, a_scale, b_scale, places, step)

    def multiply_block(self, mma, sums, a, b) -> None:
        if not self.f8:
            super().multiply_block(mma, sums, a, b)
            return
        wide = [widened(values, dtype) for values, dtype in zip((a, b), self.f8_dtypes, strict=True)]
        for half in range(2):
            super().multiply_block(mma, sums, *(values[None, None, half] for values in wide))

    @cute.jit
    def promote(self, sums, products, a_scale, b_scale, places, step):
        """Add what was summed over a block along k, times its scale."""
        (pair, halves), atoms, columns = sums.shape
        # A tile is at most as wide as a block of b.
        block = cutlass.min(places[0][1] // BLOCK, cute.size(b_scale, mode=[0]) - 1)
        column_scale = b_scale[block, step]
        for m in cutlass.range_constexpr(atoms):
            for half in cutlass.range_constexpr(halves):
                row = cutlass.min(places[(0, half), m, 0][0], cute.size(a_scale, mode=[0]) - 1)
                factor = a_scale[row, step] * column_scale
                for n in cutlass.range_constexpr(columns):
                    for e in cutlass.range_constexpr(pair):
                        at = ((e, half), m, n)
                        sums[at] = sums[at] + products[at] * factor

    @cute.jit
    def scale(self, sums, a_scale, b_scale, places):
        larger = 1.0
        for dtype in self.f8_dtypes:
            larger *= 1 / SMALLER if dtype is Float8E4M3FN else 1
        if cutlass.const_expr(self.f8):
            for i in cutlass.range_constexpr(cute.size(sums)):
                factor = Float32(larger)
                if cutlass.const_expr(self.scales == "rows"):
                    row, column = places[i]
                    row = cutlass.min(row, cute.size(a_scale) - 1)  # the last is the only one if one serves all
                    column = cutlass.min(column, cute.size(b_scale) - 1)
                    factor = factor * (a_scale[row] * b_scale[column])
                sums[i] = sums[i] * factor


def as_pairs(matrix: cute.Tensor) -> cute.Tensor:
    """Pairs of f8, side by side along k, as if they were f16. Rows are a multiple of 16 bytes apart."""
    *leading, k = matrix.shape
    strides = [cute.assume(stride // 2, divby=CHUNK) for stride in matrix.stride[:-1]]
    pairs = cute.make_layout((*leading, k // 2), stride=(*strides, 1))
    return cute.make_tensor(cute.recast_ptr(matrix.iterator, dtype=Float16), pairs)


def widened(values: cute.Tensor, dtype) -> cute.Tensor:
    """Pairs of f8 of one operand, as many as one instruction takes, as f16 for two instructions."""
    per_atom = cute.size(values, mode=[0])
    atoms = cute.size(values, mode=[1])
    wide = cute.make_rmem_tensor((values.shape[0], atoms, 2), Float16)
    words, wide_words = cute.recast_tensor(values, Uint32), cute.recast_tensor(wide, Uint32)
    count = per_atom // 2  # words of an atom: its rows, then two places along k
    rows = count // 2
    for atom in range(atoms):
        for word in range(count):
            row, half = word % rows, word // rows
            both = words[atom * count + word]
            for place, pair in enumerate((both, both >> Uint32(16))):
                wide_words[(half * atoms + atom) * count + place * rows + row] = widened_pair(pair, dtype)
    return wide


def widened_pair(pair: Uint32, dtype) -> Uint32:
    """The two numbers in the lower bytes as f16: f8e5m2 exactly, f8e4m3 times 2**-8.

    The bits of f8e4m3 are in the same order, with one bit less in the exponent. NaN, the largest magnitude, gets the
    exponent of NaN.
    """
    upper = ((pair & Uint32(0xFF)) << Uint32(8)) | ((pair & Uint32(0xFF00)) << Uint32(16))
    if dtype is not Float8E4M3FN:
        return upper
    magnitude = (upper & Uint32(0x7F007F00)) >> Uint32(1)
    largest = (magnitude + Uint32(0x00800080)) & Uint32(0x40004000)
    return (upper & Uint32(0x80008000)) | magnitude | largest
