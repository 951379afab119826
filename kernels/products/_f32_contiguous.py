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
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, TFloat32
from cutlass.cute.nvgpu import warp
from cutlass.utils import LayoutEnum

import aot

from .._activations import Activation
from .._device import WARP
from .._gemm import batched
from .._scheduler import swizzled_batch
from .._versions import SmemAllocator
from ..sm80 import operands as sm80
from ..sm80.operands import Operand, copy_first, make_operand
from ..sm80.tiles import Fragment, lines, load, make_fragment, swizzled
from ._choice import MULTIPROCESSORS
from ._f32_portable import CHUNK, Gemm, write_sums

MMA = (16, 8, 8)  # m, n, k of the instruction
THREADS = (4, 8)  # of a warp of an exact product, along m and n
# Strides of the lanes of a warp, along m and n. Lanes i and i ^ 1 read the same row of a, lanes i and i ^ 2 the same row of
# b. So shared memory serves 16 lanes at once instead of 8.
LANES = ((2, 16), (1, 4))
ELEMENT_BYTES = 4
LINE = 32  # elements: 128 bytes of shared memory, all banks
# Up to so many tiles are shared by 8 blocks each. Measured on an H200, where only 30 clusters of 4 run at once: 32 or 64 tiles
# were slower with 4 blocks each than with 8 or 2.
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


class ContiguousGemm(Gemm):
    together = 4  # neighbours along k that a thread of an exact product reads at once

    def __init__(
        self, tiling: Tiling, target: aot.Target, epilogues: Sequence[type[Activation]], rounded: bool
    ) -> None:
        super().__init__(tiling, target, epilogues, rounded)
        tiling.validate(target)
        self.shares = not rounded and target.max_cluster > 1

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, stream: CUstream):
        a, b, out = batched(a), batched(b), batched(out)
        m, n, batch = out.shape
        tiles = (cute.ceil_div(m, self.tiling.m), cute.ceil_div(n, self.tiling.n), batch)
        count = tiles[0] * tiles[1] * tiles[2]
        if count > 0:  # CUDA refuses an empty grid
            split = self.split(count, cute.size(a, mode=[1]))
            self.contiguous_kernel(a, b, out, bias, epilogue, self.tiled_mma(), tiles).launch(
                grid=[count * split, 1, 1],
                block=[self.tiling.threads, 1, 1],
                stream=stream,
                cluster=[split, 1, 1] if cutlass.const_expr(self.shares) else None,
            )

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

    def tiled_mma(self) -> cute.TiledMma:
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
    def contiguous_kernel(
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
        for matrix, storage, rows, tile, operand in (
            (a, storage_a, tiling.m, m, "A"),
            (b, storage_b, tiling.n, n, "B"),
        ):
            shape = (rows, tiling.k, tiling.stages)
            shared = swizzled(storage, Float32, lines(major, LINE), shape)
            operands.append(make_operand(matrix[None, None, batch], major, shared, tile, thread, tiling))
            shared = swizzled(storage, self.operand, lines(major, LINE), shape)
            if cutlass.const_expr(self.operand is Float32):
                fragments.append(mine.partition_A(shared) if operand == "A" else mine.partition_B(shared))
            else:
                fragments.append(self.fragment(mma, shared, thread, operand))
        sums = cute.make_rmem_tensor(mma.partition_shape_C((tiling.m, tiling.n)), Float32)
        self.multiply_contiguous(mma, sums, *operands, *fragments, split, part)
        if split > 1:
            self.add_parts(sums, storage_a, split, part, thread)
        tile, out = (tiling.m, tiling.n), out[None, None, batch]
        write_sums(mine, sums, bias, epilogue, self.epilogues, out, tile, m, n, split, part)

    def fragment(self, mma: cute.TiledMma, shared: cute.Tensor, thread: Int32, operand: str) -> Fragment:
        matrices, mine = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), TFloat32), mma.get_slice(thread)
        if operand == "A":
            values = mma.make_fragment_A(mine.partition_A(shared[None, None, 0]))
            return make_fragment(values, cute.make_tiled_copy_A(matrices, mma), shared, thread)
        values = mma.make_fragment_B(mine.partition_B(shared[None, None, 0]))
        return make_fragment(values, cute.make_tiled_copy_B(matrices, mma), shared, thread)

    @cute.jit
    def multiply_contiguous(self, mma, sums, a, b, fragment_a, fragment_b, split, part):
        """The sums of a part of k."""
        stages, steps = self.tiling.stages, cute.size(a.source, mode=[3])
        begin, end = steps * part // split, steps * (part + 1) // split
        of_block = cute.make_rmem_tensor_like(sums)
        sums.fill(0.0)
        of_block.fill(0.0)
        for operand in (a, b):  # what the first step leaves out
            operand.target[None, None, None, 0].fill(0)
        cute.arch.sync_threads()
        if begin == 0:
            for operand in (a, b):
                copy_first(operand)
        else:
            copy_tiles(a, b, begin, Int32(0))
        cute.arch.cp_async_commit_group()
        for stage in cutlass.range_constexpr(1, stages - 1):
            copy_until(a, b, begin + stage, end, Int32(stage))
        reading, writing = Int32(0), Int32(stages - 1)
        for step in cutlass.range(begin, end):
            cute.arch.cp_async_wait_group(stages - 2)
            cute.arch.sync_threads()  # this stage has arrived, and the previous one is no longer read
            copy_until(a, b, step + stages - 1, end, writing)
            if cutlass.const_expr(self.operand is Float32):
                self.multiply_exact(of_block, fragment_a, fragment_b, reading)
            else:
                self.multiply_stage(mma, of_block, fragment_a, fragment_b, reading)
            writing = reading
            reading = reading + 1 if reading + 1 < stages else Int32(0)
            if step % self.block == self.block - 1:
                sums.store(sums.load() + of_block.load())
                of_block.fill(0.0)
        sums.store(sums.load() + of_block.load())

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
        cute.arch.cluster_wait()
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

    @cute.jit
    def multiply_stage(self, mma, sums, a, b, stage):
        blocks = self.tiling.k // MMA[2]
        for block in cutlass.range_constexpr(-1, blocks):
            if cutlass.const_expr(block + 1 < blocks):
                for fragment in (a, b):
                    load(fragment, block + 1, stage)
            if cutlass.const_expr(block >= 0):
                for fragment in (a, b):
                    round_values(fragment.values[None, None, block])
                cute.gemm(mma, sums, a.values[None, None, block], b.values[None, None, block], sums)


def round_values(values: cute.Tensor) -> None:
    """Round f32 in registers to TF32."""
    numbers, bits = cute.recast_tensor(values, Float32), cute.recast_tensor(values, Int32)
    for i in range(cute.size(values)):
        bits[i] = Int32(cute.arch.cvt_f32_tf32(numbers[i]))


@cute.jit
def copy_until(a: Operand, b: Operand, step: Int32, end: Int32, stage: Int32):
    """Copy the tiles of a step into a stage; from step ``end`` on, nothing."""
    if step < end:
        copy_tiles(a, b, step, stage)
    cute.arch.cp_async_commit_group()  # commit even an empty group, because waiting counts groups


def copy_tiles(a: Operand, b: Operand, step: Int32, stage: Int32) -> None:
    for operand in (a, b):
        source, target = operand.source[None, None, None, step], operand.target[None, None, None, stage]
        cute.copy(operand.chunks, source, target, pred=operand.inside)
