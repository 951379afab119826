"""The scheduler of split-KV: how the blocks of a launch share sequences of different lengths, which only the device knows.

A *unit* is one sequence, one head of the cache, and one tile of query rows. The tokens of a unit are cut into *tiles*. All
tiles of all units stand in one line: sequence by sequence, then unit by unit. Each block takes an equal run of that line,
so every block has the same work, whatever the lengths are, and the number of blocks depends on the device alone. That is
what lets one captured CUDA graph serve all lengths. A unit may have places ahead of its tiles, because a block needs time to
begin with it. If all units have the same tiles, each may have a few more places in
the line, which stay empty, so that runs end where units end. So may units of different lengths if each is a run of its own.

A run may begin or end in the middle of a unit. So a block leaves at most two *parts* of units behind: the one that its
run begins with, in slot ``2 * block``, and the one that it ends with, in slot ``2 * block + 1``. Another kernel merges
them: see ``_merge``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32

from .._device import WARP

UNROLL = 4  # lengths that a lane reads at once
FEW = 1 << 20  # see ``divide_few``
SHORT = 4  # tiles: a unit with fewer is sooner done than merged


def divide(number, divisor) -> Int32:
    """``number // divisor`` of numbers that are not negative.

    There is no instruction for that, and one for numbers with a sign takes twice as many as this. At the beginning of a kernel
    code is slow that no block on the multiprocessor has executed before, and divisions are most of a plan's.
    """
    return Int32(Uint32(number) // Uint32(divisor))


def divide_few(number, divisor) -> Int32:
    """The same for numbers below 2**20, as floats: half more is nearer to the quotient than to the next integer."""
    return Int32((Float32(number) + 0.5) * cute.arch.rcp_approx(Float32(divisor)))


class Tiles(NamedTuple):
    """Tiles that take as long as to merge parts of units. The more units are cut, the longer that takes."""

    few: int  # of few units
    units: int  # that make a tile more
    most: int
    uneven: int = 0  # more, if units cannot be cut into equal parts, so that some runs have pieces of two

    def of(self, units: Int32) -> Int32:
        return cutlass.min(self.few + units // self.units, self.most)


NO_TILES = Tiles(0, 1, 0)


class Schedule(NamedTuple):
    """Blocks below ``extra`` take ``base + 1`` places of the line, the others ``base``, as long as there are places left."""

    base: Int32
    extra: Int32
    total: Int32  # places
    room: Int32  # places of each unit, if all have the same; else 0, and each has as many places as tiles
    merged: cutlass.Boolean  # whether a unit may be cut, or a sequence empty
    ragged: cutlass.Boolean  # whether some of a unit's places may be behind its tiles, though other units fill theirs
    sums: Int32  # see ``Found``
    meeting: cutlass.Boolean  # whether no unit is much longer than a run: then most that are cut have two parts

    def first(self, block: Int32) -> Int32:
        """The first tile of a block."""
        return cutlass.min(block * self.base + cutlass.min(block, self.extra), self.total)

    @cute.jit
    def owner(self, tile: Int32) -> Int32:
        """The block that takes a tile."""
        longer = self.extra * (self.base + 1)
        block = self.extra + divide(tile - longer, cutlass.max(self.base, 1))
        if tile < longer:
            block = divide(tile, self.base + 1)
        return block


class Found(NamedTuple):
    """What a warp has found of the places of one unit of each sequence."""

    sums: Int32  # up to the last sequence that this lane has looked at
    longest: Int32  # of any sequence
    shortest: Int32


@dataclass(frozen=True)
class Sequences:
    """Lengths on the device, and how they are cut. A warp reads them together, and all of its lanes must take part."""

    lengths: cute.Tensor
    capacity: Int32  # tokens that the cache has room for; a length above it is taken as this
    tile: int  # tokens
    units: int | Int32  # of a sequence
    start: int = 0  # places of the line ahead of a unit's tiles: what a piece costs beside its tiles

    @property
    def single(self) -> bool:
        """Whether it is known that a sequence has one unit."""
        return isinstance(self.units, int) and self.units == 1

    def of_units(self, number: Int32) -> Int32:
        """A number of something that each unit has, by sequence."""
        return number if self.single else divide(number, Int32(self.units))

    def count(self) -> Int32:
        return cute.size(self.lengths)

    def length(self, sequence: Int32) -> Int32:
        return cutlass.max(cutlass.min(self.lengths[sequence], self.capacity), 0)

    def tiles(self, sequence: Int32) -> Int32:
        """Tiles of each unit of a sequence."""
        return (self.length(sequence) + self.tile - 1) // self.tile

    @cute.jit
    def places(self, sequence: Int32) -> Int32:
        """Places of each unit in the line: 0 for a sequence that is empty, or does not exist."""
        count = self.count()
        tiles = self.tiles(cutlass.min(sequence, count - 1))
        return tiles + self.start if sequence < count and tiles > 0 else Int32(0)

    def share(self) -> Int32:
        """Sequences that each lane of a warp looks at: neighbours, so that one scan over the lanes is enough."""
        return cute.ceil_div(self.count(), WARP)

    def whole_units(self) -> Schedule:
        """A run for each unit, with room for the longest that there may be. This needs no length."""
        room = cutlass.max(cute.ceil_div(self.capacity, self.tile), 1)
        total = self.count() * self.units * room
        return Schedule(
            room, Int32(0), total, room, cutlass.Boolean(False), cutlass.Boolean(True), Int32(0), cutlass.Boolean(False)
        )

    @cute.jit
    def schedule(
        self,
        blocks: Int32,
        slack: cutlass.Constexpr = 0,
        more: cutlass.Constexpr = 0,
        merging: cutlass.Constexpr = NO_TILES,
        sparing: cutlass.Constexpr = False,
    ) -> Schedule:
        """How ``blocks`` blocks share all tiles.

        If all sequences have the same tiles, a block takes whole units, or an equal part of one unit, provided that the
        longest run becomes longer by at most one tile in ``slack``, and ``more`` tiles. Then no block has parts of two
        units. Whole units may make it longer by what takes as long as to merge parts, see :class:`Tiles`; and if each block
        has at most one, they may have different tiles. So may units that are cut into equal parts, if no run becomes longer
        than where a run may end anywhere: a piece of one unit is sooner done than two pieces of two. ``sparing``: see there.
        """
        found = self.scan()
        total = cute.arch.shuffle_sync(found.sums, WARP - 1) * self.units
        base = divide(total, blocks)
        extra, room, merged, ragged = total - base * blocks, Int32(0), cutlass.Boolean(True), cutlass.Boolean(False)
        if cutlass.const_expr(slack > 0):
            units, tiles = self.count() * self.units, found.longest - self.start
            each, own_room, parts = (
                divide(units + blocks - 1, blocks) * tiles,
                tiles,
                divide_few(blocks, cutlass.min(units, FEW)),
            )
            longest, equal = cutlass.max(base, 1), found.shortest == found.longest
            allowed, possible = longest // slack + more, equal
            most = merging.of(units) + merging.uneven * Int32(parts == 1)
            if each - longest <= most:
                allowed, possible = most, equal or (parts > 0 and found.shortest > 0)
            elif parts > 1 and tiles >= SHORT:
                each = divide(tiles + parts - 1, parts)
                if cutlass.const_expr(sparing):
                    each = self.sparing(each, tiles, units, blocks, equal)
                own_room = divide(tiles + each - 1, each) * each
                possible = equal or (found.shortest > 0 and each <= cutlass.max(base, self.start + 1))
            if tiles > 0 and each - longest <= allowed and possible:
                base, extra, room, merged = each, Int32(0), own_room, cutlass.Boolean(each < tiles)
                total, ragged = units * room, cutlass.Boolean(found.shortest != found.longest)
        if room == 0 and base <= self.start:  # a run has a tile at least
            base, extra = Int32(self.start + 1), Int32(0)
        meeting = room == 0 and found.longest * 4 <= base * 5
        return Schedule(base, extra, total, room, merged, ragged, found.sums, meeting)

    @cute.jit
    def sparing(self, each, tiles, units, blocks, equal) -> Int32:
        """Tiles of a part: one more than ``each`` if these are few, and if this spares two fifths of the blocks for ``equal`` units.

        Blocks that merge can start there. Otherwise they start when the first parts are complete.
        """
        if each < SHORT - 1 and equal:
            parts, fewer = divide(tiles + each - 1, each), divide(tiles + each, each + 1)
            if parts * units * 5 > blocks * 3 and fewer * units * 5 <= blocks * 3:
                each += 1
        return each

    @cute.jit
    def run(self, schedule: Schedule, block: Int32) -> tuple[Int32, Int32]:
        """The first place of a block, and the one after its last. It has none if they would be behind the tiles of a unit."""
        first, end = schedule.first(block), schedule.first(block + 1)
        if schedule.ragged:
            unit = divide(first, schedule.room)
            sequence = cutlass.min(self.of_units(unit), self.count() - 1)
            end = end if first - unit * schedule.room < self.tiles(sequence) else first
        return first, end

    @cute.jit
    def sums(self) -> Int32:
        """Places of one unit of each sequence up to the last one that this lane looks at."""
        lane, share, total = cute.arch.lane_idx(), self.share(), Int32(0)
        for i in cutlass.range(share, unroll=UNROLL):
            total += self.places(lane * share + i)
        return self.over_lanes(total)

    @cute.jit
    def scan(self) -> Found:
        """The same, with the extremes of all sequences."""
        lane, share, count = cute.arch.lane_idx(), self.share(), self.count()
        total, longest, shortest = Int32(0), Int32(0), Int32(2**31 - 1)
        for i in cutlass.range(share, unroll=UNROLL):
            places = self.places(lane * share + i)
            total += places
            longest = cutlass.max(longest, places)
            if lane * share + i < count:
                shortest = cutlass.min(shortest, places)
        sums = self.over_lanes(total)
        return Found(sums, cute.arch.warp_redux_sync(longest, "max"), cute.arch.warp_redux_sync(shortest, "min"))

    @cute.jit
    def over_lanes(self, total: Int32) -> Int32:
        """The totals of this lane and of those before it, added up."""
        lane = cute.arch.lane_idx()
        for step in cutlass.range_constexpr(5):
            other = cute.arch.shuffle_sync_up(total, 1 << step, mask_and_clamp=0)
            total += other if lane >= 1 << step else Int32(0)
        return total

    @cute.jit
    def find(self, tile: Int32, sums: Int32) -> tuple[Int32, Int32]:
        """The sequence that a place belongs to, and the places of one unit of each sequence ahead of it, added up.

        All units of a sequence have the same places, so the ``sums`` over one unit of each sequence are enough: those that are
        at most ``tile // units`` belong to sequences that end before this tile.
        """
        share = self.share()
        bound = self.of_units(tile)
        passed = cute.arch.popc(cute.arch.vote_ballot_sync(sums <= bound))  # lanes whose sequences end before the tile
        sequence, before = passed * share, cute.arch.shuffle_sync(sums, cutlass.max(passed - 1, 0))
        before = before if passed > 0 else Int32(0)
        if share > 1:
            first, total = sequence, before
            for i in cutlass.range(share, unroll=UNROLL):  # those of the lane in which it lies
                total += self.places(first + i)
                if total <= bound:
                    sequence += 1
                    before = total
        return sequence, before
