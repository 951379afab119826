"""Parts of units, and how a block merges them: see ``_merge``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..._device import WARP, fetch, store
from .._softmax import MINUS_INFINITY, inverse

MERGE_WARPS = 8  # of a block that merges
BAND, BLOCK_COLUMNS = 16, 8  # rows and columns of a block of accumulators


class Cut(NamedTuple):
    """A unit that runs ``earliest`` to ``latest`` have parts of. All but the first begin with it, and that one if not ``late``."""

    sequence: Int32
    unit: Int32
    earliest: Int32
    latest: Int32
    late: Int32
    helper: Int32  # which of the runs that begin in the unit this is
    lanes: Int32
    lane: Int32

    def parts(self) -> Int32:
        return self.latest - self.earliest + 1

    def helpers(self) -> Int32:
        """Runs that begin in the unit."""
        return self.parts() - self.late

    def meets(self) -> cutlass.Boolean:
        """Whether one run ends with the unit and another begins with it. See ``_meet``."""
        return (self.parts() == 2) & (self.late == 1)

    @cute.jit
    def slot(self, run: Int32) -> Int32:
        """Where a run left its part."""
        return 2 * (run * self.lanes + self.lane) + (self.late if run == self.earliest else Int32(0))


CUT_WORDS = len(Cut._fields)


@dataclass(frozen=True)
class Merger:
    """A block that helps to merge a unit: it takes item ``helper``, and then every ``helpers``-th one.

    Parts lie row by row, and a lane has columns of one row of an item. Or they are *fragments*: accumulators of a band of 16
    rows and a block of 8 columns, as the threads of a warp have them. So warps write and read them without a gap, and a lane
    has two columns of two rows.
    """

    cut: Cut
    sums: cute.Tensor
    scalars: cute.Tensor
    out: cute.Tensor
    storage: cute.Tensor  # by column and warp
    top: Int32  # row of the tile
    head: Int32  # of the cache
    heads: Int32  # of queries, that share a head of the cache
    items: Int32
    helper: Int32
    helpers: Int32
    scale: Float32  # of values
    rows: Int32  # of the tile

    @property
    def columns(self) -> int:
        """Of an item."""
        return cute.size(self.storage, mode=[0]) - 4 * WARP

    @property
    def size(self) -> int:
        """Columns that a lane has."""
        return self.columns // WARP

    @property
    def slices(self) -> int:
        return self.out.shape[3] // self.columns

    @property
    def fragments(self) -> bool:
        return cute.rank(self.sums) == 2

    @property
    def lane_rows(self) -> int:
        """Rows of which a lane has columns of an item."""
        return 2 if self.fragments else 1

    def place(self, item: Int32, r: int) -> tuple[Int32, Int32]:
        """The row of which this lane has columns of an item, the first or the second one, and which chunk of it they are."""
        lane = cute.arch.lane_idx()
        if self.fragments:
            blocks = self.out.shape[3] // BLOCK_COLUMNS
            return item // blocks * BAND + lane // 4 + BAND // 2 * r, item % blocks * 4 + lane % 4
        return item // self.slices, item % self.slices * WARP + lane

    def fetch(self, slot: Int32, item: Int32) -> cute.Tensor:
        """This lane's columns of an item of a part."""
        lane = cute.arch.lane_idx()
        if self.fragments:
            return fetch(self.sums[slot, None], item * WARP + lane, self.size)
        return fetch(self.sums[slot, item // self.slices, None], item % self.slices * WARP + lane, self.size)

    @cute.jit
    def alone(self, count: cutlass.Constexpr, batch: cutlass.Constexpr):
        """Each warp merges ``count`` items at a time, ``batch`` parts of each at once."""
        warp = cute.arch.thread_idx()[0] // WARP
        step = self.helpers * MERGE_WARPS
        for first in cutlass.range(self.helper * MERGE_WARPS + warp, self.items, count * step):
            items = [first + i * step for i in range(count)]
            merged = self.merge_parts(items, 0, 1, batch)
            for i in cutlass.range_constexpr(count):
                _, totals, values = merged[i]
                if items[i] < self.items:
                    self.write(items[i], totals, values)

    @cute.jit
    def together(self, batch: cutlass.Constexpr):
        """All warps of the block merge an item: each some parts, and the first one what all have found."""
        thread = cute.arch.thread_idx()[0]
        lane, warp = thread % WARP, thread // WARP
        for item in cutlass.range(self.helper, self.items, self.helpers):
            tops, totals, values = self.merge_parts([item], warp, MERGE_WARPS, batch)[0]
            for i in cutlass.range_constexpr(self.size):
                self.storage[lane + WARP * i, warp] = values[i]
            for r in cutlass.range_constexpr(self.lane_rows):
                self.storage[self.columns + 2 * r * WARP + lane, warp] = tops[r]
                self.storage[self.columns + (2 * r + 1) * WARP + lane, warp] = totals[r]
            cute.arch.sync_threads()  # all warps have left what they found
            if warp == 0:
                self.merge_warps(item)
            cute.arch.sync_threads()  # the first warp has read it: that of the next item may replace it

    @cute.jit
    def merge_warps(self, item):
        """Merge what all warps have found of an item, and write it."""
        lane, storage = cute.arch.lane_idx(), self.storage
        values = cute.make_rmem_tensor(self.size, Float32)
        totals = cute.make_rmem_tensor(self.lane_rows, Float32)
        values.fill(0.0)
        each = self.size // self.lane_rows
        for r in cutlass.range_constexpr(self.lane_rows):
            place = self.columns + 2 * r * WARP + lane
            top, total = Float32(MINUS_INFINITY), Float32(0)
            for i in cutlass.range_constexpr(MERGE_WARPS):
                top = cute.arch.fmax(top, storage[place, i])
            finite = top if top > MINUS_INFINITY else Float32(0)
            for i in cutlass.range_constexpr(MERGE_WARPS):
                factor = cute.math.exp2(storage[place, i] - finite, fastmath=True)
                total += factor * storage[place + WARP, i]
                for c in cutlass.range_constexpr(r * each, (r + 1) * each):
                    values[c] = values[c] + factor * storage[lane + WARP * c, i]
            totals[r] = total
        self.write(item, totals, values)

    @cute.jit
    def merge_parts(self, items, first, step: cutlass.Constexpr, batch: cutlass.Constexpr):
        """Parts ``first``, ``first + step``, ... of items: largest score, sum of weights, this lane's columns of each item."""
        cut, last = self.cut, self.items - 1
        places = [cutlass.min(item, last) for item in items]
        rows = [
            [cutlass.min(self.place(place, r)[0], self.rows - 1) for r in range(self.lane_rows)] for place in places
        ]
        count, each = self.lane_rows, self.size // self.lane_rows
        tops, totals = ([cute.make_rmem_tensor(count, Float32) for _ in items] for _ in range(2))
        values = [cute.make_rmem_tensor(self.size, Float32) for _ in items]
        for i in cutlass.range_constexpr(len(items)):
            tops[i].fill(MINUS_INFINITY)
            totals[i].fill(0.0)
            values[i].fill(0.0)
        for start in cutlass.range(cut.earliest + first, cut.latest + 1, batch * step):
            # Past the last part, it is read once more, without a weight.
            runs = [start + j * step for j in range(batch)]
            slots = [cut.slot(cutlass.min(run, cut.latest)) for run in runs]
            sums = [[self.fetch(slot, place) for slot in slots] for place in places]
            found = [[[fetch(self.scalars[slot, row, None], 0, 2) for slot in slots] for row in own] for own in rows]
            for i in cutlass.range_constexpr(len(items)):
                for r in cutlass.range_constexpr(count):
                    largest = [
                        found[i][r][j][0] if runs[j] <= cut.latest else Float32(MINUS_INFINITY) for j in range(batch)
                    ]
                    higher = tops[i][r]
                    for j in cutlass.range_constexpr(batch):
                        higher = cute.arch.fmax(higher, largest[j])
                    finite = higher if higher > MINUS_INFINITY else Float32(0)
                    before = cute.math.exp2(tops[i][r] - finite, fastmath=True)
                    factors = [cute.math.exp2(largest[j] - finite, fastmath=True) for j in range(batch)]
                    total = totals[i][r] * before
                    for j in cutlass.range_constexpr(batch):
                        total += factors[j] * found[i][r][j][1]
                    tops[i][r], totals[i][r] = higher, total
                    for c in cutlass.range_constexpr(r * each, (r + 1) * each):
                        value = values[i][c] * before
                        for j in cutlass.range_constexpr(batch):
                            value += factors[j] * sums[i][j][c]
                        values[i][c] = value
        return [(tops[i], totals[i], values[i]) for i in range(len(items))]

    @cute.jit
    def write(self, item, totals, values):
        """Write this lane's columns of an item to the output."""
        each = self.size // self.lane_rows
        for r in cutlass.range_constexpr(self.lane_rows):
            within, chunk = self.place(item, r)
            row = self.top + within
            if within < self.rows:
                target = self.out[self.cut.sequence, row // self.heads, self.head * self.heads + row % self.heads, None]
                own = cute.make_rmem_tensor(each, Float32)
                for c in cutlass.range_constexpr(each):
                    own[c] = values[r * each + c]
                store(own.load() * (inverse(totals[r]) * self.scale), target, chunk, 2**30, each)
