"""A cache of f8e4m3 for the products of ``_decode``: a register of 32 bits has four elements and becomes two registers of f16.

The elements of a head then have another order than the instruction expects. Queries are read in that order, and results
are put back into the usual one: see :func:`query_column` and :func:`value_column`.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float8E4M3FN, Float16, Float32, Int32

from ...sm80.tiles import MMA


def normalized(queries: cute.Tensor, scale: Float32, rows: int) -> tuple[cute.Tensor, list[Float32]]:
    """Queries of bf16 as f16, with scales of the scores, by row, that make up for it.

    A power of two brings the largest of a row between 2**14 and 2**15. Then f16, with its three bits more, is exact
    but for elements that are 2**28 times smaller. Their error is 2**39 times smaller than the largest, less than
    that of sums in f32.
    """
    rounded, scales = cute.make_rmem_tensor_like(queries, Float16), []
    blocks = cute.size(queries, mode=[2])
    for i in range(rows):
        row = [((c, i % 2, half), i // 2, block) for c in range(2) for half in range(2) for block in range(blocks)]
        largest = Float32(0)
        for at in row:
            value = Float32(queries[at])
            largest = cute.arch.fmax(largest, cute.arch.fmax(value, -value))
        largest = cute.arch.warp_reduction(largest, cute.arch.fmax, threads_in_group=4)
        exponent = cutlass.max(bits(largest, Float32, Int32) >> 23, 15)  # biased by 127
        for at in row:
            rounded[at] = (Float32(queries[at]) * bits((268 - exponent) << 23, Int32, Float32)).to(Float16)
        scales.append(scale * bits((exponent - 14) << 23, Int32, Float32))
    return rounded, scales


def query_column(column: Int32) -> Int32:
    """Where in a head the element is that meets a column of the first product.

    Of 16 columns, a thread has two neighbours in each half; of a cache of f8e4m3, it has four neighbours.
    """
    within = column % 16
    return column - within + within % 8 // 2 * 4 + within // 8 * 2 + within % 2


def value_column(column: Int32) -> Int32:
    """Where in a head a column of the second product belongs.

    Of 16 elements of a head, eight columns have those at even places, the next those at odd ones.
    """
    within = column % 16
    return column - within + within % 8 * 2 + within // 8


def wide_keys(mma: cute.TiledMma, narrow: cute.Tensor, tokens: int, dim: int) -> cute.Tensor:
    """The four are neighbours in a head: two for each half of an instruction, see :func:`query_column`."""
    wide = cute.make_rmem_tensor(mma.partition_shape_B((tokens, dim)), Float16)
    target, source = registers(wide), registers(widened(narrow))
    rows = tokens // MMA[1]
    for block in range(dim // 2 // MMA[2]):
        for half in range(2):
            for n in range(rows):
                first = cute.crd2idx(((0, half), n, block), narrow.layout)
                for i in range(2):
                    target[i + 2 * n + 2 * rows * (2 * block + half)] = source[first + i]
    return wide


def wide_values(mma: cute.TiledMma, narrow: cute.Tensor, tokens: int, dim: int) -> cute.Tensor:
    """The four are two neighbours in a head, of two tokens. Those of one place in the head go side by side."""
    wide = cute.make_rmem_tensor(mma.partition_shape_B((dim, tokens)), Float16)
    packed = registers(narrow)
    for i in range(cute.size(packed)):
        packed[i] = Int32(cute.arch.prmt(packed[i], 0, 0x3120))
    target, source = registers(wide), registers(widened(narrow))
    columns = dim // MMA[1]
    for block in range(tokens // MMA[2]):
        for half in range(2):
            for n in range(columns // 2):
                first = cute.crd2idx(((0, half), n, block), narrow.layout)
                for i in range(2):
                    target[half + 2 * (2 * n + i) + 2 * columns * block] = source[first + i]
    return wide


def bits(value, source, target):
    """The bits of a value of 32 bits as another type."""
    held = cute.make_rmem_tensor(1, source)
    held[0] = value
    return cute.make_tensor(cute.recast_ptr(held.iterator, dtype=target), cute.make_layout(1))[0]


def registers(values: cute.Tensor) -> cute.Tensor:
    """The registers of 32 bits that hold values, in order."""
    pointer = cute.recast_ptr(values.iterator, dtype=Int32)
    return cute.make_tensor(pointer, cute.make_layout(cute.size(values) // 2))


def widened(narrow: cute.Tensor) -> cute.Tensor:
    """Elements of f8e4m3, two in each value of 16 bits, converted in order."""
    count = 2 * cute.size(narrow)
    pairs = cute.make_tensor(cute.recast_ptr(narrow.iterator, dtype=Float8E4M3FN), cute.make_layout(count))
    wide = cute.make_rmem_tensor(count, Float16)
    wide.store(pairs.load().to(Float16))
    return wide
