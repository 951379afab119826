"""Gradients of a norm in one pass over memory, for rows that a block holds in registers.

A block takes the rows of one group, one after the other, and keeps what they add to the gradient of the weight in
registers. The next row is on its way while the present one is added up.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._device import WARP, KernelObject, add, await_previous, launched_early, load, store
from .._versions import SmemAllocator


@dataclass(frozen=True)
class FusedTiling:
    """A row belongs to ``threads`` threads with ``unroll`` chunks each; a block has ``slots`` rows at a time."""

    threads: int
    blocks: int  # minimum resident blocks per SM (limits registers)
    slots: int = 1
    unroll: int = 1

    @property
    def chunks(self) -> int:
        """The most that a row may have."""
        return self.threads * self.unroll

    @property
    def warps(self) -> int:
        return max(self.threads // WARP, 1)


# By the length of rows. Registers for more blocks would spill: on an H200, rmsnorm_residual of 16384 x 4096 then has 2.95
# TB/s instead of 3.78.
FUSED_TILINGS = (
    FusedTiling(32, slots=8, blocks=3),
    FusedTiling(128, slots=2, blocks=3),
    FusedTiling(128, unroll=2, blocks=4),
    FusedTiling(256, unroll=2, blocks=2),
    FusedTiling(512, unroll=2, blocks=1),
)


class FusedRmsNormBackward(KernelObject):
    """``grad_x = r * (h - x * r^2 * mean(h * x))``, plus ``grad_residual`` if there is one, and sums of groups of rows."""

    tiling: FusedTiling

    def __init__(self, target: aot.Target, chunk: int) -> None:
        self.early = launched_early(target)
        self.chunk = chunk  # elements

    @property
    def widest(self) -> int:
        """How many elements a row may have."""
        return FUSED_TILINGS[-1].chunks * self.chunk

    @cute.jit
    def launch(self, sources, weight, grad_x, factors, partial, eps, stream: CUstream):
        """``sources``: the gradient of the result, ``x``, and the gradient that is added, if there is one."""
        _, columns = grad_x.shape
        groups, _ = partial.shape
        launched = Int32(0)
        for tiling in FUSED_TILINGS:
            if launched == 0 and columns <= tiling.chunks * self.chunk:
                self.sized(tiling).kernel(sources, weight, grad_x, factors, partial, eps, 1 / Float32(columns)).launch(
                    grid=[groups, 1, 1],
                    block=[tiling.threads * tiling.slots, 1, 1],
                    min_blocks_per_mp=tiling.blocks,
                    preferred_smem_carveout=-1,  # the default; if it is left out, CuTe DSL asks the driver
                    use_pdl=self.early,
                    stream=stream,
                )
                launched = Int32(1)

    def sized(self, tiling: FusedTiling) -> FusedRmsNormBackward:
        own = copy(self)
        own.tiling = tiling
        return own

    @cute.kernel
    def kernel(self, sources, weight, grad_x, factors, partial, eps: Float32, inverse: Float32):
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        group, _, _ = cute.arch.block_idx()
        rows, columns = grad_x.shape
        groups, _ = partial.shape
        end = columns // self.chunk
        slot, lane = thread // tiling.threads, thread % tiling.threads
        shared = SmemAllocator()
        scratch = shared.allocate_tensor(Float32, cute.make_layout((tiling.warps, tiling.slots, 2, 2)))
        totals = [cute.make_rmem_tensor((self.chunk,), Float32) for _ in range(tiling.unroll)]
        for total in totals:
            total.fill(0.0)
        await_previous(self.early)
        weights = self.load(weight, lane)
        apart = groups * tiling.slots
        held = self.load_row(sources, cutlass.min(group + slot * groups, rows - 1), lane)
        # Every slot takes as many steps as the first one, because they wait for each other. LLVM would repeat a step, for
        # which there are not enough registers.
        for step in cutlass.range((rows - group + apart - 1) // apart, unroll=1):
            row = group + slot * groups + step * apart
            following = self.load_row(sources, cutlass.min(row + apart, rows - 1), lane)
            squares, products = self.add_up(held, weights, lane, end)
            squares, products = self.over_row(squares, products, scratch, slot, step % 2)
            factor = cute.math.rsqrt(squares * inverse + eps)
            if row < rows:
                mean = products * inverse * factor * factor
                self.store(held, weights, factor, mean, grad_x[row, None], lane, end)
                self.add_terms(totals, held, factor)
                if lane == 0:
                    factors[row] = factor
            for chunks, others in zip(held, following, strict=True):
                for chunk, other in zip(chunks, others, strict=True):
                    chunk.store(other.load())
        self.write(totals, shared, partial[group, None], slot, lane, end)

    def indices(self, lane: Int32) -> list[Int32]:
        return [lane + i * self.tiling.threads for i in range(self.tiling.unroll)]

    def load(self, row: cute.Tensor, lane: Int32) -> list[cute.Tensor]:
        """The chunks that a thread holds. Past the end of the row, the last chunk is repeated."""
        return [load(row, index, self.chunk) for index in self.indices(lane)]

    def load_row(self, sources: list[cute.Tensor], row: Int32, lane: Int32) -> list[list[cute.Tensor]]:
        return [self.load(source[row, None], lane) for source in sources]

    @cute.jit
    def add_up(self, held: list[list[cute.Tensor]], weights: list[cute.Tensor], lane, end):
        """This thread's sums of ``x * x`` and of ``h * x``."""
        squares = cute.full(self.chunk, 0.0, Float32)
        products = cute.full(self.chunk, 0.0, Float32)
        for index, grad, x, weight in zip(self.indices(lane), held[0], held[1], weights, strict=True):
            if index < end:
                values = x.load().to(Float32)
                squares = squares + values * values
                products = products + grad.load().to(Float32) * weight.load().to(Float32) * values
        zero = Float32(0)
        return squares.reduce(cute.ReductionOp.ADD, zero, 0), products.reduce(cute.ReductionOp.ADD, zero, 0)

    @cute.jit
    def over_row(self, squares: Float32, products: Float32, scratch: cute.Tensor, slot, parity):
        """Both sums over the threads of a row. Steps take turns with ``scratch``, so that one barrier for each is enough."""
        tiling = self.tiling
        squares = cute.arch.warp_reduction(squares, add)
        products = cute.arch.warp_reduction(products, add)
        if cutlass.const_expr(tiling.warps > 1):
            thread, _, _ = cute.arch.thread_idx()
            warp, lane = thread % tiling.threads // WARP, thread % WARP
            if lane == 0:
                scratch[warp, slot, 0, parity] = squares
                scratch[warp, slot, 1, parity] = products
            cute.arch.sync_threads()  # what is read here is overwritten two steps later: the barrier of the next step is between
            other = lane % tiling.warps
            squares = cute.arch.warp_reduction(scratch[other, slot, 0, parity], add, threads_in_group=tiling.warps)
            products = cute.arch.warp_reduction(scratch[other, slot, 1, parity], add, threads_in_group=tiling.warps)
        return squares, products

    @cute.jit
    def store(self, held: list[list[cute.Tensor]], weights: list[cute.Tensor], factor, mean, target, lane, end):
        for i, index in enumerate(self.indices(lane)):
            weighted = held[0][i].load().to(Float32) * weights[i].load().to(Float32)
            values = factor * (weighted - held[1][i].load().to(Float32) * mean)
            if cutlass.const_expr(len(held) > 2):
                values = values + held[2][i].load().to(Float32)
            store(values, target, index, end, self.chunk)

    def add_terms(self, totals: list[cute.Tensor], held: list[list[cute.Tensor]], factor: Float32) -> None:
        for total, grad, x in zip(totals, held[0], held[1], strict=True):
            total.store(total.load() + grad.load().to(Float32) * x.load().to(Float32) * factor)

    @cute.jit
    def write(self, totals: list[cute.Tensor], shared, partial: cute.Tensor, slot, lane, end):
        """The sums of the group: those of its slots, in their order."""
        tiling = self.tiling
        if cutlass.const_expr(tiling.slots == 1):
            for index, total in zip(self.indices(lane), totals, strict=True):
                store(total.load(), partial, index, end, self.chunk)
        else:
            layout = cute.make_layout((tiling.threads, self.chunk, tiling.unroll, tiling.slots))
            sums = shared.allocate_tensor(Float32, layout)
            for u in cutlass.range_constexpr(tiling.unroll):
                for i in cutlass.range_constexpr(self.chunk):
                    sums[lane, i, u, slot] = totals[u][i]
            cute.arch.sync_threads()  # the sums of all slots are there
            if slot == 0:
                for u in cutlass.range_constexpr(tiling.unroll):
                    for i in cutlass.range_constexpr(self.chunk):
                        for other in cutlass.range_constexpr(1, tiling.slots):
                            totals[u][i] = totals[u][i] + sums[lane, i, u, other]
                    store(totals[u].load(), partial, self.indices(lane)[u], end, self.chunk)
