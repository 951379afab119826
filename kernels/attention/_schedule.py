"""How the blocks of a launch share sequences of different lengths, which only the device knows.

A *unit* is one sequence, one head of the cache, and one tile of query rows. The tokens of a unit are cut into *tiles*. All
tiles of all units stand in one line: sequence by sequence, then unit by unit. Each block takes an equal run of that line,
so every block has the same work, whatever the lengths are, and the number of blocks depends on the device alone. That is
what lets one captured CUDA graph serve all lengths.

A run may begin or end in the middle of a unit. So a block leaves at most two *parts* of units behind: the one that its
run begins with, in slot ``2 * block``, and the one that it ends with, in slot ``2 * block + 1``. Another kernel merges
them: see ``_merge``.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from .._device import WARP
from ..rows._rows import add


class Schedule(NamedTuple):
    """Blocks below ``extra`` take ``base + 1`` tiles, the others ``base``."""

    base: Int32
    extra: Int32

    def first(self, block: Int32) -> Int32:
        """The first tile of a block."""
        return block * self.base + cutlass.min(block, self.extra)

    @cute.jit
    def owner(self, tile: Int32) -> Int32:
        """The block that takes a tile."""
        longer = self.extra * (self.base + 1)
        block = self.extra + (tile - longer) // cutlass.max(self.base, 1)
        if tile < longer:
            block = tile // (self.base + 1)
        return block


class Sequences(NamedTuple):
    """Lengths on the device, and how they are cut. Warps read them together, 32 at a time."""

    lengths: cute.Tensor
    capacity: Int32  # tokens that the cache has room for; a length above it is taken as this
    tile: int  # tokens
    units: Int32  # of a sequence

    def count(self) -> Int32:
        return cute.size(self.lengths)

    def length(self, sequence: Int32) -> Int32:
        return cutlass.max(cutlass.min(self.lengths[sequence], self.capacity), 0)

    def tiles(self, sequence: Int32) -> Int32:
        """Tiles of each unit of a sequence."""
        return (self.length(sequence) + self.tile - 1) // self.tile

    @cute.jit
    def own_tiles(self, sequence: Int32) -> Int32:
        """The same, or 0 for a sequence that does not exist."""
        count = self.count()
        tiles = self.tiles(cutlass.min(sequence, count - 1))
        return tiles if sequence < count else Int32(0)

    def rounds(self) -> Int32:
        return cute.ceil_div(self.count(), WARP)

    @cute.jit
    def schedule(self, blocks: Int32) -> Schedule:
        """How so many blocks share all tiles."""
        total = self.before(self.count()) * self.units
        return Schedule(total // blocks, total % blocks)

    @cute.jit
    def before(self, sequence: Int32) -> Int32:
        """Tiles of one unit of each sequence ahead of this one, added up."""
        lane = cute.arch.lane_idx()
        total = Int32(0)
        for i in cutlass.range(self.rounds()):
            tiles = self.own_tiles(i * WARP + lane)
            total += tiles if i * WARP + lane < sequence else Int32(0)
        return cute.arch.warp_reduction(total, add)

    @cute.jit
    def find(self, tile: Int32) -> tuple[Int32, Int32]:
        """The sequence that a tile belongs to, and what :meth:`before` says of that sequence.

        All units of a sequence have the same tiles, so the sums over one unit of each sequence are enough: those that are
        at most ``tile // units`` belong to sequences that end before this tile.
        """
        lane = cute.arch.lane_idx()
        bound = tile // self.units
        ahead, sequence, before = Int32(0), Int32(0), Int32(0)
        for i in cutlass.range(self.rounds()):
            total = self.own_tiles(i * WARP + lane)
            for step in cutlass.range_constexpr(5):
                other = cute.arch.shuffle_sync_up(total, 1 << step, mask_and_clamp=0)
                total += other if lane >= 1 << step else Int32(0)
            total += ahead
            if total <= bound and i * WARP + lane < self.count():
                sequence += 1
                before = cutlass.max(before, total)
            ahead = cute.arch.shuffle_sync(total, WARP - 1)
        return cute.arch.warp_reduction(sequence, add), cute.arch.warp_reduction(before, cutlass.max)
