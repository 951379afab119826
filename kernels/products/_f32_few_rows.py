"""Exact products of f32 with few rows of ``a``: each warp multiplies them with some rows of ``b``, which it reads once.

Such a product takes as long as reading ``b``. Lanes have neighbouring parts of a row, so that a warp reads whole lines. Each
lane has four sums for each element of the output, so that no sum has more than k / 128 terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

from .._activations import Activation
from .._gemm import EpilogueGemm, batched

WARP = cute.arch.WARP_SIZE
CHUNK = 4  # elements that a lane reads at once
LINE = WARP * CHUNK  # elements that a warp reads at once


@dataclass(frozen=True)
class Tiling:
    """A warp multiplies up to ``m`` rows of ``a`` with ``n`` rows of ``b``."""

    m: int
    n: int = 2
    warps: int = 8
    ahead: int = 4  # lines of each row that are on their way at once

    @property
    def label(self) -> str:
        return f"rows{self.m}"


class FewRowsGemm(EpilogueGemm):
    def __init__(self, tiling: Tiling, epilogues: Sequence[type[Activation]]) -> None:
        self.tiling, self.epilogues = tiling, tuple(epilogues)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, stream: CUstream):
        a, b, out = batched(a), batched(b), batched(out)
        m, n, batch = out.shape
        blocks = cute.ceil_div(n, self.tiling.n * self.tiling.warps)
        if blocks * m * batch > 0:  # CUDA refuses an empty grid
            self.kernel(a, b, out, bias, epilogue, blocks).launch(
                grid=[blocks * batch, 1, 1], block=[self.tiling.warps * WARP, 1, 1], stream=stream
            )

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, blocks: Int32):
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        a, b, out = [matrix[None, None, block // blocks] for matrix in (a, b, out)]
        first = (block % blocks * tiling.warps + thread // WARP) * tiling.n
        lane = thread % WARP
        sums = cute.make_rmem_tensor((CHUNK, tiling.n, tiling.m), Float32)
        sums.fill(0.0)
        self.multiply(sums, a, b, first, lane)
        results = cute.make_rmem_tensor((tiling.n, tiling.m), Float32)
        for i in cutlass.range_constexpr(cute.size(results)):
            value = (sums[CHUNK * i] + sums[CHUNK * i + 1]) + (sums[CHUNK * i + 2] + sums[CHUNK * i + 3])
            for shift in cutlass.range_constexpr(5):
                value += cute.arch.shuffle_sync_bfly(value, offset=1 << shift)
            results[i] = value
        self.write(results, out, bias, epilogue, first, lane)

    @cute.jit
    def multiply(self, sums, a, b, first, lane):
        depth, ahead = cute.size(a, mode=[1]), self.tiling.ahead
        whole = depth // (ahead * LINE) * ahead * LINE
        for start in cutlass.range(0, whole, ahead * LINE, unroll=1):
            chunks = [self.chunks(a, b, first, start + i * LINE + lane * CHUNK) for i in range(ahead)]
            for i in cutlass.range_constexpr(ahead):
                self.add(sums, *chunks[i])
        for place in cutlass.range(whole + lane * CHUNK, depth, LINE, unroll=1):
            self.add(sums, *self.chunks(a, b, first, place))

    def chunks(self, a, b, first, place):
        """What a lane multiplies: the same place in each row."""
        tiling = self.tiling
        return [self.read(a, i, place) for i in range(tiling.m)], [
            self.read(b, first + i, place) for i in range(tiling.n)
        ]

    def read(self, matrix, row, place):
        """Neighbours in a row; those of the last one for rows that do not exist."""
        row = cutlass.min(Int32(row), cute.size(matrix, mode=[0]) - 1)
        source = cute.domain_offset((row, place), matrix).iterator.align(CHUNK * Float32.width // 8)
        values = cute.make_rmem_tensor(CHUNK, Float32)
        cute.autovec_copy(cute.make_tensor(source, cute.make_layout(CHUNK)), values)
        return values

    @cute.jit
    def add(self, sums, rows, columns):
        for m in cutlass.range_constexpr(self.tiling.m):
            for n in cutlass.range_constexpr(self.tiling.n):
                for i in cutlass.range_constexpr(CHUNK):
                    sums[i, n, m] += rows[m][i] * columns[n][i]

    @cute.jit
    def write(self, results, out, bias, epilogue, first, lane):
        """All lanes have all results. Each writes one of them, or none."""
        tiling = self.tiling
        m, n = lane // tiling.n, first + lane % tiling.n
        own = cute.make_rmem_tensor(1, Float32)
        own[0] = results[0]
        for i in cutlass.range_constexpr(1, cute.size(results)):
            if lane == i:
                own[0] = results[i]
        if cute.size(bias) > 0:
            own[0] += bias[cutlass.min(n, cute.size(bias) - 1)]
        self.activate(own, epilogue)
        if lane < cute.size(results) and m < cute.size(out, mode=[0]) and n < cute.size(out, mode=[1]):
            out[m, n] = own[0]
