"""Exact products of f32 with few rows of ``a``: each block multiplies them with some rows of ``b``, which it reads once.

Such a product takes as long as reading ``b``. Lanes have neighbouring parts of a row, so that a warp reads whole lines. The
warps of a block take turns along k, so that even few rows of ``b`` keep many warps busy, and add up their sums in a fixed order. Each
lane has four sums for each element of the output: none has more than k / (128 * warps) + 1 terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._activations import Activation
from .._device import await_previous, launched_early
from .._gemm import EpilogueGemm, batched
from .._versions import SmemAllocator

WARP = cute.arch.WARP_SIZE
CHUNK = 4  # elements that a lane reads at once
LINE = WARP * CHUNK  # elements that a warp reads at once


@dataclass(frozen=True)
class Tiling:
    """A block multiplies up to ``m`` rows of ``a`` with ``n`` rows of ``b``."""

    m: int
    n: int
    ahead: int  # lines of each row that are on their way to a warp at once
    warps: int = 4  # of a block; each takes one line in ``warps``

    @property
    def label(self) -> str:
        return f"rows{self.m}"


class FewRowsGemm(EpilogueGemm):
    def __init__(self, tiling: Tiling, target: aot.Target, epilogues: Sequence[type[Activation]]) -> None:
        super().__init__(tiling, target, epilogues)
        self.early = launched_early(target)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, stream: CUstream):
        a, b, out = batched(a), batched(b), batched(out)
        m, n, batch = out.shape
        blocks = cute.ceil_div(n, self.tiling.n)
        if blocks * m * batch > 0:  # CUDA refuses an empty grid
            self.kernel(a, b, out, bias, epilogue, blocks).launch(
                grid=[blocks * batch, 1, 1], block=[self.tiling.warps * WARP, 1, 1], use_pdl=self.early, stream=stream
            )

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, blocks: Int32):
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        a, b, out = [matrix[None, None, block // blocks] for matrix in (a, b, out)]
        first, lane, warp = block % blocks * tiling.n, thread % WARP, thread // WARP
        sums = cute.make_rmem_tensor((CHUNK, tiling.n, tiling.m), Float32)
        sums.fill(0.0)
        await_previous(self.early)
        self.multiply(sums, a, b, first, warp * LINE + lane * CHUNK)
        parts = SmemAllocator().allocate_tensor(Float32, cute.make_layout((tiling.n * tiling.m, tiling.warps)), 16)
        for i in cutlass.range_constexpr(tiling.n * tiling.m):
            value = (sums[CHUNK * i] + sums[CHUNK * i + 1]) + (sums[CHUNK * i + 2] + sums[CHUNK * i + 3])
            for shift in cutlass.range_constexpr(5):
                value += cute.arch.shuffle_sync_bfly(value, offset=1 << shift)
            if lane == 0:
                parts[i, warp] = value
        cute.arch.sync_threads()  # the sums of all warps are there
        self.write(parts, out, bias, epilogue, first, thread)

    @cute.jit
    def multiply(self, sums, a, b, first, start):
        """Add up this warp's lines of each row. Beyond the end of a row, what is read is not added."""
        depth, ahead, apart = cute.size(a, mode=[1]), self.tiling.ahead, self.tiling.warps * LINE
        whole = depth // (ahead * apart) * ahead * apart
        for line in cutlass.range(0, whole, ahead * apart, unroll=1):
            chunks = [self.chunks(a, b, first, line + i * apart + start) for i in range(ahead)]
            for i in cutlass.range_constexpr(ahead):
                self.add(sums, *chunks[i])
        if whole < depth:
            places = [whole + i * apart + start for i in range(ahead)]
            chunks = [self.chunks(a, b, first, cutlass.min(place, depth - CHUNK)) for place in places]
            for i in cutlass.range_constexpr(ahead):
                if places[i] < depth:
                    self.add(sums, *chunks[i])

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
    def write(self, parts, out, bias, epilogue, first, thread):
        """Some threads add up what the warps have, and write one element each."""
        tiling = self.tiling
        m, n = thread // tiling.n, first + thread % tiling.n
        own = cute.make_rmem_tensor(1, Float32)
        if thread < tiling.n * tiling.m and m < cute.size(out, mode=[0]) and n < cute.size(out, mode=[1]):
            own[0] = parts[thread, 0]
            for i in cutlass.range_constexpr(1, tiling.warps):
                own[0] += parts[thread, i]
            if cute.size(bias) > 0:
                own[0] += bias[n]
            self.activate(own, epilogue)
            out[m, n] = own[0]
