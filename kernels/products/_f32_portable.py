"""GEMM of f32 for every architecture: exact products on the cores for f32, or products of TF32 on the tensor cores.

TF32 has the range of f32 and 11 bits of it: operands are rounded to it, products and sums are not. The caller chooses it
by name, so a product of f32 never loses bits unasked.

A block computes one tile of the output. The tile of the next step is on its way to registers while this one is
multiplied. Threads copy single elements, so any strides will do, and whichever extent is contiguous in memory is read by
neighbouring threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, TFloat32
from cutlass.cute.nvgpu import warp

import aot

from .._activations import Activation, activate
from .._gemm import TileGemm
from .._scheduler import swizzled_batch
from .._versions import SmemAllocator

WARPS = 8
THREADS = WARPS * cute.arch.WARP_SIZE
STAGES = 2
CHUNK = 4  # elements of the output that a thread finishes at once
# A column of shared memory starts 8 banks after the column before it: the 4 columns x 8 rows that a warp gives to one
# instruction for TF32 lie in 32 banks.
PADDING = 8
# A sum in f32 of many terms loses bits with each of them, so products are added up in blocks of this many along k, and the
# sums of blocks are added up in turn. Tensor cores cut off bits where others round them: their blocks are shorter.
BLOCK, TF32_BLOCK = 256, 64


@dataclass(frozen=True)
class Tiling:
    """A block computes ``m`` x ``n`` of the output, ``k`` at a time."""

    m: int = 128
    n: int = 128
    k: int = 16
    group: int = 8  # rows of tiles that are computed together: see ``swizzled_batch``

    threads = THREADS

    @property
    def label(self) -> str:
        return f"tile{self.m}x{self.n}"


@cute.jit
def write_sums(
    mine, sums, bias, which, activations: cutlass.Constexpr, out, tile: cutlass.Constexpr, m, n, split=1, part=0
):
    """Write a thread's sums as they are in its registers, to an output with any strides.

    If ``split`` blocks share a tile, they write chunks of sums in turn.
    """
    places = mine.partition_C(cute.local_tile(cute.make_identity_tensor(out.shape), tile, (m, n)))
    target = mine.partition_C(cute.local_tile(out, tile, (m, n)))
    for first in cutlass.range_constexpr(0, cute.size(sums), CHUNK):  # a chunk at a time, to save registers
        if first // CHUNK % split == part:
            write_chunk(sums, bias, which, activations, out, places, target, first)


@cute.jit
def write_chunk(sums, bias, which, activations: cutlass.Constexpr, out, places, target, first: cutlass.Constexpr):
    chunk = cute.make_rmem_tensor(CHUNK, Float32)
    for i in cutlass.range_constexpr(CHUNK):
        chunk[i] = sums[first + i]
    if cute.size(bias) > 0:
        for i in cutlass.range_constexpr(CHUNK):
            chunk[i] += bias[cutlass.min(places[first + i][1], cute.size(bias) - 1)]
    activate(chunk, which, activations)
    for i in cutlass.range_constexpr(CHUNK):
        if cute.elem_less(places[first + i], out.shape):
            target[first + i] = chunk[i]


class Gemm(TileGemm):
    def __init__(
        self, tiling: Tiling, target: aot.Target, epilogues: Sequence[type[Activation]], rounded: bool
    ) -> None:
        super().__init__(tiling, target, epilogues)
        self.operand = TFloat32 if rounded else Float32
        self.block = (TF32_BLOCK if rounded else BLOCK) // tiling.k  # in steps

    def tiled_mma(self, dtype) -> cute.TiledMma:
        if self.operand is TFloat32:
            return cute.make_tiled_mma(warp.MmaTF32Op((16, 8, 8)), cute.make_layout((2, 4, 1)))
        # Each thread multiplies groups of 4 rows with groups of 4 columns, which it reads from shared memory at once. The
        # threads of a warp are 4 x 8, so that a warp reads few different groups.
        threads = cute.make_layout(((4, 4), (8, 2), 1), stride=((8, 32), (1, 128), 0))
        groups = cute.make_layout((16, 4), stride=(4, 1))
        return cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(Float32), threads, permutation_mnk=(groups, groups, None))

    @cute.kernel
    def kernel(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, mma: cute.TiledMma, tiles
    ):
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        m, n, batch = swizzled_batch(index, tiles, tiling.group)
        smem = SmemAllocator()
        shared_a, shared_b = self.stages(smem, tiling.m), self.stages(smem, tiling.n)
        operand_a = make_operand(a[None, None, batch], shared_a, m * tiling.m, thread)
        operand_b = make_operand(b[None, None, batch], shared_b, n * tiling.n, thread)
        sums = cute.make_rmem_tensor(mma.partition_shape_C((tiling.m, tiling.n)), Float32)
        self.multiply(mma.get_slice(thread), mma, sums, operand_a, operand_b)
        tile = (tiling.m, tiling.n)
        mine, out = mma.get_slice(thread), out[None, None, batch]
        write_sums(mine, sums, bias, epilogue, self.epilogues, out, tile, m, n)

    def stages(self, smem: SmemAllocator, rows: int) -> cute.Tensor:
        """Tiles of an operand in shared memory: row, k, stage."""
        column = rows + PADDING
        layout = cute.make_layout((rows, self.tiling.k, STAGES), stride=(1, column, column * self.tiling.k))
        return smem.allocate_tensor(self.operand, layout, byte_alignment=16)

    @cute.jit
    def multiply(self, mine, mma, sums, a, b):
        shared_a, shared_b = mine.partition_A(a.shared), mine.partition_B(b.shared)
        values_a = mma.make_fragment_A(shared_a[None, None, None, 0])
        values_b = mma.make_fragment_B(shared_b[None, None, None, 0])
        of_block = cute.make_rmem_tensor_like(sums)
        sums.fill(0.0)
        of_block.fill(0.0)
        steps = cute.ceil_div(cute.size(a.matrix, mode=[1]), self.tiling.k)
        next_a, next_b = self.read(a, Int32(0)), self.read(b, Int32(0))
        for step in cutlass.range(steps):
            stage = step % STAGES
            self.put(a, next_a, stage)
            self.put(b, next_b, stage)
            cute.arch.sync_threads()  # this stage is written, and the one that comes next is no longer read
            next_a, next_b = self.read(a, step + 1), self.read(b, step + 1)
            for k in cutlass.range_constexpr(cute.size(values_a, mode=[2])):
                cute.autovec_copy(shared_a[None, None, k, stage], values_a[None, None, k])
                cute.autovec_copy(shared_b[None, None, k, stage], values_b[None, None, k])
                cute.gemm(mma, of_block, values_a[None, None, k], values_b[None, None, k], of_block)
            if step % self.block == self.block - 1:
                sums.store(sums.load() + of_block.load())
                of_block.fill(0.0)
        sums.store(sums.load() + of_block.load())

    @cute.jit
    def read(self, operand, step: Int32):
        """The elements that this thread copies to shared memory for a step. Those beyond the last of k are zero."""
        rows, depth = operand.matrix.shape
        values = cute.make_rmem_tensor(self.tiling.k * cute.size(operand.shared, mode=[0]) // THREADS, Float32)
        for i in cutlass.range_constexpr(cute.size(values)):
            row = cutlass.min(operand.row + operand.first[0] + i * operand.apart[0], rows - 1)
            k = step * self.tiling.k + operand.first[1] + i * operand.apart[1]
            value = operand.matrix[row, cutlass.min(k, depth - 1)]
            values[i] = value if k < depth else Float32(0.0)
        return values.load()

    @cute.jit
    def put(self, operand, values, stage: Int32):
        """Write what was read to shared memory, rounded to TF32 if that is what is multiplied."""
        elements = cute.make_rmem_tensor(values.shape, Float32)
        elements.store(values)
        if cutlass.const_expr(self.operand is TFloat32):
            bits = cute.recast_tensor(elements, Int32)
            for i in cutlass.range_constexpr(cute.size(elements)):
                bits[i] = Int32(cute.arch.cvt_f32_tf32(elements[i]))
        shared = cute.recast_tensor(operand.shared, Float32)
        for i in cutlass.range_constexpr(cute.size(elements)):
            row, k = operand.first[0] + i * operand.apart[0], operand.first[1] + i * operand.apart[1]
            shared[row, k, stage] = elements[i]


class Operand(NamedTuple):
    """``a`` or ``b``, on its way to shared memory: a thread takes elements that are ``apart``, from ``first`` on."""

    matrix: cute.Tensor
    shared: cute.Tensor
    row: Int32  # of the matrix, where the tile starts
    first: tuple[Int32, Int32]  # row and k, within a tile
    apart: tuple[Int32, Int32]


def make_operand(matrix: cute.Tensor, shared: cute.Tensor, row: Int32, thread: Int32) -> Operand:
    """Neighbouring threads read 8 neighbours along k, which is a sector of memory; or else all rows of a tile."""
    rows, depth, _ = shared.shape
    along_k = matrix.stride[1] == 1
    lane, of_warp = thread % 32, thread // 32
    pairs = (
        (lane // 8 + of_warp // 2 * 4, thread % rows),
        (lane % 8 + of_warp % 2 * 8, thread // rows),
        (Int32(THREADS // depth), Int32(0)),
        (Int32(0), Int32(THREADS // rows)),
    )
    row_first, k_first, rows_apart, k_apart = (choose(along_k, *pair) for pair in pairs)
    return Operand(matrix, shared, row, (row_first, k_first), (rows_apart, k_apart))


def choose(condition: Boolean, one: Int32, other: Int32) -> Int32:
    return Int32(cutlass.select_(condition, one, other))
