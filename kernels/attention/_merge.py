"""Split-KV: what kernels share that split sequences among blocks. Runs of tiles, parts of units, and how parts are merged.

See ``_schedule`` for units, tiles and slots. Tiles of query rows of the same tokens are units of their own, which a block
takes one after the other; or they are *side by side*: as many blocks as there are tiles of rows take the same run, each
with its own rows, and read the same tokens at about the same time.

The merging kernel has a few blocks for each run. They help to merge the unit in whose middle their run begins, together
with those of all other runs that begin in this unit. So a unit that was cut into many parts is merged by as many. They
know it from the lengths, while the parts are still being computed. If no unit is cut, they only have to be over soon, because
the next kernel cannot begin before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

import aot

from .._device import WARP, KernelObject, fetch, launched_early, store
from .._versions import SmemAllocator
from ._schedule import Schedule, Sequences
from ._softmax import MINUS_INFINITY, inverse, mask_scores, write_row

MERGE_WARPS = 8  # of a block that merges
TOGETHER = 8  # more parts than that are shared by the warps of a block
MERGE_COLUMNS = 128  # of a row of the output, that one warp merges
BATCH = 4  # parts that a warp reads at once while it merges


class Call(NamedTuple):
    """What both kernels of a call are given. A cache is pages (or sequences) x tokens x heads x columns."""

    cache: cute.Tensor
    lengths: cute.Tensor
    out: cute.Tensor
    pages: cute.Tensor | None
    v_scale: cute.Tensor | None  # of values, by head of the cache
    parts: cute.Tensor

    @property
    def heads(self):
        """Of the cache."""
        return self.cache.shape[2] if cute.rank(self.cache) == 4 else 1

    @property
    def group(self) -> Int32:
        """Query rows that share a head of the cache."""
        return self.out.shape[1] * (self.out.shape[2] // self.heads)

    @property
    def capacity(self):
        """Tokens that a sequence has room for."""
        return self.cache.shape[1] if self.pages is None else self.pages.shape[1] * self.cache.shape[1]


class Piece(NamedTuple):
    """Tiles of one unit, from ``start`` up to ``stop``."""

    sequence: Int32
    unit: Int32
    length: Int32  # of the sequence, in tokens
    start: Int32
    stop: Int32
    whole: cutlass.Boolean  # whether these are all tiles of the unit


class Place(NamedTuple):
    """A tile in the line of all tiles: the one at ``index`` of a unit that has ``tiles`` of them."""

    sequence: Int32
    unit: Int32
    index: Int32
    tiles: Int32
    length: Int32  # of the sequence, in tokens


class Run(NamedTuple):
    """The tiles of one block, from ``first`` up to ``end``."""

    sequences: Sequences
    schedule: Schedule
    index: Int32
    first: Int32
    end: Int32
    lane: Int32  # which of the blocks that are side by side this is
    group: Int32  # query rows that share a head of the cache
    tokens: Int32  # new ones of a sequence

    def piece(self, tile: Int32) -> Piece:
        """What the run has of the unit that a tile belongs to, from that tile on."""
        return self.piece_at(self.place(tile), tile)

    @cute.jit
    def place(self, tile: Int32) -> Place:
        """Where a tile of the line is. To look for it takes a while: see :meth:`after`."""
        sequence, before = self.sequences.find(tile)
        tiles = self.sequences.tiles(sequence)
        within = tile - before * self.sequences.units
        return Place(sequence, within // tiles, within % tiles, tiles, self.sequences.length(sequence))

    @cute.jit
    def after(self, place: Place, count: Int32) -> Place:
        """The place ``count`` tiles further, at most at the beginning of the next unit."""
        sequence, unit, index, tiles, length = place
        index += count
        if index >= tiles:
            index = Int32(0)
            unit += 1
            if unit == self.sequences.units:
                unit = Int32(0)
                last = self.sequences.count() - 1
                sequence = cutlass.min(sequence + 1, last)
                while sequence < last and self.sequences.length(sequence) == 0:
                    sequence += 1
                tiles = self.sequences.tiles(sequence)
                length = self.sequences.length(sequence)
        return Place(sequence, unit, index, tiles, length)

    @cute.jit
    def piece_at(self, place: Place, tile: Int32) -> Piece:
        """The same, for a tile whose place is known."""
        stop = cutlass.min(place.tiles, place.index + self.end - tile)
        whole = stop - place.index == place.tiles
        return Piece(place.sequence, place.unit, place.length, place.index, stop, whole)

    @cute.jit
    def slot(self, tile: Int32) -> Int32:
        """Where the part of the unit goes that the block has from a tile on: see ``_schedule``."""
        return 2 * cute.arch.block_idx()[0] + (0 if tile == self.first else 1)

    def last_seen(self, piece: Piece, row: Int32) -> Int32:
        """The last token that a row sees, which is its own. Rows past the end count as the last row."""
        token = cutlass.min(row, self.group - 1) // (self.group // self.tokens)
        return piece.length - (self.tokens - token)

    @cute.jit
    def mask(self, scores, piece, start, tokens: cutlass.Constexpr, row):
        """Mask tokens past the end, and tokens that come after a row's own. ``row``: the first of a thread's two."""
        if start + tokens > piece.length - (self.tokens - 1):
            mask_scores(scores, start, lambda r: self.last_seen(piece, row + 8 * r), upper=True)


class Cut(NamedTuple):
    """A unit that runs ``earliest`` to ``latest`` have parts of. All but the first begin with it, and that one if not ``late``."""

    sequence: Int32
    unit: Int32
    earliest: Int32
    latest: Int32
    late: Int32
    helper: Int32  # which of the runs that begin in the middle of the unit this is
    lanes: Int32
    lane: Int32

    @cute.jit
    def slot(self, run: Int32) -> Int32:
        """Where a run left its part."""
        return 2 * (run * self.lanes + self.lane) + (self.late if run == self.earliest else Int32(0))


@dataclass(frozen=True)
class Output:
    """Where rows of a piece go: to the output, or to a slot of the workspace if the block has not seen all tokens."""

    out: cute.Tensor
    parts: tuple[cute.Tensor, cute.Tensor]  # see ``Merging.parts_of``
    run: Run
    piece: Piece
    slot: Int32
    top: Int32  # row of the tile
    head: Int32  # of the cache
    scale: Float32  # of values

    @cute.jit
    def write_row(self, sums, r: cutlass.Constexpr, within, column, offset, total, scalars):
        """Write a thread's accumulators of a row, from ``column`` on, in units of the columns that ``sums`` has.

        If ``scalars``, the thread also writes what a part is merged by.
        """
        row, heads, columns = self.top + within, self.run.group // self.run.tokens, cute.size(sums) // 4 * 8
        part_sums, part_scalars = self.parts
        if row < self.run.group:
            if self.piece.whole:
                target = self.out[self.piece.sequence, row // heads, self.head * heads + row % heads, None]
                write_row(sums, r, inverse(total) * self.scale, cute.local_tile(target, (columns,), (column,)))
            else:
                target = part_sums[self.slot, within, None]
                write_row(sums, r, Float32(1), cute.local_tile(target, (columns,), (column,)))
                if scalars:
                    part_scalars[self.slot, within, 0] = offset
                    part_scalars[self.slot, within, 1] = total


class Merging(KernelObject):
    """``dim`` columns and ``rows`` rows of a tile of the output, ``tile`` tokens of the cache.

    The workspace has room for the parts of ``max_blocks`` blocks.
    """

    max_blocks: int
    side_by_side = False  # tiles of query rows: see above
    slack = 0  # see ``Sequences.schedule``
    equal_parts = False  # likewise
    merge_items = 2  # rows, or parts of rows, that each warp of a block that merges has
    merge_shares = 0  # blocks of each run that merge, at most; 0: as many as there are items for

    def __init__(self, target: aot.Target, dim: int, rows: int, tile: int) -> None:
        self.dim, self.rows, self.tile = dim, rows, tile
        self.early = launched_early(target)
        self.columns = min(dim, MERGE_COLUMNS)
        self.size = self.columns // WARP  # that a lane has

    def lanes(self, group: Int32) -> Int32:
        """Blocks that are side by side."""
        return cute.ceil_div(group, self.rows) if self.side_by_side else Int32(1)

    def blocks(self, call: Call, most: Int32) -> Int32:
        """Blocks of a launch: a whole number of runs, with at most ``most`` blocks if there is a run then."""
        lanes = self.lanes(call.group)
        return cutlass.max(cutlass.min(most, self.max_blocks) // lanes, 1) * lanes

    def row_tiles(self, group: Int32):
        """Units that share a head of the cache."""
        return 1 if self.side_by_side else cute.ceil_div(group, self.rows)

    def run_of_block(self, call: Call, blocks: Int32) -> Run:
        """The run of a block of a launch of ``blocks``."""
        block, _, _ = cute.arch.block_idx()
        group = call.group
        lanes = self.lanes(group)
        units = Int32(call.heads * self.row_tiles(group))
        sequences = Sequences(call.lengths, Int32(call.capacity), self.tile, units)
        schedule = sequences.schedule(blocks // lanes, self.slack, self.equal_parts)
        index = block // lanes
        first, end = schedule.first(index), schedule.first(index + 1)
        return Run(sequences, schedule, index, first, end, block % lanes, group, Int32(call.out.shape[1]))

    def parts_of(self, parts: cute.Tensor, blocks: Int32, group: Int32) -> tuple[cute.Tensor, cute.Tensor]:
        """The workspace: sums by slot, row and column; by slot and row, the largest score and the sum of weights."""
        rows = cutlass.min(group, self.rows)
        sums = cute.make_layout((2 * blocks, rows, self.dim), stride=(rows * self.dim, self.dim, 1))
        scalars = cute.make_layout((2 * blocks, rows, 2), stride=(rows * 2, 2, 1))
        after = parts.iterator + 2 * blocks * rows * self.dim
        return cute.make_tensor(parts.iterator, sums), cute.make_tensor(after, scalars)

    @cute.jit
    def begin(self):
        """Wait for the previous kernel. Then let blocks of the merging kernel start: lengths and pages are final now."""
        if cutlass.const_expr(self.early):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()

    def launch_merge(self, call: Call, blocks: Int32, stream) -> None:
        items = cutlass.min(call.group, self.rows) * (self.dim // self.columns)
        shares = cute.ceil_div(items, MERGE_WARPS * self.merge_items)
        if self.merge_shares:
            shares = cutlass.min(shares, self.merge_shares)
        self.merge(call, blocks).launch(
            grid=[blocks, shares, 1], block=[MERGE_WARPS * WARP, 1, 1], use_pdl=self.early, stream=stream
        )

    @cute.kernel
    def merge(self, call: Call, blocks: Int32):
        """Merge the unit in whose middle a run begins, row by row. An item is 128 columns of a row."""
        thread, _, _ = cute.arch.thread_idx()
        _, share, _ = cute.arch.block_idx()
        _, shares, _ = cute.arch.grid_dim()
        slices = self.dim // self.columns
        warp = thread // WARP
        storage = SmemAllocator().allocate_tensor(Float32, cute.make_layout((self.columns + 2, MERGE_WARPS)), 16)
        if cutlass.const_expr(self.early):
            cute.arch.griddepcontrol_launch_dependents()  # the next kernel waits for the end of this one
        run = self.run_of_block(call, blocks)
        slots = self.parts_of(call.parts, blocks, run.group)
        cut = self.cut(run)
        if cutlass.const_expr(self.early):
            cute.arch.griddepcontrol_wait()
        if cut.sequence >= 0:
            row_tiles = self.row_tiles(run.group)
            head = cut.unit // row_tiles
            top = (cut.lane if self.side_by_side else cut.unit % row_tiles) * self.rows
            items = cutlass.min(run.group - top, self.rows) * slices
            helpers = (cut.latest - cut.earliest) * shares
            helper = cut.helper * shares + share
            scale = scale_of(call.v_scale, head)
            if cut.latest - cut.earliest < TOGETHER:
                for item in cutlass.range(helper * MERGE_WARPS + warp, items, helpers * MERGE_WARPS):
                    _, total, values = self.merge_parts(slots, item // slices, item % slices, cut, 0, 1)
                    target = self.target(call.out, cut.sequence, head, top + item // slices, item % slices, run)
                    store(values * (inverse(total) * scale), target, thread % WARP, WARP, self.size)
            else:
                for item in cutlass.range(helper, items, helpers):
                    merged = self.merge_parts(slots, item // slices, item % slices, cut, warp, MERGE_WARPS)
                    target = self.target(call.out, cut.sequence, head, top + item // slices, item % slices, run)
                    self.merge_warps(merged, storage, target, scale)
        if run.schedule.merged:
            self.write_zeros(run.sequences, call.out, blocks)

    @cute.jit
    def write_zeros(self, sequences: Sequences, out: cute.Tensor, blocks: Int32):
        """What attention to no token gives: no block sees a sequence of length 0."""
        thread, _, _ = cute.arch.thread_idx()
        block, share, _ = cute.arch.block_idx()
        _, shares, _ = cute.arch.grid_dim()
        batch, tokens, heads, _ = out.shape
        slices = self.dim // self.columns
        first, step = share * MERGE_WARPS + thread // WARP, shares * MERGE_WARPS
        for empty in cutlass.range(block, batch, blocks):
            if sequences.length(empty) == 0:
                for item in cutlass.range(first, tokens * heads * slices, step):
                    row, part = item // slices, item % slices
                    target = cute.local_tile(out[empty, row // heads, row % heads, None], (self.columns,), (part,))
                    store(cute.full(self.size, 0.0, Float32), target, thread % WARP, WARP, self.size)

    @cute.jit
    def cut(self, run: Run) -> Cut:
        """The unit in whose middle a run begins. Without one, its sequence is -1."""
        sequence, unit, earliest, latest, late = Int32(-1), Int32(0), Int32(0), Int32(0), Int32(0)
        if run.schedule.merged and run.first < run.end:
            piece = run.piece(run.first)
            if piece.start > 0:
                begin = run.first - piece.start
                sequence, unit = piece.sequence, piece.unit
                earliest = run.schedule.owner(begin)
                latest = run.schedule.owner(begin + run.sequences.tiles(sequence) - 1)
                # The earliest run may begin with this unit, or only end with it.
                late = Int32(0) if run.schedule.first(earliest) == begin else Int32(1)
        lanes = self.lanes(run.group)
        return Cut(sequence, unit, earliest, latest, late, run.index - earliest - 1, lanes, run.lane)

    def target(self, out, sequence, head, row, part, run: Run) -> cute.Tensor:
        heads = run.group // run.tokens
        values = out[sequence, row // heads, head * heads + row % heads, None]
        return cute.local_tile(values, (self.columns,), (part,))

    @cute.jit
    def merge_parts(self, slots, row, part, cut: Cut, first, step: cutlass.Constexpr):
        """Merge parts ``first``, ``first + step``, ... of an item: the largest score, the sum of weights, this lane's columns."""
        sums, scalars = slots
        index = part * WARP + cute.arch.lane_idx()
        top, total, values = Float32(MINUS_INFINITY), Float32(0), cute.full(self.size, 0.0, Float32)
        for start in cutlass.range(cut.earliest + first, cut.latest + 1, BATCH * step):
            # Past the last part, it is read once more, without a weight.
            runs = [start + i * step for i in range(BATCH)]
            places = [cut.slot(cutlass.min(run, cut.latest)) for run in runs]
            rows = [fetch(sums[place, row, None], index, self.size) for place in places]
            weights = [scalars[place, row, 1] for place in places]
            largest = [scalars[place, row, 0] for place in places]
            higher = top
            for i in cutlass.range_constexpr(BATCH):
                largest[i] = largest[i] if runs[i] <= cut.latest else Float32(MINUS_INFINITY)
                higher = cute.arch.fmax(higher, largest[i])
            finite = higher if higher > MINUS_INFINITY else Float32(0)
            before = cute.math.exp2(top - finite, fastmath=True)
            top, total, values = higher, total * before, values * before
            for i in cutlass.range_constexpr(BATCH):
                factor = cute.math.exp2(largest[i] - finite, fastmath=True)
                total, values = total + factor * weights[i], values + factor * rows[i].load()
        return top, total, values

    @cute.jit
    def merge_warps(self, merged, storage, target, scale):
        """The first warp merges what all warps of a block found of an item."""
        top, total, values = merged
        thread, _, _ = cute.arch.thread_idx()
        lane, warp = thread % WARP, thread // WARP
        own = cute.make_rmem_tensor(self.size, Float32)
        own.store(values)
        for i in cutlass.range_constexpr(self.size):
            storage[lane + WARP * i, warp] = own[i]
        if lane == 0:
            storage[self.columns, warp] = top
            storage[self.columns + 1, warp] = total
        cute.arch.sync_threads()
        if warp == 0:
            higher, total = Float32(MINUS_INFINITY), Float32(0)
            for i in cutlass.range_constexpr(MERGE_WARPS):
                higher = cute.arch.fmax(higher, storage[self.columns, i])
            finite = higher if higher > MINUS_INFINITY else Float32(0)
            own.fill(0.0)
            for i in cutlass.range_constexpr(MERGE_WARPS):
                factor = cute.math.exp2(storage[self.columns, i] - finite, fastmath=True)
                total += factor * storage[self.columns + 1, i]
                for c in cutlass.range_constexpr(self.size):
                    own[c] = own[c] + factor * storage[lane + WARP * c, i]
            store(own.load() * (inverse(total) * scale), target, lane, WARP, self.size)
        cute.arch.sync_threads()


def scale_of(scales, head: Int32):
    """The scale of a head of the cache."""
    return 1.0 if scales is None else scales[head]
