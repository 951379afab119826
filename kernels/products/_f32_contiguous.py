"""GEMM of f32 for inputs that are contiguous along k: copies into shared memory run some stages ahead of the products.

Exact products read four neighbours along k at once. For TF32, ldmatrix loads what mma.sync multiplies, one step ahead of it.
Elements are f32 until they are in registers, where they are rounded.

If an exact product has few tiles, the blocks of a cluster share each tile: each adds up a part of k. The call decides how
many blocks do. Clusters need compute capability 9.0.
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import warp
from cutlass.utils import LayoutEnum

import aot

from .._activations import Activation
from .._device import WARP
from .._scheduler import swizzled_batch
from .._versions import SmemAllocator
from ..sm80 import operands as sm80
from ..sm80.mainloop import Mainloop
from ..sm80.operands import make_operand
from ..sm80.tiles import left_fragment, lines, right_fragment, swizzled
from ._f32_portable import CHUNK, Gemm, write_sums

MULTIPROCESSORS = 132  # that few tiles are shared among; with fewer, the choice is a little worse, never wrong
MMA = (16, 8, 8)  # m, n, k of the instruction
THREADS = (4, 8)  # of a warp of an exact product, along m and n
# Strides of the lanes of a warp, along m and n. Lanes i and i ^ 1 read the same row of a, lanes i and i ^ 2 the same row of
# b. So shared memory serves 16 lanes at once instead of 8.
LANES = ((2, 16), (1, 4))
ELEMENT_BYTES = 4
LINE = 32  # elements: 128 bytes of shared memory, all banks
# Up to this number, tiles are shared by 8 blocks each. Measured on an H200, where only 30 clusters of 4 run at once: 32 or 64
# tiles were slower with 4 blocks each than with 8 or 2.
FEW_TILES = 48
WAVES = 4  # of tiles, up to which two blocks share each tile if the last wave would be half empty
LEAST_STEPS = 4  # along k, of each block that shares a tile


class Tiling(sm80.Tiling):
    """A block of ``warps`` (along m, along n) computes ``m`` x ``n`` of the output, 32 of ``k`` at a time."""

    k = LINE
    chunk = 4

    @property
    def label(self) -> str:
        return f"{super().label}_contiguous"

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.m + self.n) * self.k * ELEMENT_BYTES


class LowTiling(Tiling):
    """A tile of any height that the threads of an exact product can share."""

    @property
    def multiples(self) -> tuple[int, int, int]:
        copied = self.threads * self.chunk // self.k  # rows that the threads copy at once
        return copied, self.warps[0] * THREADS[0], self.warps[1] * THREADS[1]


class ContiguousGemm(Mainloop, Gemm):
    instruction_depth = MMA[2]
    together = 4  # neighbours along k that a thread of an exact product reads at once

    def __init__(
        self, tiling: Tiling, target: aot.Target, epilogues: Sequence[type[Activation]], rounded: bool
    ) -> None:
        super().__init__(tiling, target, epilogues, rounded)
        tiling.validate(target)
        self.shares = not rounded and target.max_cluster > 1

    @cute.jit
    def launched_blocks(self, tiles: Int32, depth: Int32):
        split = self.split(tiles, depth)
        return tiles * split, [split, 1, 1] if cutlass.const_expr(self.shares) else None

    @cute.jit
    def split(self, tiles: Int32, depth: Int32) -> Int32:
        """How many blocks share a tile."""
        split, least = Int32(1), LEAST_STEPS * self.tiling.k
        if cutlass.const_expr(self.shares):
            last_wave = (tiles - 1) % MULTIPROCESSORS + 1
            half_empty = last_wave <= MULTIPROCESSORS // 2 and tiles <= WAVES * MULTIPROCESSORS
            if (tiles <= MULTIPROCESSORS or half_empty) and depth >= 2 * least:
                split = Int32(2)
            if tiles <= FEW_TILES and depth >= 8 * least:
                split = Int32(8)
        return split

    def tiled_mma(self, dtype) -> cute.TiledMma:
        along_m, along_n = self.tiling.warps
        if self.operand is Float32:
            shape = ((2, 2, along_m), (2, 4, along_n), 1)
            rows, columns = LANES
            threads = cute.make_layout(shape, stride=((*rows, WARP), (*columns, WARP * along_m), 0))
            return cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(Float32), threads)
        # Two instructions side by side along n, so that one ldmatrix serves both.
        return cute.make_tiled_mma(
            warp.MmaTF32Op(MMA),
            cute.make_layout((along_m, along_n, 1)),
            permutation_mnk=(along_m * MMA[0], along_n * MMA[1] * 2, MMA[2]),
        )

    @cute.kernel
    def kernel(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, mma: cute.TiledMma, tiles
    ):
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        split, part = 1, 0
        if cutlass.const_expr(self.shares):
            split, part = cute.arch.cluster_size(), cute.arch.block_idx_in_cluster()
        m, n, batch = swizzled_batch(index // split, tiles, tiling.group)
        storage_a = SmemAllocator().allocate(tiling.shared_bytes, byte_alignment=8 * LINE * ELEMENT_BYTES)
        storage_b = storage_a + tiling.stages * tiling.m * tiling.k * ELEMENT_BYTES
        major, mine = LayoutEnum.ROW_MAJOR, mma.get_slice(thread)
        operands, fragments = [], []
        for matrix, storage, rows, tile, left in (
            (a, storage_a, tiling.m, m, True),
            (b, storage_b, tiling.n, n, False),
        ):
            shape = (rows, tiling.k, tiling.stages)
            shared = swizzled(storage, Float32, lines(major, LINE), shape)
            operands.append(make_operand(matrix[None, None, batch], major, shared, tile, thread, tiling))
            shared = swizzled(storage, self.operand, lines(major, LINE), shape)
            if cutlass.const_expr(self.operand is Float32):
                fragments.append(mine.partition_A(shared) if left else mine.partition_B(shared))
            else:
                fragments.append((left_fragment if left else right_fragment)(mma, shared, False, thread))
        sums = cute.make_rmem_tensor(mma.partition_shape_C((tiling.m, tiling.n)), Float32)
        of_block = cute.make_rmem_tensor_like(sums)
        sums.fill(0.0)
        of_block.fill(0.0)
        steps = cute.size(operands[0].source, mode=[3])
        begin, end = steps * part // split, steps * (part + 1) // split
        self.multiply(*operands, begin, end, (mma, sums, of_block, *fragments))
        sums.store(sums.load() + of_block.load())
        if split > 1:
            self.add_parts(sums, storage_a, split, part, thread)
        tile, out = (tiling.m, tiling.n), out[None, None, batch]
        write_sums(mine, sums, bias, epilogue, self.epilogues, out, tile, m, n, split, part)

    @cute.jit
    def add_step(self, stage, step, mma, sums, of_block, a, b):
        if cutlass.const_expr(self.operand is Float32):
            self.multiply_exact(of_block, a, b, stage)
        else:
            self.multiply_stage(mma, of_block, a, b, stage)
        if step % self.block == self.block - 1:
            sums.store(sums.load() + of_block.load())
            of_block.fill(0.0)

    @cute.jit
    def add_parts(self, sums, storage, split, part, thread):
        """Add up the sums of all blocks of a cluster, in the order of their parts, in the memory of the stages.

        The blocks take chunks of sums in turn: each adds up its own ones. Threads exchange sums with those that have the
        same place in other blocks, so that the order of sums in registers does not matter.
        """
        chunks = cute.size(sums) // CHUNK
        places = cute.make_layout((CHUNK, chunks, self.tiling.threads), stride=(1, CHUNK * self.tiling.threads, CHUNK))
        storage = cute.recast_ptr(storage, dtype=Float32)
        values = cute.make_rmem_tensor(CHUNK, Float32)
        cute.arch.cp_async_wait_group(0)  # a block without steps has copied one
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()  # the stages of all blocks are no longer read or written
        for chunk in cutlass.range_constexpr(chunks):
            owner = chunk % split
            target = cute.make_tensor(cute.arch.map_dsmem_ptr(storage, owner), places)
            for i in cutlass.range_constexpr(CHUNK):
                values[i] = sums[chunk * CHUNK + i]
            cute.autovec_copy(values, target[None, chunk - owner + part, thread])
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()  # the parts of all blocks are there
        source = cute.make_tensor(storage, places)
        for chunk in cutlass.range_constexpr(chunks):
            if chunk % split == part:
                for i in cutlass.range_constexpr(CHUNK):
                    sums[chunk * CHUNK + i] = Float32(0.0)
                for sender in cutlass.range(split):
                    cute.autovec_copy(source[None, chunk - part + sender, thread], values)
                    for i in cutlass.range_constexpr(CHUNK):
                        sums[chunk * CHUNK + i] += values[i]

    @cute.jit
    def multiply_exact(self, sums, a, b, stage):
        """One column of the tile at a time, which saves registers: 10% faster than all of them for each k."""
        rows, columns = cute.size(a, mode=[1]), cute.size(b, mode=[1])
        for block in cutlass.range_constexpr(self.tiling.k // self.together):
            values_a = [self.chunk_of(a, row, block, stage) for row in range(rows)]
            for n in cutlass.range_constexpr(columns):
                values_b = self.chunk_of(b, n, block, stage)
                for k in cutlass.range_constexpr(self.together):
                    for m in cutlass.range_constexpr(rows):
                        sums[0, m, n] += values_a[m][k] * values_b[k]

    def chunk_of(self, operand: cute.Tensor, row: int, block: int, stage: Int32) -> cute.Tensor:
        """Neighbours along k of a row of this thread, in registers."""
        values = cute.make_rmem_tensor(self.together, Float32)
        cute.autovec_copy(cute.local_tile(operand[0, row, None, stage], (self.together,), (block,)), values)
        return values

    def multiply_block(self, mma, sums, a, b) -> None:
        for values in (a, b):
            round_values(values)
        super().multiply_block(mma, sums, a, b)


def round_values(values: cute.Tensor) -> None:
    """Round f32 in registers to TF32."""
    numbers, bits = cute.recast_tensor(values, Float32), cute.recast_tensor(values, Int32)
    for i in range(cute.size(values)):
        bits[i] = Int32(cute.arch.cvt_f32_tf32(numbers[i]))
