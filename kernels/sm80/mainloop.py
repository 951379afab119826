"""The mainloop of a portable product: cp.async some stages ahead of mma.sync, ldmatrix one step ahead of it.

A block computes one tile of the output. A stage is read only when the copies of all threads into it have arrived, and filled
only when nobody reads it any more. The output takes the memory of the stages when all are read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.utils import LayoutEnum

from .._versions import SmemAllocator
from .operands import Operand, Tiling, copy_first, copy_step, copy_tiles, make_operand
from .tiles import (
    CHUNK,
    ELEMENT_BYTES,
    MMA,
    SWIZZLED,
    Fragment,
    chunk_copy,
    left_fragment,
    lines,
    load,
    right_fragment,
    swizzled,
    tiled_mma,
)

ROWS = LayoutEnum.ROW_MAJOR


class Stages(NamedTuple):
    """What a block of a 16-bit product has: operands on their way to its stages, and from there to registers."""

    storage: Any  # shared memory; the output reuses it
    operands: tuple[Operand, Operand]
    fragments: tuple[Fragment, Fragment]
    sums: cute.Tensor


class Mainloop:
    """Part of a kernel with a ``tiling``. :meth:`add_step` says what becomes of a stage."""

    tiling: Tiling
    instruction_depth = MMA[2]  # elements along k that are multiplied at once

    def tiled_mma(self, dtype) -> cute.TiledMma:
        return tiled_mma(dtype, self.tiling.warps)

    def stages_of(self, mma: cute.TiledMma, a, m, b, n, majors, thread) -> Stages:
        """For tile ``m`` along the rows of ``a`` and tile ``n`` along those of ``b``, both of 16 bits."""
        tiling, dtype = self.tiling, a.element_type
        storage = SmemAllocator().allocate(tiling.shared_bytes, byte_alignment=SWIZZLED)
        storage_b = storage + tiling.stages * tiling.m * tiling.k * ELEMENT_BYTES
        shared_a = swizzled(storage, dtype, lines(majors[0]), (tiling.m, tiling.k, tiling.stages))
        shared_b = swizzled(storage_b, dtype, lines(majors[1]), (tiling.n, tiling.k, tiling.stages))
        operands = (
            make_operand(a, majors[0], shared_a, m, thread, tiling),
            make_operand(b, majors[1], shared_b, n, thread, tiling),
        )
        fragments = (
            left_fragment(mma, shared_a, majors[0] != ROWS, thread),
            right_fragment(mma, shared_b, majors[1] != ROWS, thread),
        )
        sums = cute.make_rmem_tensor(mma.partition_shape_C((tiling.m, tiling.n)), Float32)
        return Stages(storage, operands, fragments, sums)

    @cute.jit
    def multiply(self, a: Operand, b: Operand, begin, end, arguments):
        """Pass each step along k from ``begin`` to ``end`` to :meth:`add_step`, together with the arguments."""
        stages = self.tiling.stages
        for operand in (a, b):  # what the first step leaves out
            operand.target[None, None, None, 0].fill(0)
        cute.arch.sync_threads()  # zeros of one thread must not come after the copy of another
        if begin == 0:
            for operand in (a, b):
                copy_first(operand)
        else:
            copy_tiles(a, b, begin, Int32(0))
        cute.arch.cp_async_commit_group()
        for stage in cutlass.range_constexpr(1, stages - 1):
            copy_step(a, b, Int32(begin + stage), end, Int32(stage))
        reading, writing = Int32(0), Int32(stages - 1)
        for step in cutlass.range(begin, end):
            # A thread waits for its own copies, of all groups but the last ones; then all threads for each other. So this stage
            # has arrived, and the previous one, which is filled next, is no longer read.
            cute.arch.cp_async_wait_group(stages - 2)
            cute.arch.sync_threads()
            copy_step(a, b, step + stages - 1, end, writing)
            self.add_step(reading, step, *arguments)
            writing = reading
            reading = reading + 1 if reading + 1 < stages else Int32(0)

    @cute.jit
    def add_step(self, stage, step, mma, sums, a, b):
        self.multiply_stage(mma, sums, a, b, stage)

    @cute.jit
    def multiply_stage(self, mma, sums, a, b, stage):
        blocks = self.tiling.k // self.instruction_depth
        for block in cutlass.range_constexpr(-1, blocks):
            if cutlass.const_expr(block + 1 < blocks):
                load(a, block + 1, stage)
                load(b, block + 1, stage)
            if cutlass.const_expr(block >= 0):
                self.multiply_block(mma, sums, a.values[None, None, block], b.values[None, None, block])

    def multiply_block(self, mma, sums, a, b) -> None:
        """As much along k as one instruction takes."""
        cute.gemm(mma, sums, a, b, sums)

    @cute.jit
    def round_tile(self, mma, sums, storage, dtype: cutlass.Constexpr, thread):
        """Round the sums into shared memory, so that stores write whole lines. Returns a thread's share, and where it is."""
        tile = (self.tiling.m, self.tiling.n)
        rounded = cute.make_rmem_tensor_like(sums, dtype)
        rounded.store(sums.load().to(dtype))
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()  # the stages are no longer read
        shared = swizzled(storage, dtype, lines(ROWS), tile)
        cute.autovec_copy(rounded, mma.get_slice(thread).partition_C(shared))
        cute.arch.sync_threads()  # threads read what others have written
        own = chunk_copy(cute.nvgpu.CopyUniversalOp(), dtype, ROWS, self.tiling.threads).get_slice(thread)
        return own, own.partition_S(shared)

    @cute.jit
    def write_rows(self, mma, sums, storage, out, places, limit, thread):
        """Round the sums, and write the rows below ``limit`` in chunks. ``places`` are those of the tile in the output."""
        own, source = self.round_tile(mma, sums, storage, out.element_type, thread)
        places = own.partition_S(places)
        for i in cutlass.range_constexpr(cute.size(source, mode=[1])):
            for j in cutlass.range_constexpr(cute.size(source, mode=[2])):
                row, column = places[(0, 0), i, j]
                if row < limit and column < cute.size(out, mode=[1]):
                    chunk = cute.make_rmem_tensor_like(source[None, i, j])
                    cute.autovec_copy(source[None, i, j], chunk)
                    line = cute.local_tile(out[row, None], (CHUNK,), (column // CHUNK,))
                    line = cute.make_tensor(line.iterator.align(CHUNK * ELEMENT_BYTES), line.layout)
                    cute.autovec_copy(cute.make_tensor(chunk.iterator, cute.make_layout(CHUNK)), line)
