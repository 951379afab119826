"""Tiles of 16-bit elements on their way to mma.sync: cp.async into swizzled shared memory, ldmatrix into registers."""

from __future__ import annotations

from typing import NamedTuple

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import cpasync, warp
from cutlass.utils import LayoutEnum

MMA = (16, 8, 16)  # m, n, k of the instruction
ELEMENT_BYTES = 2
CHUNK = 8  # elements: 16 bytes, what a thread copies at once
LINE = 64  # elements: 128 bytes of shared memory, all banks
SWIZZLED = 8 * LINE * ELEMENT_BYTES  # bytes after which the pattern of a swizzled layout repeats


def tiled_mma(dtype, warps: tuple[int, int] = (1, 1)) -> cute.TiledMma:
    """A product of ``warps`` warps along m and n. Each has two instructions side by side along n: one ldmatrix serves both."""
    along_m, along_n = warps
    return cute.make_tiled_mma(
        warp.MmaF16BF16Op(dtype, Float32, MMA),
        cute.make_layout((along_m, along_n, 1)),
        permutation_mnk=(along_m * MMA[0], along_n * MMA[1] * 2, MMA[2]),
    )


class Fragment(NamedTuple):
    """The registers of a thread for one stage of an operand, in the layout of the instruction."""

    values: cute.Tensor
    matrices: cute.TiledCopy
    source: cute.Tensor
    target: cute.Tensor


def make_fragment(values: cute.Tensor, matrices: cute.TiledCopy, shared: cute.Tensor, thread) -> Fragment:
    own = matrices.get_slice(thread)
    return Fragment(values, matrices, own.partition_S(shared), own.retile(values))


def left_fragment(mma: cute.TiledMma, shared: cute.Tensor, transposed: bool, thread) -> Fragment:
    """The registers for the left operand, from stages of ``shared``; ``transposed`` if its columns are lines there."""
    matrices = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transposed, 4), shared.element_type)
    registers = mma.make_fragment_A(mma.get_slice(thread).partition_A(shared[None, None, 0]))
    return make_fragment(registers, cute.make_tiled_copy_A(matrices, mma), shared, thread)


def right_fragment(mma: cute.TiledMma, shared: cute.Tensor, transposed: bool, thread) -> Fragment:
    """The same for the right operand."""
    matrices = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transposed, 4), shared.element_type)
    registers = mma.make_fragment_B(mma.get_slice(thread).partition_B(shared[None, None, 0]))
    return make_fragment(registers, cute.make_tiled_copy_B(matrices, mma), shared, thread)


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


def past_l1() -> cpasync.CopyG2SOp:
    """cp.async that bypasses the L1 cache."""
    return cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL)


def chunk_atom(operation, dtype) -> cute.CopyAtom:
    """A copy of 16 bytes."""
    return cute.make_copy_atom(operation, dtype, num_bits_per_copy=CHUNK * ELEMENT_BYTES * 8)


def chunk_copy(
    operation, dtype, major: LayoutEnum, threads: int, line: int = LINE, chunk: int = CHUNK
) -> cute.TiledCopy:
    """Neighbouring threads copy a line of 64 elements, or of half as many, one chunk of 16 bytes each."""
    line_chunks = line // chunk
    atom = chunk_atom(operation, dtype)
    if major == LayoutEnum.ROW_MAJOR:
        order, values = cute.make_layout((threads // line_chunks, line_chunks), stride=(line_chunks, 1)), (1, chunk)
    else:
        order, values = cute.make_layout((line_chunks, threads // line_chunks)), (chunk, 1)
    return cute.make_tiled_copy_tv(atom, order, cute.make_layout(values))


def copy_chunk(atom: cute.CopyAtom, row: cute.Tensor, chunk: Int32, target: cute.Tensor) -> None:
    """Start to copy a chunk of a row of global memory. Callers know that the row is aligned."""
    source = cute.local_tile(row, (CHUNK,), (chunk,))
    cute.copy(atom, cute.make_tensor(source.iterator.align(CHUNK * ELEMENT_BYTES), target.layout), target)
