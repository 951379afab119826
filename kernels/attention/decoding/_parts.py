"""Parts of units, and how a block merges them: see ``_merge``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..._device import WARP, fetch, store
from .._softmax import MINUS_INFINITY

MERGE_WARPS = 8  # of a block that merges
BAND, BLOCK_COLUMNS = 16, 8  # rows and columns of a block of accumulators
SHARERS = 4  # lanes that have accumulators of the same rows


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
    meeting: Int32  # see ``Schedule``

    def parts(self) -> Int32:
        return self.latest - self.earliest + 1

    def helpers(self) -> Int32:
        """Runs that begin in the unit."""
        return self.parts() - self.late

    def meets(self) -> cutlass.Boolean:
        """Whether one run ends with the unit and another begins with it, and both merge it. See ``_meet``."""
        return (self.parts() == 2) & (self.late == 1) & (self.meeting != 0)

    @cute.jit
    def slot(self, run: Int32) -> Int32:
        """Where a run left its part."""
        return 2 * (run * self.lanes + self.lane) + (self.late if run == self.earliest else Int32(0))


CUT_WORDS = len(Cut._fields)


@dataclass(frozen=True)
class Merger:
    """A block that helps to merge a unit: it takes item ``helper``, and then every ``helpers``-th one.

    Parts lie row by row, and a lane has columns of one row of an item.
    """

    cut: Cut
    sums: cute.Tensor
    scalars: cute.Tensor
    out: cute.Tensor
    storage: cute.Tensor  # by column and warp
    top: Int32  # row of the tile
    head: int | Int32  # of the cache: 0 if it has no others
    heads: Int32  # of queries, that share a head of the cache
    items: Int32
    helper: Int32
    helpers: Int32
    scale: Float32  # of values
    rows: Int32  # of the tile

    lane_rows = 1  # of which a lane has columns of an item

    @property
    def columns(self) -> int:
        """Of an item."""
        return cute.size(self.storage, mode=[0]) - 4 * WARP

    @property
    def size(self) -> int:
        """Columns that a lane has."""
        return self.columns // WARP

    @property
    def each(self) -> int:
        """Columns of each of its rows."""
        return self.size // self.lane_rows

    @property
    def slices(self) -> int:
        return self.out.shape[3] // self.columns

    def place(self, item: Int32, r: int) -> tuple[Int32, Int32]:
        """The row ``r`` of which this lane has columns of an item, and which chunk of it they are."""
        return item // self.slices, item % self.slices * WARP + cute.arch.lane_idx()

    def fetch(self, slot: Int32, item: Int32) -> cute.Tensor:
        """This lane's columns of an item of a part."""
        chunk = item % self.slices * WARP + cute.arch.lane_idx()
        return fetch(self.sums[slot, item // self.slices, None], chunk, self.size)

    @cute.jit
    def alone(self, count: cutlass.Constexpr, batch: cutlass.Constexpr):
        """Each warp merges ``count`` items at a time, ``batch`` parts of each at once."""
        warp = cute.arch.thread_idx()[0] // WARP
        step = self.helpers * MERGE_WARPS
        for first in cutlass.range(self.helper * MERGE_WARPS + warp, self.items, count * step, unroll=1):
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
        each = self.each
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
        places = [cutlass.min(item, self.items - 1) for item in items]
        rows = [
            [cutlass.min(self.place(place, r)[0], self.rows - 1) for r in range(self.lane_rows)] for place in places
        ]
        tops, totals = ([cute.make_rmem_tensor(self.lane_rows, Float32) for _ in items] for _ in range(2))
        values = [cute.make_rmem_tensor(self.size, Float32) for _ in items]
        for i in cutlass.range_constexpr(len(items)):
            tops[i].fill(MINUS_INFINITY)
            totals[i].fill(0.0)
            values[i].fill(0.0)
        for start in cutlass.range(self.cut.earliest + first, self.cut.latest + 1, batch * step, unroll=1):
            # Past the last part, it is read once more, without a weight.
            runs = [start + j * step for j in range(batch)]
            slots = [self.cut.slot(cutlass.min(run, self.cut.latest)) for run in runs]
            sums = [[self.fetch(slot, place) for slot in slots] for place in places]
            found = [self.find(own_rows, runs, slots, step) for own_rows in rows]
            for i in cutlass.range_constexpr(len(items)):
                for r in cutlass.range_constexpr(self.lane_rows):
                    higher, before, total, weights = self.weigh(tops[i][r], found[i][r])
                    tops[i][r], totals[i][r] = higher, totals[i][r] * before + total
                    for c in cutlass.range_constexpr(r * self.each, (r + 1) * self.each):
                        value = values[i][c] * before
                        for j in cutlass.range_constexpr(batch):
                            value += weights[j] * sums[i][j][c]
                        values[i][c] = value
        return [(tops[i], totals[i], values[i]) for i in range(len(items))]

    @cute.jit
    def find(self, rows, runs, slots, step: cutlass.Constexpr):
        """By row: the largest scores of the parts, and their sums of weights."""
        found = [[fetch(self.scalars[slot, row, None], 0, 2) for slot in slots] for row in rows]
        return [
            [
                (two[0] if run <= self.cut.latest else Float32(MINUS_INFINITY), two[1])
                for run, two in zip(runs, own, strict=True)
            ]
            for own in found
        ]

    @cute.jit
    def weigh(self, top, found):
        """The largest score so far, what the sums so far are multiplied by, the sum of weights, and a weight for each part."""
        higher = top
        for offset, _ in found:
            higher = cute.arch.fmax(higher, offset)
        finite = higher if higher > MINUS_INFINITY else Float32(0)
        weights = [cute.math.exp2(offset - finite, fastmath=True) for offset, _ in found]
        total = Float32(0)
        for weight, (_, own) in zip(weights, found, strict=True):
            total += weight * own
        return higher, cute.math.exp2(top - finite, fastmath=True), total, weights

    @cute.jit
    def write(self, item, totals, values):
        """Write this lane's columns of an item to the output."""
        for r in cutlass.range_constexpr(self.lane_rows):
            within, chunk = self.place(item, r)
            if within < self.rows:
                own = cute.make_rmem_tensor(self.each, Float32)
                for c in cutlass.range_constexpr(self.each):
                    own[c] = values[r * self.each + c]
                total = totals[r]
                factor = cute.arch.rcp_approx(total) * self.scale if total > 0.0 else Float32(0)
                store(own.load() * factor, self.row_of_output(self.top + within), chunk, 2**30, self.each)

    @cute.jit
    def row_of_output(self, row):
        sequence, token = self.cut.sequence, Int32(0)
        if cutlass.const_expr(isinstance(self.head, int)):  # rows of all tokens follow each other
            return self.out[sequence, 0, row, None]
        if self.out.shape[1] > 1:
            token = row // self.heads
            row -= token * self.heads
        return self.out[sequence, token, self.head * self.heads + row, None]


class FragmentMerger(Merger):
    """For parts that are *fragments*: accumulators of a band of 16 rows and a block of 8 columns, as the threads of a warp have them.

    So warps write and read them without a gap, and a lane has two columns of two rows of an item. Four lanes have columns of
    the same rows. Each of them looks at one of four parts, and tells the others its weight: a multiprocessor that
    executes code for the first time waits for it longer than for these parts, so there is little of it.
    """

    lane_rows = 2

    def place(self, item: Int32, r: int) -> tuple[Int32, Int32]:
        lane, blocks = cute.arch.lane_idx(), self.out.shape[3] // BLOCK_COLUMNS
        return item // blocks * BAND + lane // 4 + BAND // 2 * r, item % blocks * 4 + lane % 4

    def fetch(self, slot: Int32, item: Int32) -> cute.Tensor:
        return fetch(self.sums[slot, None], item * WARP + cute.arch.lane_idx(), self.size)

    @cute.jit
    def find(self, rows, runs, slots, step: cutlass.Constexpr):
        """By row: what this lane has found of its part."""
        run = runs[0] + cute.arch.lane_idx() % SHARERS * step
        slot = self.cut.slot(cutlass.min(run, self.cut.latest))
        found = [fetch(self.scalars[slot, row, None], 0, 2) for row in rows]
        return [(two[0] if run <= self.cut.latest else Float32(MINUS_INFINITY), two[1]) for two in found]

    @cute.jit
    def weigh(self, top, found):
        offset, own = found
        higher = cute.arch.fmax(top, cute.arch.warp_reduction(offset, cute.arch.fmax, threads_in_group=SHARERS))
        finite = higher if higher > MINUS_INFINITY else Float32(0)
        weight = cute.math.exp2(offset - finite, fastmath=True)
        total = cute.arch.warp_reduction(weight * own, lambda a, b: a + b, threads_in_group=SHARERS)
        first = cute.arch.lane_idx() // SHARERS * SHARERS
        weights = [cute.arch.shuffle_sync(weight, first + j) for j in range(SHARERS)]
        return higher, cute.math.exp2(top - finite, fastmath=True), total, weights
