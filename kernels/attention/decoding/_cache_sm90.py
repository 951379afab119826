"""Attention against a cache on sm_90a: what wide groups of heads and latent vectors share.

A block takes a run of tiles (see ``_schedule``). One producer warp copies tiles of the cache by TMA. Two consumer warp
groups multiply. Tokens past the end of a sequence arrive with its last tile: their scores are masked, and their values are
overwritten with zeros, because a weight of 0 does not remove a NaN.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync

import aot

from ..._device import WARP
from ..._versions import SmemAllocator
from ...sm90.hardware import CONSUMERS, WARP_GROUP, Barriers
from ...sm90.pipeline import init_barriers
from .._pages import find_token
from ._merge import Call, Merging

LINE = 64  # columns of 128 bytes: what one swizzled copy loads of a token
ELEMENT_BYTES = 2
CHUNK = 8  # elements of 16 bytes
MAX_BLOCKS = 192  # more than the multiprocessors of any sm_90


class CacheDecode(Merging):
    """``box`` tokens are copied at once: they lie in one page."""

    max_blocks = MAX_BLOCKS
    side_by_side = True
    merge_at_once = 2
    merge_shares = 4  # more blocks take longer to start, fewer to merge
    merge_blocks = 4  # so that all start at once
    producers = 1  # warp groups
    registers = 40, 232  # per thread, of producers and of consumers; with fewer, producers spill
    barriers = Barriers()

    def __init__(self, target: aot.Target, dim: int, rows: int, tokens: int, box: int) -> None:
        super().__init__(target, dim, rows, tokens)
        self.box = box

    def launch(self, mmas, operands, q, scale, call: Call, blocks: Int32, stream, whole=False) -> None:
        threads = (self.producers + CONSUMERS) * WARP_GROUP
        self.kernel(mmas, operands, q, scale, call, whole).launch(
            grid=[blocks, 1, 1], block=[threads, 1, 1], min_blocks_per_mp=1, use_pdl=self.early, stream=stream
        )

    @cute.kernel
    def kernel(self, mmas, operands, q, scale, call: Call, whole: cutlass.Boolean):
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // WARP)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:
            for operand in operands:
                cpasync.prefetch_descriptor(operand.atom)
        work = self.allocate(SmemAllocator(), operands)
        init_barriers()
        self.begin()
        blocks, _, _ = cute.arch.grid_dim()
        run = self.run_of_block(call, blocks, whole)
        if whole:
            self.write_empty(run, call.out)
        # Warp groups part here. Each changes its registers as a whole: see ``hardware``.
        if group < self.producers:
            cute.arch.setmaxregister_decrease(self.registers[0])
            self.produce(run, work, operands, call, warp)
        else:
            cute.arch.setmaxregister_increase(self.registers[1])
            parts = self.parts_of(call.parts, blocks, run.group)
            self.consume(run, work, mmas, q, scale, call, parts, group - self.producers)

    def allocate(self, shared: SmemAllocator, operands) -> Any:
        """Shared memory and pipelines."""
        raise NotImplementedError

    def produce(self, run, work, operands, call: Call, warp: Int32) -> None:
        """What a warp of the producer warp group does."""
        raise NotImplementedError

    def consume(self, run, work, mmas, q, scale, call: Call, parts, group: Int32) -> None:
        """What a consumer warp group does."""
        raise NotImplementedError

    def boxes(self, call: Call, piece, index: Int32) -> list[tuple[Int32, Int32]]:
        """Where the boxes of a tile are: page, and box there. Past the end, the last token's box is loaded once more."""
        found = []
        for i in range(self.tile // self.box):
            token = cutlass.min(index * self.tile + i * self.box, piece.length - 1)
            page, place = find_token(call.pages, piece.sequence, token, call.cache.shape[1])
            found.append((page, place // self.box))
        return found


@cute.jit
def clear_tokens(
    tensor, first, lines: cutlass.Constexpr, tokens: cutlass.Constexpr, valid, thread, threads: cutlass.Constexpr
):
    """Zeros for tokens from ``valid`` on, in lines of ``tokens`` tokens from element ``first`` of shared memory on.

    A line is a row of 128 bytes for each token. The swizzle moves nothing out of its row, so the rows are one block of bytes.
    """
    dtype = tensor.element_type
    zeros = cute.make_rmem_tensor(CHUNK, dtype)
    zeros.fill(0)
    memory = cute.recast_ptr(tensor.iterator, dtype=dtype) + first  # without the swizzle of the layout
    for i in cutlass.range(
        thread, (tokens - valid) * (LINE // CHUNK), threads, unroll=1
    ):  # rare: as little code as possible
        for line in cutlass.range_constexpr(lines):
            place = memory + (line * tokens + valid) * LINE + i * CHUNK
            cute.autovec_copy(zeros, cute.make_tensor(place.align(CHUNK * ELEMENT_BYTES), cute.make_layout(CHUNK)))
    cute.arch.fence_proxy("async.shared", space="cta")  # wgmma reads what threads have written
