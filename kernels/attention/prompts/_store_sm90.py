"""The epilogue of attention and of its gradients on sm_90a: sums of a tile go through shared memory, so that TMA stores whole lines.

It is guaranteed that a store sees what all threads of its warp group have written, and that rows past the end of a sequence
are left out. The caller sees to the rest: nobody reads the memory any more when sums come, and nobody writes to it, nor does
the block end, before ``cp_async_bulk_wait_group`` has said that the stores have read it.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..._device import WARP
from ...sm90.hardware import WGMMA_ROWS, Barriers
from .._softmax import round_to
from ._producer_sm90 import of_head, partition


class Place(NamedTuple):
    """Which rows of a tile, and which part of their columns, a consumer warp group has."""

    group: Int32
    thread: Int32
    band: Int32
    part: Int32 | int
    bands: int  # of the tile


@cute.jit
def store_rows(place: Place, barriers: Barriers, sums, mma, shared, operand, head: tuple, tile):
    """Round sums of 64 rows, and store them through ``shared`` as a part of tile number ``tile``.

    ``head`` says where a head of a sequence is: see ``of_head``.
    """
    matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), shared.element_type)
    copy = cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, mma))
    mine = copy.get_slice(place.thread)
    target = mine.partition_D(shared)
    rounded = cute.make_rmem_tensor(cute.shape(mine.partition_S(shared))[:3], shared.element_type)
    size = cute.size(rounded)
    slices = cute.size(sums) // size
    first = place.part * slices
    for s in cutlass.range_constexpr(slices):
        round_to(rounded, cute.make_tensor(sums.iterator + s * size, cute.make_layout(size)))
        cute.copy(copy, rounded, target[None, None, None, (first + s) * place.bands + place.band])
    cute.arch.fence_proxy("async.shared", space="cta")  # TMA reads what threads have written
    barriers.together(place.group).arrive_and_wait()  # all of the warp group have written
    if cute.arch.make_warp_uniform(place.thread // WARP) == 0:
        own = cute.local_tile(of_head(operand, *head), (WGMMA_ROWS, size * 2), (None, None))
        stored, to = partition(operand.atom, shared, own)
        for s in cutlass.range_constexpr(slices):
            source = stored[None, (first + s) * place.bands + place.band]
            cute.copy(operand.atom, source, to[None, tile * place.bands + place.band, first + s])
        cute.arch.cp_async_bulk_commit_group()
