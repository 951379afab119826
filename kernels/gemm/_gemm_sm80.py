"""GEMM for sm_80 and for later architectures without code of their own: cp.async, ldmatrix, mma.sync.

A block computes one tile of the output. Copies into shared memory run some stages ahead of the products; within a
stage, loads into registers run one step ahead of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import cpasync, warp
from cutlass.utils import LayoutEnum

import aot

from .._versions import SmemAllocator
from ._gemm import EpilogueGemm, batched, tile_at

MMA = (16, 8, 16)  # m, n, k of the instruction
ELEMENT_BYTES = 2
CHUNK = 8  # elements: 16 bytes, what a thread copies at once
LINE = 64  # elements: 128 bytes of shared memory, all banks


@dataclass(frozen=True)
class Tiling:
    """A block of ``warps`` (along m, along n) computes ``m`` x ``n`` of the output, 64 of ``k`` at a time."""

    m: int
    n: int
    warps: tuple[int, int]
    stages: int
    group: int = 8  # rows of tiles that are computed together: see ``tile_at``

    k = LINE
    chunk = CHUNK

    @property
    def label(self) -> str:
        return f"tile{self.m}x{self.n}"

    @property
    def threads(self) -> int:
        return math.prod(self.warps) * cute.arch.WARP_SIZE

    @property
    def shared_bytes(self) -> int:
        """The memory of the stages. The output reuses it."""
        return max(self.stages * (self.m + self.n) * self.k, self.m * self.n) * ELEMENT_BYTES

    @property
    def multiples(self) -> tuple[int, int, int]:
        """What both m and n are multiples of, then m, then n."""
        return LINE, self.warps[0] * MMA[0], self.warps[1] * MMA[1] * 2

    def validate(self, target: aot.Target) -> None:
        both, rows, columns = self.multiples
        if self.m % both or self.n % both or self.m % rows or self.n % columns or self.threads > target.max_threads:
            raise aot.DeclarationError(
                f"a tile of {self.m} x {self.n} for {self.warps[0]} x {self.warps[1]} warps",
                hint=f"m and n are multiples of {both}, of {rows} and of {columns}",
            )
        if self.stages < 2 or self.shared_bytes > target.shared_memory:
            raise aot.DeclarationError(
                f"{self.stages} stages take {self.shared_bytes} bytes; a block of {target.arch} has {target.shared_memory}",
                hint="two stages or more",
            )


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
            self.kernel(a, b, out, bias, epilogue, self.tiled_mma(), tiles).launch(
                grid=[count, 1, 1], block=[self.tiling.threads, 1, 1], stream=stream
            )

    def tiled_mma(self) -> cute.TiledMma:
        along_m, along_n = self.tiling.warps
        # Two instructions side by side along n, so that one ldmatrix serves both.
        return cute.make_tiled_mma(
            warp.MmaF16BF16Op(self.dtype, Float32, MMA),
            cute.make_layout((along_m, along_n, 1)),
            permutation_mnk=(along_m * MMA[0], along_n * MMA[1] * 2, MMA[2]),
        )

    @cute.kernel
    def kernel(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, mma: cute.TiledMma, tiles
    ):
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        m, n, batch = tile_at(index, tiles, tiling.group)
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


class Operand(NamedTuple):
    """The tiles of ``a`` or ``b`` that a block needs, on their way to shared memory.

    The first step may be incomplete: its tile starts before the matrix. Elements outside along k must be zero. Rows
    outside only produce rows of the output that do not exist, so their values do not matter.
    """

    chunks: cute.TiledCopy
    source: cute.Tensor  # what this thread copies: chunk, along rows, along k, step
    target: cute.Tensor  # and to where: chunk, along rows, along k, stage
    places: cute.Tensor  # where in the matrix that is, of the first step
    inside: cute.Tensor  # whether the row exists


def make_operand(matrix: cute.Tensor, major: LayoutEnum, shared: cute.Tensor, index, thread, tiling: Tiling) -> Operand:
    rows, k = cute.size(shared, mode=[0]), cute.size(shared, mode=[1])
    steps = cute.ceil_div(cute.size(matrix, mode=[1]), k)
    missing = (0, cute.size(matrix, mode=[1]) - steps * k, 0)
    source = cute.domain_offset(missing, cute.local_tile(matrix, (rows, k), (index, None)))
    source = cute.make_tensor(source.iterator.align(CHUNK * ELEMENT_BYTES), source.layout)
    places = cute.local_tile(cute.make_identity_tensor(matrix.shape), (rows, k), (index, None))
    past_l1 = cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL)
    chunks = chunk_copy(past_l1, matrix.element_type, major, tiling.threads, tiling.k, tiling.chunk)
    own = chunks.get_slice(thread)
    source, target = own.partition_S(source), own.partition_D(shared)
    places = own.partition_S(cute.domain_offset(missing, places))[None, None, None, 0]
    _, along_rows, along_k = places.shape
    inside = cute.make_rmem_tensor(cute.make_layout((1, along_rows, along_k), stride=(0, 1, 0)), Boolean)
    for i in range(along_rows):
        inside[0, i, 0] = places[(0, 0), i, 0][0] < cute.size(matrix, mode=[0])
    return Operand(chunks, source, target, places, inside)


@cute.jit
def copy_first(operand: Operand):
    for k in cutlass.range_constexpr(cute.size(operand.places, mode=[2])):
        if operand.places[(0, 0), 0, k][1] >= 0:
            source, target = operand.source[None, None, k, 0], operand.target[None, None, k, 0]
            cute.copy(operand.chunks, source, target, pred=operand.inside[None, None, k])


@cute.jit
def copy_step(a: Operand, b: Operand, step: Int32, stage: Int32):
    if step < cute.size(a.source, mode=[3]):
        for operand in (a, b):
            source, target = operand.source[None, None, None, step], operand.target[None, None, None, stage]
            cute.copy(operand.chunks, source, target, pred=operand.inside)
    cute.arch.cp_async_commit_group()  # commit even an empty group, because waiting counts groups


class Fragment(NamedTuple):
    """The registers of a thread for one stage of an operand, in the layout of the instruction."""

    values: cute.Tensor
    matrices: cute.TiledCopy
    source: cute.Tensor
    target: cute.Tensor


def make_fragment(values: cute.Tensor, matrices: cute.TiledCopy, shared: cute.Tensor, thread) -> Fragment:
    own = matrices.get_slice(thread)
    return Fragment(values, matrices, own.partition_S(shared), own.retile(values))


def load(fragment: Fragment, block: int, stage: Int32) -> None:
    source, target = fragment.source[None, None, block, stage], fragment.target[None, None, block]
    cute.copy(fragment.matrices, source, target)


def lines(major: LayoutEnum, line: int = LINE) -> cute.Layout:
    """Eight lines of shared memory: rows, or columns, of 64 elements, or of half as many."""
    return (
        cute.make_layout((8, line), stride=(line, 1)) if major == LayoutEnum.ROW_MAJOR else cute.make_layout((line, 8))
    )


def swizzled(storage: cute.Pointer, dtype, atom: cute.Layout, shape: tuple[int, ...], line: int = LINE) -> cute.Tensor:
    """A tensor in shared memory with swizzled chunks: neither rows nor columns of 8 chunks have bank conflicts."""
    pointer = cute.recast_ptr(storage, cute.make_swizzle((line // CHUNK).bit_length() - 1, 4, 3), dtype=dtype)
    return cute.make_tensor(pointer, cute.tile_to_shape(atom, shape, tuple(range(len(shape)))))


def chunk_copy(
    operation, dtype, major: LayoutEnum, threads: int, line: int = LINE, chunk: int = CHUNK
) -> cute.TiledCopy:
    """Neighbouring threads copy a line of 64 elements, or of half as many, one chunk of 16 bytes each."""
    across = line // chunk
    atom = cute.make_copy_atom(operation, dtype, num_bits_per_copy=CHUNK * ELEMENT_BYTES * 8)
    if major == LayoutEnum.ROW_MAJOR:
        order, values = cute.make_layout((threads // across, across), stride=(across, 1)), (1, chunk)
    else:
        order, values = cute.make_layout((across, threads // across)), (chunk, 1)
    return cute.make_tiled_copy_tv(atom, order, cute.make_layout(values))
