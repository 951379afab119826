"""GEMM of f32 for sm_90a that rounds no input: its numbers are cut into pieces that the tensor cores multiply.

A number of f32 has 24 bits. It is the sum of three numbers of bf16, which have 8 bits each: the number rounded, what that
leaves of it, rounded, and the rest. So a product of two numbers is the sum of nine products of pieces, each of which is exact
in f32. Six of them are computed. The other three are at most 2**-24 of it together, which is what rounding a product to f32
can lose, and a tenth of that in the mean.

The tensor cores cut sums off instead of rounding them. Small products are summed first, those of the first pieces last, so that
only two additions of a step cut off bits that count; then the sum is added up in f32 registers.

Shared memory is the limit. So the multiplying warp groups cut tiles of ``a`` in registers, from where wgmma takes them, and only
pieces of ``b`` go through shared memory. One warp group more than other products have cuts those, with the warps beside the one
that loads. Both have the elements of a step in the same order, which is not that of k: the one in which threads read chunks of
16 bytes.

bf16 has the range of f32, but not for pieces of its smallest numbers: numbers are multiplied with 2**16 first. If that is too
large, or not finite to begin with, a piece of it is infinite, and times a piece that is zero it is no number. So elements of the
output that are not finite are computed again, one product after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import BFloat16, Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from ..sm90 import hardware as hw
from ..sm90.epilogue import Place
from ..sm90.mainloop import UNROLLED, Consumer, Loads, PromotedMainloop, Ready, Types
from ..sm90.pipeline import consumer_state, state_at, thread_pipeline
from ..sm90.product import Product
from ..sm90.scheduler import TileScheduler, Work, this_block
from ..sm90.softmax import left_operand
from ._tf32 import F32BiasActivation

PIECES = 3
# Pieces of a and b that are multiplied, the smallest products first.
PRODUCTS = ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0))
STEP = hw.LINE_BYTES * 8 // Float32.width  # elements along k
CHUNK = 4  # elements of 16 bytes
MMA_DEPTH = 16  # elements along k of one instruction
SCALE = 2.0**16  # of a number, so that its last piece has no bits below the smallest number of bf16
CUTTING_WARPS = 7  # at most: all that neither load nor multiply


@dataclass(frozen=True)
class PiecesMainloop(PromotedMainloop):
    """Multiplies pieces of f32: consumers cut those of ``a`` in registers, other warps those of ``b`` in shared memory."""

    threads = hw.THREADS + hw.WARP_GROUP
    registers = 56, 200  # of two warp groups each: 128 for each of the 512 threads
    unrolled_loads = UNROLLED

    @property
    def cut_parts(self) -> int:
        """Parts of 32 rows of a tile of ``b``, each of which one warp cuts."""
        return -(-self.tiling.n // hw.WARP)

    @property
    def cutting_warps(self) -> int:
        return CUTTING_WARPS if self.cut_parts > 1 else hw.GROUP_WARPS

    @property
    def cut_stages(self) -> int:
        """Steps along ``k`` of which the pieces of ``b`` are in shared memory.

        As many as lie between two parts that a warp cuts, or more: a barrier tells one round of the stages from the next, not
        from the one after that.
        """
        return max(3, -(-self.cutting_warps // self.cut_parts))

    @property
    def extra_bytes(self) -> int:
        """The pieces of ``b``, their barriers, and what aligns them."""
        pieces = PIECES * self.tiling.n * STEP * BFloat16.width // 8
        return self.cut_stages * (pieces + 2 * hw.BARRIER_BYTES) + hw.ALIGNMENT

    @property
    def reading_warps(self) -> int:
        return self.cut_parts + super().reading_warps

    def validate(self, target: aot.Target, stages: int, epilogue_bytes: int) -> None:
        super().validate(target, stages, epilogue_bytes)
        if self.tiling.parts > 1:
            raise aot.DeclarationError(
                f"{self.tiling.own_rows} rows for one warp group",
                hint=f"pieces of {hw.WGMMA_ROWS} rows fit into its registers",
            )
        if stages < self.cut_stages:
            raise aot.DeclarationError(
                f"{stages} stages as they are loaded and {self.cut_stages} of pieces",
                hint="warps that cut wait for loads in the order of the pieces: there must be as many stages of loads",
            )

    def instruction(self, types: Types, columns: int) -> cute.TiledMma:
        major, registers = OperandMajorMode.K, warpgroup.OperandSource.RMEM
        return hopper_helpers.make_trivial_tiled_mma(
            BFloat16, BFloat16, major, major, Float32, (1, 1, 1), (hw.WGMMA_ROWS, columns), registers
        )

    # Cutting.

    def ready(self, shared, full, loads: Loads, head, stages: int) -> Ready:
        """Tiles of ``a`` as they were loaded, and pieces of ``b``, three of each stage, with both pipelines."""
        tile, count = (self.tiling.m, self.tiling.n, STEP), PIECES * self.cut_stages
        layout = hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, tile, BFloat16, count)
        pieces = shared.allocate_tensor(BFloat16, layout.outer, hw.ALIGNMENT, swizzle=layout.inner)
        barriers = shared.allocate_array(cutlass.Int64, 2 * self.cut_stages)
        cut = thread_pipeline(barriers, self.cut_stages, self.cut_parts * hw.WARP, super().reading_warps)
        return Ready((full, cut), loads.shared_a, pieces, self.cut_stages)

    @cute.jit
    def assist(self, warp, loads: Loads, full, ready: Ready, scheduler: TileScheduler, work: Work):
        if warp > 0:
            self.cut_tiles(warp, loads.shared_b, full, ready, work)

    @cute.jit
    def cut_tiles(self, warp, source, full, ready: Ready, work: Work):
        """A warp: cut some parts of tiles of ``b`` into pieces, in the order in which they are multiplied."""
        (_, cut), tiling, lane = ready.full, self.tiling, cute.arch.lane_idx()
        # Warps 1 to 3, beside the producer, come after the warp group that only cuts.
        own = (warp + hw.GROUP_WARPS) % (self.threads // hw.WARP)
        if own >= hw.GROUP_WARPS:
            own -= 1
        block = this_block(tiling)
        begin, end = self.steps(block.part, work.depth)
        total = cute.ceil_div(work.count - block.first, block.step) * (end - begin) * self.cut_parts
        if own < self.cutting_warps:
            for index in cutlass.range(own, total, self.cutting_warps, unroll=1):
                at, row = index // self.cut_parts, index % self.cut_parts * hw.WARP + lane
                read, written = state_at(at, full.num_stages), state_at(at, self.cut_stages, 1)
                # In this order: if the pieces that were in this stage have been multiplied, the loads of their step had
                # arrived, so the barrier of the loads is not taken for that of a round before.
                cut.producer_acquire(written)
                full.consumer_wait(read)
                if row < tiling.n:
                    self.cut_row(source, ready.b, row, read.index, written.index)
                cute.arch.sync_warp()  # all lanes have read their rows: the first one releases the stage for them
                full.consumer_release(read)
                # wgmma reads shared memory through another proxy than the one that has written it.
                cute.arch.fence_proxy("async.shared", space="cta")
                cut.producer_commit(written)

    @cute.jit
    def cut_row(self, source, target, row, stage, cut_stage):
        """The pieces of a row of a step, in the order in which lanes have elements of ``a``."""
        loaded = numbers_of(source[None, None, stage], row, 0, STEP)
        numbers = cute.make_rmem_tensor(STEP, Float32)
        for place in cutlass.range_constexpr(STEP):
            numbers[place] = loaded[element_at(place)]
        at_once = 2 * CHUNK  # of bf16
        for i in cutlass.range_constexpr(PIECES):
            piece = next_piece(numbers, last=i == PIECES - 1)
            for chunk in cutlass.range_constexpr(STEP // at_once):
                place = cute.local_tile(target, (1, at_once), (row, chunk, cut_stage * PIECES + i))
                own = cute.make_tensor(piece.iterator + chunk * at_once, cute.make_layout(at_once))
                cute.autovec_copy(own, place[0, None])

    def cut_fragments(self, tile, thread):
        """The pieces of what this thread has of 64 rows of ``a``, for all instructions of a step."""
        lane, row = cute.arch.lane_idx(), hw.accumulator_row(thread)
        # Neighbours, rows, halves of what an instruction takes along k, instructions.
        numbers = cute.make_rmem_tensor((2, 2, 2, 2), Float32)
        for below in range(2):
            loaded = numbers_of(tile, row + 8 * below, lane % 4 * 2, 2 * CHUNK)
            for i in range(2 * CHUNK):
                numbers[i % 2, below, i // 2 % 2, i // CHUNK] = loaded[i]
        pieces = [next_piece(numbers, last=i == PIECES - 1) for i in range(PIECES)]
        return [left_operand(piece, STEP) for piece in pieces]

    # Consuming.

    @cute.jit
    def fragments(self, mma, ready: Ready, consumer: Consumer):
        own_b = cute.local_tile(ready.b, (self.tiling.own_columns, STEP), (consumer.side, 0, None))
        b = mma.make_fragment_B(mma.get_slice(0).partition_B(own_b))
        return [(cute.local_tile(ready.a, (self.product_rows, STEP), (consumer.half, 0, None)), b)]

    def states(self, ready: Ready):
        """Of the pieces of ``b``, and of the tiles of ``a`` as they were loaded."""
        loads, _ = ready.full
        return consumer_state(ready.stages), consumer_state(loads.num_stages)

    @cute.jit
    def add_steps(self, ready: Ready, mmas, accumulators, operands, read, loaded, consumer: Consumer):
        """Multiply the pieces of one step and add the sum of products to the sums in f32."""
        (loads, cut), (beginning, adding), (sums, promoted) = ready.full, mmas, accumulators
        a, b = operands[0]
        loads.consumer_wait(loaded)
        pieces = self.cut_fragments(a[None, None, loaded.index], consumer.thread)
        cut.consumer_wait(read)
        # wgmma reads registers asynchronously: pieces and accumulators must have been written.
        warpgroup.fence()
        for i in cutlass.range_constexpr(len(PRODUCTS)):
            of_a, of_b = PRODUCTS[i]
            for k in cutlass.range_constexpr(STEP // MMA_DEPTH):
                mma = beginning if i + k == 0 else adding
                cute.gemm(mma, sums, pieces[of_a][None, None, k], b[None, None, k, read.index * PIECES + of_b], sums)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        # Not earlier: a load from shared memory may arrive in registers after the barrier was told that it was made. The
        # products have read these registers, of all lanes.
        loads.consumer_release(loaded)
        with cute.arch.elect_one():
            cut.consumer_release(read)
        self.promote(promoted, sums, None, 0)
        read.advance()
        loaded.advance()
        return read, loaded


@dataclass(frozen=True)
class ExactBiasActivation(F32BiasActivation):
    """The same for sums of pieces. Arguments: the bias, the matrices whose rows are rows and columns of a tile, the number."""

    @cute.jit
    def transform(self, sums, state, floats, part: cutlass.Constexpr, mma, place: Place):
        bias, rows, columns, which = state
        zero = Float32(0.0)
        for v in cutlass.range_constexpr(cute.size(sums)):
            sums[v] = sums[v] * SCALE**-2
            zero += sums[v] * 0.0  # which is not zero if a sum is not finite
        if zero != 0.0:
            for first in cutlass.range_constexpr(0, cute.size(sums), 8):
                chunk = cute.make_tensor(sums.iterator + first, cute.make_layout(8))
                compute_again(chunk, rows, columns, place.row(0), place.column(first))
        F32BiasActivation.transform(self, sums, (bias, which), floats, part, mma, place)


class ExactGemm(Product):
    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, clusters: Int32, stream: CUstream
    ):
        rows, columns = (b, a) if cutlass.const_expr(self.tiling.swapped) else (a, b)
        self.launch(a, b, out, (bias, rows, columns, epilogue), None, clusters, stream)


@cute.jit
def compute_again(sums: cute.Tensor, rows: cute.Tensor, columns: cute.Tensor, row: Int32, column: Int32):
    """Compute those of a thread's sums that are not finite one product after the other, on the cores for f32."""
    left = Int32(0)
    for v in cutlass.range_constexpr(cute.size(sums)):
        if sums[v] * 0.0 != 0.0:
            left |= 1 << v
    while left != 0:
        v = cute.arch.popc((left & -left) - 1)
        left &= left - 1
        # Four sums in a row belong to rows i, i, i + 8 and i + 8, and to columns j, j + 1, j and j + 1.
        own_row, own_column = row + v // 2 % 2 * 8, column + v // 4 * 8 + v % 2
        total = Float32(0.0)
        if own_row < cute.size(rows, mode=[0]) and own_column < cute.size(columns, mode=[0]):
            for k in cutlass.range(cute.size(rows, mode=[1]), unroll=1):
                total += rows[own_row, k] * columns[own_column, k]
        for i in cutlass.range_constexpr(cute.size(sums)):
            if v == i:
                sums[i] = total


def element_at(place: int) -> int:
    """The element along k of a step that an instruction finds at a place.

    A lane has 8 neighbours of a row, and an instruction takes 4 of them: two at twice the lane, two 8 further on.
    """
    instruction, half, lane, neighbour = place // MMA_DEPTH, place // 8 % 2, place // 2 % 4, place % 2
    return lane * 2 * CHUNK + instruction * CHUNK + half * 2 + neighbour


def numbers_of(tile: cute.Tensor, row: Int32, chunk: Int32, count: int) -> cute.Tensor:
    """Neighbours in a row of a tile, times the scale, in registers."""
    numbers = cute.make_rmem_tensor(count, Float32)
    for i in range(count // CHUNK):
        own = cute.make_tensor(numbers.iterator + i * CHUNK, cute.make_layout(CHUNK))
        cute.autovec_copy(cute.local_tile(tile, (1, CHUNK), (row, chunk + i))[0, None], own)
    numbers.store(numbers.load() * SCALE)
    return numbers


def next_piece(numbers: cute.Tensor, last: bool) -> cute.Tensor:
    """Numbers rounded to bf16. Unless it is the last piece, they are replaced by what rounding left of them.

    Pieces become f32 by their bits, two at once: if they were converted, the compiler would round one by one.
    """
    piece = cute.make_rmem_tensor(cute.size(numbers), BFloat16)
    piece.store(cute.make_tensor(numbers.iterator, piece.layout).load().to(BFloat16))
    if not last:
        pairs, whole = cute.recast_tensor(piece, Int32), cute.make_rmem_tensor(2, Int32)
        for i in range(cute.size(pairs)):
            whole[0], whole[1] = pairs[i] << 16, pairs[i] & -(1 << 16)
            values = cute.recast_tensor(whole, Float32)
            for j in range(2):
                numbers[2 * i + j] = numbers[2 * i + j] - values[j]
    return piece
