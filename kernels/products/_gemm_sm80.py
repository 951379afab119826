"""GEMM for sm_80 and for later architectures without code of their own: cp.async, ldmatrix, mma.sync."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.utils import LayoutEnum

from .._gemm import TileGemm
from .._scheduler import swizzled_batch
from ..sm80.mainloop import Mainloop


class Gemm(Mainloop, TileGemm):
    @cute.kernel
    def kernel(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, mma: cute.TiledMma, tiles
    ):
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        m, n, batch = swizzled_batch(index, tiles, self.tiling.group)
        majors = LayoutEnum.from_tensor(a), LayoutEnum.from_tensor(b)
        stages = self.stages_of(mma, a[None, None, batch], m, b[None, None, batch], n, majors, thread)
        stages.sums.fill(0.0)
        steps = cute.size(stages.operands[0].source, mode=[3])
        self.multiply(*stages.operands, 0, steps, (mma, stages.sums, *stages.fragments))
        self.write(mma, stages.sums, bias, epilogue, stages.storage, out[None, None, batch], m, n, thread)

    @cute.jit
    def write(self, mma, sums, bias, epilogue, storage, out, m, n, thread):
        tile = (self.tiling.m, self.tiling.n)
        places = cute.local_tile(cute.make_identity_tensor(out.shape), tile, (m, n))
        if cute.size(bias) > 0:
            columns = mma.get_slice(thread).partition_C(places)
            for i in cutlass.range_constexpr(cute.size(sums)):
                sums[i] += Float32(bias[cutlass.min(columns[i][1], cute.size(bias) - 1)])
        self.activate(sums, epilogue)
        own, source = self.round_tile(mma, sums, storage, out.element_type, thread)
        target, places = own.partition_D(cute.local_tile(out, tile, (m, n))), own.partition_S(places)
        for i in cutlass.range_constexpr(cute.size(source, mode=[1])):
            for j in cutlass.range_constexpr(cute.size(source, mode=[2])):
                if cute.elem_less(places[(0, 0), i, j], out.shape):
                    chunk = cute.make_rmem_tensor_like(source[None, i, j])
                    cute.autovec_copy(source[None, i, j], chunk)
                    cute.autovec_copy(chunk, target[None, i, j])
