"""GEMM for sm_80 and for later architectures without code of their own: cp.async, ldmatrix, mma.sync.

A block computes one tile of the output. Copies into shared memory run some stages ahead of the products; within a
stage, loads into registers run one step ahead of them.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import warp
from cutlass.utils import LayoutEnum

from .._gemm import EpilogueGemm, batched
from .._scheduler import swizzled_batch
from .._versions import SmemAllocator
from ..sm80.operands import copy_first, copy_step, make_operand
from ..sm80.tiles import ELEMENT_BYTES, LINE, MMA, chunk_copy, lines, load, make_fragment, swizzled, tiled_mma


class Gemm(EpilogueGemm):
    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, stream: CUstream):
        a, b, out = batched(a), batched(b), batched(out)
        self.dtype = a.element_type
        self.majors = LayoutEnum.from_tensor(a), LayoutEnum.from_tensor(b)
        m, n, batch = out.shape
        tiles = (cute.ceil_div(m, self.tiling.m), cute.ceil_div(n, self.tiling.n), batch)
        count = tiles[0] * tiles[1] * tiles[2]
        if count > 0:  # CUDA refuses an empty grid
            self.kernel(a, b, out, bias, epilogue, tiled_mma(self.dtype, self.tiling.warps), tiles).launch(
                grid=[count, 1, 1], block=[self.tiling.threads, 1, 1], stream=stream
            )

    @cute.kernel
    def kernel(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, mma: cute.TiledMma, tiles
    ):
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        m, n, batch = swizzled_batch(index, tiles, tiling.group)
        storage = SmemAllocator().allocate(tiling.shared_bytes, byte_alignment=8 * LINE * ELEMENT_BYTES)
        storage_b = storage + tiling.stages * tiling.m * tiling.k * ELEMENT_BYTES
        shared_a = swizzled(storage, self.dtype, lines(self.majors[0]), (tiling.m, tiling.k, tiling.stages))
        shared_b = swizzled(storage_b, self.dtype, lines(self.majors[1]), (tiling.n, tiling.k, tiling.stages))
        operand_a = make_operand(a[None, None, batch], self.majors[0], shared_a, m, thread, tiling)
        operand_b = make_operand(b[None, None, batch], self.majors[1], shared_b, n, thread, tiling)
        fragment_a, fragment_b = self.fragments(mma, shared_a, shared_b, thread)
        sums = cute.make_rmem_tensor(mma.partition_shape_C((tiling.m, tiling.n)), Float32)
        self.multiply(mma, sums, operand_a, operand_b, fragment_a, fragment_b)
        self.write(mma, sums, bias, epilogue, storage, out[None, None, batch], m, n, thread)

    def fragments(self, mma: cute.TiledMma, shared_a: cute.Tensor, shared_b: cute.Tensor, thread) -> tuple:
        matrices = [
            cute.make_copy_atom(warp.LdMatrix8x8x16bOp(major != LayoutEnum.ROW_MAJOR, 4), self.dtype)
            for major in self.majors
        ]
        mine = mma.get_slice(thread)
        values_a = mma.make_fragment_A(mine.partition_A(shared_a[None, None, 0]))
        values_b = mma.make_fragment_B(mine.partition_B(shared_b[None, None, 0]))
        return (
            make_fragment(values_a, cute.make_tiled_copy_A(matrices[0], mma), shared_a, thread),
            make_fragment(values_b, cute.make_tiled_copy_B(matrices[1], mma), shared_b, thread),
        )

    @cute.jit
    def multiply(self, mma, sums, a, b, fragment_a, fragment_b):
        stages = self.tiling.stages
        sums.fill(0.0)
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
            self.multiply_stage(mma, sums, fragment_a, fragment_b, reading)
            writing = reading
            reading = reading + 1 if reading + 1 < stages else Int32(0)

    @cute.jit
    def multiply_stage(self, mma, sums, a, b, stage):
        blocks = self.tiling.k // MMA[2]
        for block in cutlass.range_constexpr(-1, blocks):
            if cutlass.const_expr(block + 1 < blocks):
                load(a, block + 1, stage)
                load(b, block + 1, stage)
            if cutlass.const_expr(block >= 0):
                cute.gemm(mma, sums, a.values[None, None, block], b.values[None, None, block], sums)

    @cute.jit
    def write(self, mma, sums, bias, epilogue, storage, out, m, n, thread):
        """Bias, epilogue, rounding; then through shared memory, so that stores write whole lines."""
        tile = (self.tiling.m, self.tiling.n)
        mine = mma.get_slice(thread)
        places = cute.local_tile(cute.make_identity_tensor(out.shape), tile, (m, n))
        if cute.size(bias) > 0:
            columns = mine.partition_C(places)
            for i in cutlass.range_constexpr(cute.size(sums)):
                sums[i] += Float32(bias[cutlass.min(columns[i][1], cute.size(bias) - 1)])
        rounded = cute.make_rmem_tensor_like(sums, self.dtype)
        self.activate(sums, epilogue)
        rounded.store(sums.load().to(self.dtype))
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()  # the stages are no longer read
        shared = swizzled(storage, self.dtype, lines(LayoutEnum.ROW_MAJOR), tile)
        cute.autovec_copy(rounded, mine.partition_C(shared))
        cute.arch.sync_threads()
        chunks = chunk_copy(cute.nvgpu.CopyUniversalOp(), self.dtype, LayoutEnum.ROW_MAJOR, self.tiling.threads)
        own = chunks.get_slice(thread)
        source, target = own.partition_S(shared), own.partition_D(cute.local_tile(out, tile, (m, n)))
        places = own.partition_S(places)
        for i in cutlass.range_constexpr(cute.size(source, mode=[1])):
            for j in cutlass.range_constexpr(cute.size(source, mode=[2])):
                if cute.elem_less(places[(0, 0), i, j], out.shape):
                    chunk = cute.make_rmem_tensor_like(source[None, i, j])
                    cute.autovec_copy(source[None, i, j], chunk)
                    cute.autovec_copy(chunk, target[None, i, j])
