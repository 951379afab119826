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

from .._device import WARP, add

UNROLL = 8  # lengths that a lane reads at once


class Schedule(NamedTuple):
    """Blocks below ``extra`` take ``base + 1`` tiles, the others ``base``, as long as there are tiles left."""

    base: Int32
    extra: Int32
    total: Int32
    merged: cutlass.Boolean  # whether a unit may be cut, or a sequence empty

    def first(self, block: Int32) -> Int32:
        """The first tile of a block."""
        return cutlass.min(block * self.base + cutlass.min(block, self.extra), self.total)

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

    def share(self) -> Int32:
        """Sequences that each lane of a warp looks at: neighbours, so that one scan over the lanes is enough."""
        return cute.ceil_div(self.count(), WARP)

    @cute.jit
    def schedule(self, blocks: Int32, slack: cutlass.Constexpr = 0, equal_parts: cutlass.Constexpr = False) -> Schedule:
        """How ``blocks`` blocks share all tiles.

        If all sequences have the same length, blocks take whole units, provided that the longest run becomes longer by
        at most one tile in ``slack``. Then nothing is merged. With ``equal_parts``, units are cut into equal parts under
        the same condition. Then no block has parts of two units.
        """
        total = self.total() * self.units
        base, extra, merged = total // blocks, total % blocks, cutlass.Boolean(True)
        if cutlass.const_expr(slack > 0):
            units = self.count() * self.units
            tiles = total // units
            whole = cute.ceil_div(units, blocks) * tiles
            if cutlass.const_expr(equal_parts):
                parts = blocks // units
                if parts > 1 and tiles % parts == 0:
                    whole = tiles // parts
            if (whole - base) * slack <= base and self.equal():
                base, extra, merged = whole, Int32(0), whole % cutlass.max(tiles, 1) > 0 or total == 0
        return Schedule(base, extra, total, merged)

    @cute.jit
    def equal(self) -> cutlass.Boolean:
        """Whether all sequences have as many tiles as the first."""
        first, lane = self.tiles(0), cute.arch.lane_idx()
        others = Int32(0)
        for i in cutlass.range(self.share(), unroll=UNROLL):
            others += Int32(self.tiles(cutlass.min(i * WARP + lane, self.count() - 1)) != first)
        return cute.arch.warp_reduction(others, add) == 0

    @cute.jit
    def lane_total(self) -> Int32:
        """Tiles of one unit of each sequence that this lane looks at, added up."""
        total, share = Int32(0), self.share()
        for i in cutlass.range(share, unroll=UNROLL):
            total += self.own_tiles(cute.arch.lane_idx() * share + i)
        return total

    def total(self) -> Int32:
        """Tiles of one unit of each sequence, added up."""
        return cute.arch.warp_reduction(self.lane_total(), add)

    @cute.jit
    def find(self, tile: Int32) -> tuple[Int32, Int32]:
        """The sequence that a tile belongs to, and the tiles of one unit of each sequence ahead of it, added up.

        All units of a sequence have the same tiles, so the sums over one unit of each sequence are enough: those that are
        at most ``tile // units`` belong to sequences that end before this tile.
        """
        lane, share = cute.arch.lane_idx(), self.share()
        bound = tile // self.units
        total = self.lane_total()
        for step in cutlass.range_constexpr(5):
            other = cute.arch.shuffle_sync_up(total, 1 << step, mask_and_clamp=0)
            total += other if lane >= 1 << step else Int32(0)
        passed = total <= bound  # all sequences of this lane end before the tile
        sequence = cute.arch.warp_reduction(share if passed else Int32(0), add)
        before = cute.arch.warp_reduction(total if passed else Int32(0), cutlass.max)
        first, total = sequence, before
        for i in cutlass.range(share, unroll=UNROLL):  # those of the lane in which it lies
            total += self.own_tiles(first + i)
            if total <= bound:
                sequence += 1
                before = total
        return sequence, before
