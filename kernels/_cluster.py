"""Sums over ``k`` that the blocks of a cluster cut among them."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

CHUNK = 4  # floats in the widest access


def places_of_parts(own: int, split: int, threads: int, groups: int) -> cute.Layout:
    """Where a thread finds the ``own`` sums of each part: chunks of all threads of a warp group lie side by side."""
    return cute.make_layout((CHUNK, own // CHUNK, split), stride=(1, CHUNK * threads, groups * own * threads))


@cute.jit
def add_parts(
    sums: cute.Tensor,
    storage: cute.Pointer,
    places: cute.Layout,
    part: Int32,
    owners: cutlass.Constexpr,
    blocks: cutlass.Constexpr,
    block_rows: cutlass.Constexpr,
    own_row: Int32,
    rows: Int32,
) -> cute.Tensor:
    """The complete sums of the columns that this block owns, from the parts that all blocks of the cluster have.

    Each thread exchanges sums with the threads that have the same place in the other blocks, so that their order in
    registers does not matter. They are added in the order of the parts. This is slow, so warps skip the rows that the
    output does not have: it has ``rows``, and the sums of this thread are of ``blocks`` of rows from ``own_row`` on.
    """
    split, own = cute.size(places, mode=[2]), cute.size(places, mode=[1]) * CHUNK
    of_block = own // blocks // CHUNK
    values = cute.make_rmem_tensor(CHUNK, Float32)
    for block in cutlass.range_constexpr(blocks):
        if block * block_rows + own_row < rows:
            for owner in cutlass.range_constexpr(owners):
                target = cute.make_tensor(cute.arch.map_dsmem_ptr(storage, Int32(owner)), places)
                for i in cutlass.range_constexpr(of_block):
                    for v in cutlass.range_constexpr(CHUNK):
                        values[v] = sums[((block * owners + owner) * of_block + i) * CHUNK + v]
                    cute.autovec_copy(values, target[None, block * of_block + i, part])
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    source = cute.make_tensor(storage, places)
    added = cute.make_rmem_tensor(own, Float32)
    added.fill(0.0)
    for block in cutlass.range_constexpr(blocks):
        if block * block_rows + own_row < rows:
            for sender in cutlass.range_constexpr(split):
                for i in cutlass.range_constexpr(of_block):
                    cute.autovec_copy(source[None, block * of_block + i, sender], values)
                    for v in cutlass.range_constexpr(CHUNK):
                        added[(block * of_block + i) * CHUNK + v] += values[v]
    return added
