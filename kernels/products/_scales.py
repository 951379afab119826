"""Scales of products on Hopper: of rows and columns in the epilogue, of blocks in the mainloop.

``a`` has a scale for each row, or for 128 elements of a row; ``b`` one for each row, or for 128 x 128 elements. Scales of
blocks differ from step to step, so sums are promoted after each step, times their factors. A second producer warp loads
these scales into shared memory, step by step, as the first one loads tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import cpasync
from cutlass.pipeline import NamedBarrier

import aot

from ..contracts._f8 import BLOCK
from ..sm90 import hardware as hw
from ..sm90.epilogue import Epilogue, Place, load_rows
from ..sm90.mainloop import UNROLLED, Consumer, Loads, PromotedMainloop, Ready
from ..sm90.pipeline import producer_state
from ..sm90.product import Product
from ..sm90.scheduler import TileScheduler, Work, this_block
from ..sm90.tiling import FLOAT_BYTES

SUB = 64  # rows or columns of a tile that share a scale, wherever the tile starts
MOST_FACTORS = 128  # of columns that fit into registers


@dataclass(frozen=True)
class RowScales(Epilogue):
    """``sums * a_scale * b_scale``: one for each row, or one for all. Arguments: both, ``b_scale`` by expert if grouped."""

    @property
    def floats(self) -> int:
        return self.tiling.written_columns

    @cute.jit
    def begin(self, arguments, floats, place: Place):
        """The scales of this thread's rows, in registers, and those of the tile's columns, in shared memory."""
        tiling = self.tiling
        row_scale, column_scale = arguments[::-1] if tiling.swapped else arguments
        own = cute.make_rmem_tensor(2 * tiling.parts, Float32)
        load_rows(own, row_scale, place)  # or the only one, which serves all
        columns = cute.size(column_scale, mode=[cute.rank(column_scale) - 1])
        # The previous tile's are no longer read.
        self.barriers.together(place.group).arrive_and_wait()
        for i in cutlass.range_constexpr((tiling.written_columns + hw.WARP_GROUP - 1) // hw.WARP_GROUP):
            at = i * hw.WARP_GROUP + place.thread
            column = cutlass.min(place.n * tiling.written_columns + at, columns - 1)
            if at < tiling.written_columns:
                if cutlass.const_expr(cute.rank(column_scale) == 2):
                    floats[at, place.group] = column_scale[place.expert, column]
                else:
                    floats[at, place.group] = column_scale[column]
        return own

    @cute.jit
    def transform(self, sums, own, floats, part: cutlass.Constexpr, mma, place: Place):
        if cutlass.const_expr(part == 0):
            self.barriers.together(place.group).arrive_and_wait()  # the scales of columns are there
        for v in cutlass.range_constexpr(cute.size(sums)):
            column = hw.column_offset(v) + hw.accumulator_column(place.thread)
            sums[v] = sums[v] * (own[2 * part + v // 2 % 2] * floats[column, place.group])


@dataclass(frozen=True)
class BlockScales(PromotedMainloop):
    """Promotes each step times the scales of its blocks. Arguments: ``a_scale`` and ``b_scale``."""

    producers = 1 + hw.WARP  # each lane of the warp that loads scales arrives for its own
    steps_unrolled = 1
    unrolled_loads = UNROLLED

    @property
    def most_stages(self) -> int:
        """Each stage takes a named barrier: see :meth:`free`."""
        return hw.NAMED_BARRIERS - self.barriers.free

    @property
    def sub(self) -> int:
        """Columns of a warp group that share a scale of a block."""
        return math.gcd(self.tiling.own_columns, SUB)

    @property
    def fine(self) -> int:
        """Scales of ``a`` for one step of a tile."""
        return self.tiling.n if self.tiling.swapped else self.tiling.m

    @property
    def coarse(self) -> int:
        """Scales of ``b`` for one step of a tile."""
        return self.tiling.m // hw.WGMMA_ROWS if self.tiling.swapped else self.tiling.n // self.sub

    @property
    def by_column(self) -> bool:
        """Whether the factors of a step are too many for registers: each column has one."""
        return self.tiling.swapped and self.tiling.own_columns > MOST_FACTORS

    @property
    def step_scales(self) -> int:
        """Scales in shared memory for one step: those of ``a``, those of ``b``, and what aligns the next."""
        return -(-(self.fine + self.coarse) // 4) * 4

    @property
    def stage_head_bytes(self) -> int:
        return 2 * hw.BARRIER_BYTES + self.step_scales * FLOAT_BYTES

    def validate(self, target: aot.Target, stages: int, epilogue_bytes: int) -> None:
        super().validate(target, stages, epilogue_bytes)
        tiling = self.tiling
        if not tiling.cooperative or tiling.cluster_n > 1 or (tiling.swapped and tiling.parts > 1):
            raise aot.DeclarationError(
                f"a tile of {tiling.m} x {tiling.n} with scales of blocks",
                hint="it is cooperative; if `a` and `b` are swapped, each warp group has 64 rows",
            )

    def allocate_head(self, shared, stages: int):
        return shared.allocate_tensor(Float32, cute.make_layout((self.step_scales, stages)), 16)

    def ready(self, shared, full, loads: Loads, head, stages: int) -> Ready:
        return Ready(full, loads.shared_a, loads.shared_b, stages, head)

    # Producing.

    def free(self, stage) -> NamedBarrier:
        """Where the producer of scales waits until those of a stage are no longer read.

        The stage's own mbarrier does not tell: consumers release the tiles when they are multiplied, and may read scales after
        that. They cannot arrive here twice before the producer does, because the stage is not full again without it.
        """
        return NamedBarrier(barrier_id=self.barriers.free + stage, num_threads=hw.CONSUMERS * hw.WARP_GROUP + hw.WARP)

    @cute.jit
    def assist(self, warp, loads: Loads, full, ready: Ready, scheduler: TileScheduler, work: Work):
        if warp == 1:
            self.produce_scales(full, ready.scales, scheduler, work)

    @cute.jit
    def produce_scales(self, full, scales, scheduler: TileScheduler, work: Work):
        """The second producer warp: load the scales of blocks, in the order of the tiles."""
        tiling, block = self.tiling, this_block(self.tiling)
        lane = cute.arch.lane_idx()
        begin, end = self.steps(block.part, work.depth)
        fine, coarse = work.arguments
        apart = hw.WGMMA_ROWS if tiling.swapped else self.sub
        state = producer_state(full.num_stages)
        first, before = Int32(0), Int32(0)
        for index in cutlass.range(block.first, work.count, block.step):
            tile, first, before = scheduler.find(index, work, block, first, before)
            left = tile.n * tiling.n
            fine_row, coarse_row = (left, tile.top) if tiling.swapped else (tile.top, left)
            for k in cutlass.range(begin, end, unroll=1):
                if state.count >= full.num_stages:  # before that, nothing was in the stage
                    self.free(state.index).arrive_and_wait()
                place = cute.domain_offset((0, state.index), scales)
                for i in cutlass.range_constexpr(0, self.fine, hw.WARP):
                    if i + lane < self.fine:
                        self.copy_scale(fine, fine_row + i + lane, k, place, i + lane)
                if lane < self.coarse:
                    self.copy_scale(coarse, (coarse_row + lane * apart) // BLOCK, k, place, self.fine + lane)
                # Each lane arrives when its own copies have: the stage is full with these and with the bytes of TMA.
                cute.arch.cp_async_mbarrier_arrive_noinc(full.producer_get_barrier(state))
                state.advance()
        # Nothing promises that the copies of a thread that has ended still arrive.
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)

    @cute.jit
    def copy_scale(self, source, row, k, place, index):
        """Copy one scale. Rows that the matrix does not have get those of its last one."""
        row = cutlass.min(row, cute.size(source, mode=[0]) - 1)
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=Float32.width)
        one = cute.make_layout(1)
        own = cute.make_tensor(cute.domain_offset((row, k), source).iterator, one)
        cute.copy(atom, own, cute.make_tensor(cute.domain_offset((index, 0), place).iterator, one))

    # Consuming.

    def release_factors(self, stage) -> None:
        self.free(stage).arrive()

    @cute.jit
    def factors(self, ready: Ready, stage, consumer: Consumer):
        """The products of scales that a thread's sums of one step are multiplied with: see :meth:`factor_of`."""
        tiling, thread = self.tiling, consumer.thread
        scale = ready.scales[None, stage]
        if cutlass.const_expr(tiling.swapped):
            first = consumer.side * tiling.own_columns + hw.accumulator_column(thread)
            coarse = scale[self.fine + consumer.half]
            if cutlass.const_expr(self.by_column):
                return scale, first, coarse
            factors = cute.make_rmem_tensor(tiling.own_columns // 4, Float32)
            for i in cutlass.range_constexpr(cute.size(factors)):
                factors[i] = scale[first + i // 2 * 8 + i % 2] * coarse
            return factors
        subs, rows = tiling.own_columns // self.sub, 2 * tiling.parts
        factors = cute.make_rmem_tensor(rows * subs, Float32)
        for i in cutlass.range_constexpr(rows):
            row = consumer.half * tiling.own_rows + i // 2 * hw.WGMMA_ROWS + i % 2 * 8 + hw.accumulator_row(thread)
            fine = scale[row]
            for j in cutlass.range_constexpr(subs):
                factors[i * subs + j] = fine * scale[self.fine + consumer.side * subs + j]
        return factors

    def factor_of(self, v: int, part: int) -> int:
        """Which of a thread's factors belongs to sum ``v`` of a block of rows."""
        if self.tiling.swapped:
            return v // 4 * 2 + v % 2
        subs = self.tiling.own_columns // self.sub
        return (2 * part + v // 2 % 2) * subs + v // 4 * 8 // self.sub

    @cute.jit
    def promote(self, promoted, sums, factors, part: cutlass.Constexpr):
        """Add what the tensor cores summed for a block of rows, times its factors."""
        start = part * cute.size(sums)
        if cutlass.const_expr(self.by_column):
            self.promote_columns(promoted, sums, *factors)
        else:
            for v in cutlass.range_constexpr(cute.size(sums)):
                promoted[start + v] = promoted[start + v] + sums[v] * factors[self.factor_of(v, part)]

    @cute.jit
    def promote_columns(self, promoted, sums, scale, first, coarse):
        """The same for tiles that are too wide to have all factors in registers."""
        for i in cutlass.range_constexpr(cute.size(sums) // 4):
            factors = [scale[first + i * 8 + j] * coarse for j in range(2)]
            for v in cutlass.range_constexpr(4):
                promoted[i * 4 + v] = promoted[i * 4 + v] + sums[i * 4 + v] * factors[v % 2]


class ScaledProduct(Product):
    """``out = (a @ b.T) * scales``; if ``grouped``, rows of ``a`` belong to experts, each with a ``b`` of its own."""

    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, a_scale, b_scale, offsets, clusters: Int32, stream: CUstream
    ):  # fmt: skip
        self.launch(a, b, out, (a_scale, b_scale), offsets, clusters, stream)
