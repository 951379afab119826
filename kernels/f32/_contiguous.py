"""GEMM of f32 for inputs that are contiguous along k: copies into shared memory run some stages ahead of the products.

Exact products read four neighbours along k at once. For TF32, ldmatrix loads what mma.sync multiplies, one step ahead of it.
Elements are f32 until they are in registers, where they are rounded.
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

from .._versions import SmemAllocator
from ..elementwise.activation import Activation
from ..gemm import _gemm_sm80
from ..gemm._gemm import batched, tile_at
from ..gemm._gemm_sm80 import Fragment, copy_first, copy_step, lines, load, make_fragment, make_operand, swizzled
from ._gemm_f32 import Gemm

MMA = (16, 8, 8)  # m, n, k of the instruction
ELEMENT_BYTES = 4
LINE = 32  # elements: 128 bytes of shared memory, all banks


class Tiling(_gemm_sm80.Tiling):
    """A block of ``warps`` (along m, along n) computes ``m`` x ``n`` of the output, 32 of ``k`` at a time."""

    k = LINE
    chunk = 4

    @property
    def label(self) -> str:
        return f"{super().label}_contiguous"

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.m + self.n) * self.k * ELEMENT_BYTES


class ContiguousGemm(Gemm):
    together = 4  # neighbours along k that a thread of an exact product reads at once

    def __init__(
        self, tiling: Tiling, target: aot.Target, epilogues: Sequence[type[Activation]], rounded: bool
    ) -> None:
        super().__init__(tiling, target, epilogues, rounded)
        tiling.validate(target)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, stream: CUstream):
        a, b, out = batched(a), batched(b), batched(out)
        m, n, batch = out.shape
        tiles = (cute.ceil_div(m, self.tiling.m), cute.ceil_div(n, self.tiling.n), batch)
        count = tiles[0] * tiles[1] * tiles[2]
        if count > 0:  # CUDA refuses an empty grid
            self.contiguous_kernel(a, b, out, bias, epilogue, self.tiled_mma(), tiles).launch(
                grid=[count, 1, 1], block=[self.tiling.threads, 1, 1], stream=stream
            )

    def tiled_mma(self) -> cute.TiledMma:
        along_m, along_n = self.tiling.warps
        if self.operand is Float32:
            # The threads of a warp are 4 x 8. Neighbours have neighbouring rows, which lie in different banks.
            threads = cute.make_layout(((4, along_m), (8, along_n), 1), stride=((8, 32), (1, 32 * along_m), 0))
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
        m, n, batch = tile_at(index, tiles, tiling.group)
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
        self.multiply_contiguous(mma, sums, *operands, *fragments)
        self.write(mine, sums, bias, epilogue, out[None, None, batch], (tiling.m, tiling.n), m, n)

    def fragment(self, mma: cute.TiledMma, shared: cute.Tensor, thread: Int32, operand: str) -> Fragment:
        matrices, mine = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), TFloat32), mma.get_slice(thread)
        if operand == "A":
            values = mma.make_fragment_A(mine.partition_A(shared[None, None, 0]))
            return make_fragment(values, cute.make_tiled_copy_A(matrices, mma), shared, thread)
        values = mma.make_fragment_B(mine.partition_B(shared[None, None, 0]))
        return make_fragment(values, cute.make_tiled_copy_B(matrices, mma), shared, thread)

    @cute.jit
    def multiply_contiguous(self, mma, sums, a, b, fragment_a, fragment_b):
        stages = self.tiling.stages
        of_block = cute.make_rmem_tensor_like(sums)
        sums.fill(0.0)
        of_block.fill(0.0)
        for operand in (a, b):  # what the first step leaves out
            operand.target[None, None, None, 0].fill(0)
        cute.arch.sync_threads()
        for operand in (a, b):
            copy_first(operand)
        cute.arch.cp_async_commit_group()
        for step in cutlass.range_constexpr(1, stages - 1):
            copy_step(a, b, Int32(step), Int32(step))
        reading, writing = Int32(0), Int32(stages - 1)
        for step in cutlass.range(cute.size(a.source, mode=[3])):
            cute.arch.cp_async_wait_group(stages - 2)
            cute.arch.sync_threads()  # this stage has arrived, and the previous one is no longer read
            copy_step(a, b, step + stages - 1, writing)
            if cutlass.const_expr(self.operand is Float32):
                self.multiply_exact(mma, of_block, fragment_a, fragment_b, reading)
            else:
                self.multiply_stage(mma, of_block, fragment_a, fragment_b, reading)
            writing = reading
            reading = reading + 1 if reading + 1 < stages else Int32(0)
            if step % self.block == self.block - 1:
                sums.store(sums.load() + of_block.load())
                of_block.fill(0.0)
        sums.store(sums.load() + of_block.load())

    @cute.jit
    def multiply_exact(self, mma, sums, a, b, stage):
        for block in cutlass.range_constexpr(self.tiling.k // self.together):
            values_a, values_b = (self.chunk_of(operand, block, stage) for operand in (a, b))
            for k in cutlass.range_constexpr(self.together):
                cute.gemm(mma, sums, values_a[None, None, k], values_b[None, None, k], sums)

    def chunk_of(self, operand: cute.Tensor, block: int, stage: Int32) -> cute.Tensor:
        """Neighbours along k of every row of this thread, in registers."""
        rows, chunk = cute.size(operand, mode=[1]), self.together
        values = cute.make_rmem_tensor(cute.make_layout((1, rows, chunk), stride=(0, chunk, 1)), Float32)
        for row in range(rows):
            source = cute.local_tile(operand[0, row, None, stage], (chunk,), (block,))
            cute.autovec_copy(source, values[0, row, None])
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
