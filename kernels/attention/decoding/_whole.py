"""Attention of a few new tokens if each block takes a whole unit of ``_decode``: nothing is planned and nothing merged.

Many short sequences are such units. What a block waits for before its first tokens takes as long as these then: so it divides before
the previous kernel has ended, and reads nothing but a length. A multiprocessor also waits for code that it executes for the
first time. Blocks that start while the previous kernel runs have time for that: they execute the loop over tokens once
without any.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

import aot

from ..._versions import SmemAllocator
from ...sm80.tiles import SWIZZLED
from .._schedule import Sequences, divide
from ._decode import Decode, Tiling
from ._merge import Call, Piece, Place, Run, heads_of, scale_of
from ._ring import Ahead, Caches, make_ring


@dataclass(frozen=True)
class WholeRun(Run):
    """A run that is a whole unit."""

    @cute.jit
    def after(self, place: Place, count: Int32) -> Place:
        sequence, unit, index, tiles, length, lead = place
        return Place(sequence, unit, index + count, tiles, length, lead)


class WholeDecode(Decode):
    def __init__(self, tiling: Tiling, target: aot.Target, dim: int, narrow: bool, fits: bool) -> None:
        super().__init__(tiling, target, dim, narrow, fits)
        # Scales of keys would be read before the previous kernel has ended.
        self.warm = self.early and not narrow

    def is_late(self, blocks: Int32, multiprocessors: Int32) -> cutlass.Boolean:
        return blocks * 2 > multiprocessors * self.tiling.blocks

    @cute.kernel
    def kernel(
        self, q: cute.Tensor, v_cache: cute.Tensor, scale: Float32, k_scale, call: Call, mma: cute.TiledMma,
        late: cutlass.Boolean,
    ):  # fmt: skip
        block, _, _ = cute.arch.block_idx()
        storage = SmemAllocator().allocate(self.shared_bytes, byte_alignment=SWIZZLED)
        units = Int32(call.heads * self.row_tiles(call.group))
        sequence = divide(block, units)
        sequences = Sequences(call.lengths, Int32(call.capacity), self.tile, units)
        first = Int32(late) if self.warm else Int32(1)
        for turn in cutlass.range(first, 2, unroll=1):
            length, least = Int32(0), 1 - turn
            if turn > 0:
                self.begin(late)
                length = sequences.length(sequence)
            tiles = (length + self.tile - 1) // self.tile
            place = Place(sequence, block - sequence * units, Int32(0), tiles, length, Int32(0))
            self.take(q, v_cache, scale, k_scale, call, mma, storage, sequences, place, least, late)

    @cute.jit
    def take(self, q, v_cache, scale, k_scale, call, mma, storage, sequences, place, least, late):
        """Attend to a unit, in ``least`` tiles or more. If it has none, the output is zero; but it is not written if ``least`` is."""
        thread, _, _ = cute.arch.thread_idx()
        tokens = Int32(call.out.shape[1])
        heads = heads_of(call.group, tokens)
        run = WholeRun(sequences, None, Int32(0), Int32(0), Int32(0), Int32(0), call.group, tokens, heads)
        row_tiles = self.row_tiles(run.group)
        caches = Caches(call.cache, v_cache, call.pages, row_tiles)
        ring = make_ring(storage, self.dtype, self.tiling, self.width, caches, run, thread)
        ahead = ring.fill(Ahead(place, Int32(0), place.tiles))
        head, row_tile = place.unit // row_tiles, place.unit % row_tiles
        stop = cutlass.max(place.tiles, least)
        piece = Piece(
            place.sequence, place.unit, place.length, Int32(0), stop, Int32(0), cutlass.Boolean(True), Int32(0)
        )
        own_scale = scale * scale_of(k_scale, head)
        _, _, teams = self.attend(q, own_scale, mma, storage, ring, run, piece, Int32(0), ahead, head, row_tile)
        cute.arch.sync_threads()  # all teams have written their sums
        if least == 0:
            if late:
                self.let_next_start()
            first, v_scale = row_tile * self.tiling.rows, scale_of(call.v_scale, head)
            slots = self.parts_of(call.parts, Int32(1), run.group)  # not used
            self.merge_teams(*teams, call.out, slots, Int32(0), run, piece, head, first, v_scale)
