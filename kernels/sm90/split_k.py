"""Split-K: the blocks of a cluster sum parts of ``k`` of the same tile, and exchange them through each other's shared memory.

Each block that stores some columns adds up the partial sums of all blocks in the order of their parts, so results do not
depend on timing.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from .hardware import WARP, WARP_GROUP, WARP_ROWS, WGMMA_ROWS
from .tiling import Tiling

CHUNK = 4  # floats in the widest access


def allocate_partials(shared, tiling: Tiling):
    """Memory for partial sums beside the stages, or None if they take that of the stages."""
    if tiling.partial_bytes == 0:
        return None
    return shared.allocate_tensor(Float32, cute.make_layout(tiling.partial_sums), 16)


@cute.jit
def reduce_parts(sums, memory, tiling: cutlass.Constexpr, part, thread, slot, rows):
    """The complete sums of the columns that this block stores. The output has ``rows`` from this warp group's on.

    ``memory`` has the partial sums that this block gets; warp groups that share a tile have a ``slot`` each.
    """
    own = cute.size(sums) // tiling.owners
    # Chunks of all threads of a warp group lie side by side.
    places = cute.make_layout(
        (CHUNK, own // CHUNK, tiling.split_k), stride=(1, CHUNK * WARP_GROUP, tiling.groups * own * WARP_GROUP)
    )
    storage = cute.recast_ptr(memory.iterator, dtype=Float32) + slot * (own * WARP_GROUP) + thread * CHUNK
    storage = storage.align(CHUNK * Float32.width // 8)
    if cutlass.const_expr(not tiling.own_partials):
        # From here on, no block multiplies what was loaded: the stages can be overwritten.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    send_parts(sums, storage, places, part, tiling, thread, rows)
    # All parts have arrived, and are visible: an arrival releases what a thread has written, the wait acquires it. No block
    # writes to another one after this, so each may end when it has stored its columns.
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    return add_parts(storage, places, own, tiling, thread, rows)


@cute.jit
def send_parts(sums, storage, places, part, tiling: cutlass.Constexpr, thread, rows):
    """Write this block's partial sums to the blocks that store them.

    Each thread exchanges sums with the threads that have the same place in the other blocks, so that their order in
    registers does not matter. This is slow, so warps skip the rows that the output does not have.
    """
    count = cute.size(places, mode=[1]) // tiling.parts  # chunks of a block of 64 rows
    values = cute.make_rmem_tensor(CHUNK, Float32)
    for block in cutlass.range_constexpr(tiling.parts):
        if block * WGMMA_ROWS + thread // WARP * WARP_ROWS < rows:
            for owner in cutlass.range_constexpr(tiling.owners):
                target = cute.make_tensor(cute.arch.map_dsmem_ptr(storage, Int32(owner)), places)
                for i in cutlass.range_constexpr(count):
                    for v in cutlass.range_constexpr(CHUNK):
                        values[v] = sums[((block * tiling.owners + owner) * count + i) * CHUNK + v]
                    cute.autovec_copy(values, target[None, block * count + i, part])


@cute.jit
def add_parts(storage, places, own: cutlass.Constexpr, tiling: cutlass.Constexpr, thread, rows) -> cute.Tensor:
    """Add up what all blocks have sent, in the order of the parts."""
    count = cute.size(places, mode=[1]) // tiling.parts
    source = cute.make_tensor(storage, places)
    values = cute.make_rmem_tensor(CHUNK, Float32)
    added = cute.make_rmem_tensor(own, Float32)
    added.fill(0.0)
    for block in cutlass.range_constexpr(tiling.parts):
        if block * WGMMA_ROWS + thread // WARP * WARP_ROWS < rows:
            for sender in cutlass.range_constexpr(tiling.split_k):
                for i in cutlass.range_constexpr(count):
                    cute.autovec_copy(source[None, block * count + i, sender], values)
                    for v in cutlass.range_constexpr(CHUNK):
                        added[(block * count + i) * CHUNK + v] += values[v]
    return added
