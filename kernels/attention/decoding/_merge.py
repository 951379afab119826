"""Split-KV: what kernels share that split sequences among blocks. Runs of tiles, parts of units, and how parts are merged.

See ``_schedule`` for units, tiles and slots. Tiles of query rows of the same tokens are units of their own, which a block
takes one after the other; or they are *side by side*: as many blocks as there are tiles of rows take the same run, each
with its own rows, and read the same tokens at about the same time.

The merging kernel has a few blocks for each run. They help to merge the unit in which their run begins, together with
those of all other runs that begin in this unit. So a unit that was cut into many parts is merged by as many. They
know it from the lengths, while the parts are still being computed. If no unit is cut, they only have to be over soon, because
the next kernel cannot begin before. If most units that were cut have two parts, one at the end of a run and one at the beginning
of the next, blocks can also merge these themselves: see ``_meet``.

If sequences have room for few tokens, nothing needs to be cut, and shapes tell so before the launch: see ``Merging.grid``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

import aot

from ..._device import WARP, KernelObject, launched_early, store
from ..._versions import SmemAllocator
from ...sm80.tiles import CHUNK
from .._schedule import NO_TILES, Schedule, Sequences, divide, divide_few
from .._softmax import inverse, mask_scores, write_row, write_row_wide
from ._meet import WORDS
from ._parts import BAND, CUT_WORDS, MERGE_WARPS, SHARERS, Cut, FragmentMerger, Merger

TOGETHER = 17  # the fewest parts of which the warps of a block share each item
MERGE_COLUMNS = 128  # of a row of the output, that one warp merges


class Call(NamedTuple):
    """What both kernels of a call are given. A cache is pages (or sequences) x tokens x heads x columns."""

    cache: cute.Tensor
    lengths: cute.Tensor
    out: cute.Tensor
    pages: cute.Tensor | None
    v_scale: cute.Tensor | None  # of values, by head of the cache
    parts: cute.Tensor
    indices: cute.Tensor | None = None  # by sequence: the tokens of the cache that it has, if it has no pages

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
        if self.indices is not None:
            return self.indices.shape[1]
        return self.cache.shape[1] if self.pages is None else self.pages.shape[1] * self.cache.shape[1]


class Piece(NamedTuple):
    """Tiles of one unit, from ``start`` up to ``stop``. The next piece begins at place ``next`` of the line."""

    sequence: Int32
    unit: Int32
    length: Int32  # of the sequence, in tokens
    start: Int32
    stop: Int32
    next: Int32
    whole: cutlass.Boolean  # whether these are all tiles of the unit
    begin: Int32  # the place of the unit's first tile


class Place(NamedTuple):
    """A tile in the line of all tiles: the one at ``index`` of a unit that has ``tiles`` of them."""

    sequence: Int32
    unit: Int32
    index: Int32
    tiles: Int32
    length: Int32  # of the sequence, in tokens
    lead: Int32  # places from here to that tile


@dataclass(frozen=True)
class Run:
    """The places of one block in the line, from ``first`` up to ``end``."""

    sequences: Sequences
    schedule: Schedule
    index: Int32
    first: Int32
    end: Int32
    lane: Int32  # which of the blocks that are side by side this is
    group: Int32  # query rows that share a head of the cache
    tokens: Int32  # new ones of a sequence
    heads: Int32  # of queries, that share a head of the cache

    def piece(self, tile: Int32) -> Piece:
        """What the run has of the unit that a place belongs to, from there on."""
        return self.piece_at(self.place(tile), tile)

    @cute.jit
    def place(self, tile: Int32) -> Place:
        """Where a tile of the line is. To look for it may take a while: see :meth:`after`."""
        sequences, room, start = self.sequences, self.schedule.room, self.start()
        sequence, within = divide(tile, cutlass.max(room * sequences.units, 1)), tile
        if room == 0:
            sequence, before = sequences.find(tile, self.schedule.sums)
            within -= before * sequences.units
            room = sequences.places(sequence)
        else:
            within -= sequence * room * sequences.units
        unit = Int32(0)
        if cutlass.const_expr(not sequences.single):
            unit = divide(within, room)
            within -= unit * room
        lead = cutlass.max(start - within, 0)
        index = within + lead - start
        return Place(sequence, unit, index, sequences.tiles(sequence), sequences.length(sequence), lead)

    @cute.jit
    def start(self) -> Int32:
        """Places ahead of the tiles of a unit. There are none if all units have the same room."""
        return Int32(self.sequences.start) if self.schedule.room == 0 else Int32(0)

    @cute.jit
    def after(self, place: Place, count: Int32) -> Place:
        """The place ``count`` tiles further, at most at the beginning of the next unit."""
        sequence, unit, index, tiles, length, lead = place
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
        return Place(sequence, unit, index, tiles, length, lead)

    @cute.jit
    def piece_at(self, place: Place, tile: Int32) -> Piece:
        """The same, for a tile whose place is known."""
        sequence, unit, index, tiles, length, lead = place
        stop = cutlass.min(tiles, index + self.end - tile - lead)
        whole = stop - index == tiles
        behind = stop if stop < tiles else cutlass.max(tiles, self.schedule.room)
        begin = tile + lead - index
        following = begin + behind
        if following + self.start() >= self.end:  # no tile of the next unit
            following = self.end
        return Piece(sequence, unit, length, index, stop, following, whole, begin)

    @cute.jit
    def tiles(self, place: Place) -> Int32:
        """All tiles of the run, which begins at a place. If the line has empty places, the run is a part of one unit."""
        own = self.end - self.first
        return cutlass.min(own, place.tiles - place.index) if self.schedule.room > place.tiles else own

    @cute.jit
    def cut(self, piece: Piece, lanes: Int32) -> Cut:
        """The runs that have parts of the unit of a piece."""
        tiles = cute.ceil_div(piece.length, self.sequences.tile)
        earliest = self.schedule.owner(piece.begin)
        latest = self.schedule.owner(piece.begin + tiles - 1)
        # The earliest run may begin with this unit, or only end with it.
        late = Int32(0) if self.schedule.first(earliest) + self.start() >= piece.begin else Int32(1)
        helper, meeting = self.index - earliest - late, Int32(self.schedule.meeting)
        return Cut(piece.sequence, piece.unit, earliest, latest, late, helper, lanes, self.lane, meeting)

    @cute.jit
    def slot(self, tile: Int32) -> Int32:
        """Where the part of the unit goes that the block has from a tile on: see ``_schedule``."""
        return 2 * cute.arch.block_idx()[0] + (0 if tile == self.first else 1)

    def last_seen(self, piece: Piece, row: Int32) -> Int32:
        """The last token that a row sees, which is its own. Rows past the end count as the last row."""
        return piece.length - (self.tokens - cutlass.min(row, self.group - 1) // self.heads)

    @cute.jit
    def split_row(self, row: Int32) -> tuple[Int32, Int32]:
        """The token of a row, and its head among those that share a head of the cache. One token needs no division."""
        token, head = Int32(0), row
        if self.tokens > 1:
            token = row // self.heads
            head = row - token * self.heads
        return token, head

    @cute.jit
    def mask(self, scores, piece, start, tokens: cutlass.Constexpr, row):
        """Mask tokens past the end, and tokens that come after a row's own. ``row``: the first of a thread's two."""
        if start + tokens > piece.length - (self.tokens - 1):
            mask_scores(scores, start, lambda r: self.last_seen(piece, row + 8 * r), upper=True)


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
        columns = cute.size(sums) // 4 * 8
        part_sums, part_scalars = self.parts
        if self.top + within < self.run.group:
            if self.piece.whole:
                target = self.row_of_output(self.top + within)
                write_row(sums, r, inverse(total) * self.scale, cute.local_tile(target, (columns,), (column,)))
            else:
                target = part_sums[self.slot, within, None]
                write_row(sums, r, Float32(1), cute.local_tile(target, (columns,), (column,)))
                if scalars:
                    part_scalars[self.slot, within, 0] = offset
                    part_scalars[self.slot, within, 1] = total

    @cute.jit
    def write_whole_row(self, sums, r: cutlass.Constexpr, within, column, total):
        """The same for a row of a whole unit, 16 bytes at a time."""
        row, columns = self.top + within, cute.size(sums) // 4 * 8
        target = self.row_of_output(cutlass.min(row, self.run.group - 1))
        own = cute.local_tile(target, (columns,), (column,))
        aligned = cute.make_tensor(own.iterator.align(16), own.layout)
        write_row_wide(sums, r, inverse(total) * self.scale, aligned, row < self.run.group)

    def row_of_output(self, row: Int32) -> cute.Tensor:
        token, head = self.run.split_row(row)
        return self.out[self.piece.sequence, token, self.head * self.run.heads + head, None]


class Merging(KernelObject):
    """``dim`` columns and ``rows`` rows of a tile of the output, ``tile`` tokens of the cache.

    The workspace has room for the parts of ``max_blocks`` blocks.
    """

    max_blocks: int
    side_by_side = False  # tiles of query rows: see above
    fits = False  # whether a tile has all rows that share a head of the cache
    start = 0  # see ``Sequences``
    fragments = False  # see ``FragmentMerger``
    meets = False  # whether blocks merge units of two parts: see ``_meet``
    slack, more, merging, sparing = 0, 0, NO_TILES, False  # see ``Sequences.schedule``
    alone = NO_TILES  # the same if that saves the plan and the merging kernel, too: see :meth:`grid`
    merge_at_once = 1  # items of few parts that a warp merges at once
    merge_items = 2  # items that each warp of a block that merges has, at least
    merge_blocks = 2  # that merge on a multiprocessor at the same time
    merge_shares = 0  # blocks of each run that merge, at most; 0: as many as there are items for

    def __init__(self, target: aot.Target, dim: int, rows: int, tile: int) -> None:
        self.dim, self.rows, self.tile = dim, rows, tile
        self.early = launched_early(target)
        self.columns = min(dim, MERGE_COLUMNS)
        self.size = self.columns // WARP  # that a lane has

    @cute.jit
    def grid(self, call, most) -> tuple[Int32, cutlass.Boolean]:
        """Blocks of a launch, and whether each takes a whole unit, which needs no plan and no other kernel.

        It does so if sequences have so little room that to merge parts would take longer, whatever the lengths are.
        """
        lanes, blocks = self.lanes(call.group), self.blocks(call, most)
        units = cute.size(call.lengths) * call.heads * self.row_tiles(call.group)
        whole = cutlass.Boolean(cute.ceil_div(call.capacity, self.tile) <= self.alone.of(units))
        if whole:
            blocks = Int32(units * lanes)
        return blocks, whole

    def lanes(self, group: Int32) -> Int32:
        """Blocks that are side by side."""
        return cute.ceil_div(group, self.rows) if self.side_by_side else Int32(1)

    def blocks(self, call: Call, most: Int32) -> Int32:
        """Blocks of a launch: a whole number of runs, with at most ``most`` blocks if there is a run then."""
        lanes = self.lanes(call.group)
        return cutlass.max(cutlass.min(most, self.max_blocks) // lanes, 1) * lanes

    def row_tiles(self, group: Int32):
        """Units that share a head of the cache."""
        return 1 if self.side_by_side or self.fits else cute.ceil_div(group, self.rows)

    @cute.jit
    def run_of_block(self, call: Call, blocks: Int32, whole=False) -> Run:
        """The run of a block of a launch of ``blocks``. ``whole``: see :meth:`grid`."""
        block, _, _ = cute.arch.block_idx()
        group = call.group
        lanes = self.lanes(group)
        units = call.heads * self.row_tiles(group)
        sequences = Sequences(call.lengths, Int32(call.capacity), self.tile, units, self.start)
        schedule = sequences.whole_units()
        if not whole:
            runs = divide_few(blocks, lanes) if self.side_by_side else blocks
            schedule = sequences.schedule(runs, self.slack, self.more, self.merging, self.sparing)
        index = divide_few(block, lanes) if self.side_by_side else block
        first, end = sequences.run(schedule, index)
        tokens = Int32(call.out.shape[1])
        heads = heads_of(group, tokens)
        return Run(sequences, schedule, index, first, end, block - index * lanes, group, tokens, heads)

    @cute.jit
    def write_empty(self, run: Run, out: cute.Tensor):
        """What attention to no token gives, if that is the unit of a block that takes one alone."""
        if run.first == run.end:
            self.write_unit_of_zeros(run, out)

    @cute.jit
    def write_unit_of_zeros(self, run: Run, out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        threads, _, _ = cute.arch.block_dim()
        row_tiles, chunks = self.row_tiles(run.group), self.dim // CHUNK
        sequence, unit = run.index // run.sequences.units, run.index % run.sequences.units
        top = (run.lane if self.side_by_side else unit % row_tiles) * self.rows
        rows = cutlass.min(run.group - top, self.rows)
        for index in cutlass.range(thread, rows * chunks, threads):
            token, head = run.split_row(top + index // chunks)
            target = out[sequence, token, unit // row_tiles * run.heads + head, None]
            store(cute.full(CHUNK, 0.0, Float32), target, index % chunks, chunks, CHUNK)

    def part_rows(self, rows: Int32) -> Int32:
        """Rows of a part: whole bands if they are fragments."""
        return cute.ceil_div(rows, BAND) * BAND if self.fragments else rows

    def parts_of(
        self, parts: cute.Tensor, blocks: Int32, group: Int32, half: int = 0
    ) -> tuple[cute.Tensor, cute.Tensor]:
        """The workspace: sums by slot, row and column, or by slot and element of fragments; by slot and row, the largest score and the sum of weights.

        Two warp groups that have half of the columns each have their own scalars: see ``_meet``.
        """
        rows = self.part_rows(cutlass.min(group, self.rows))
        # Without these words the compiler does not see that a lane's columns are one access, as wide as they are.
        apart = cute.assume(rows * self.dim, divby=CHUNK)
        sums = cute.make_layout((2 * blocks, rows, self.dim), stride=(apart, self.dim, 1))
        if self.fragments:
            sums = cute.make_layout((2 * blocks, rows * self.dim), stride=(apart, 1))
        scalars = cute.make_layout((2 * blocks, rows, 2), stride=(cute.assume(rows * 2, divby=2), 2, 1))
        after = (parts.iterator + 2 * blocks * rows * (self.dim + 2 * half)).align(8)
        return cute.make_tensor(parts.iterator, sums), cute.make_tensor(after, scalars)

    def words_of(self, parts: cute.Tensor, blocks: Int32, group: Int32) -> cute.Tensor:
        """Behind that: see ``_meet``."""
        rows = self.part_rows(cutlass.min(group, self.rows))
        after = (parts.iterator + 2 * blocks * rows * (self.dim + 4)).align(8)
        return cute.make_tensor(cute.recast_ptr(after, dtype=Int64), cute.make_layout(WORDS * blocks))

    @cute.jit
    def begin(self, late=False):
        """Wait for the previous kernel. Then let blocks of the next one start, often the merging kernel: lengths and pages are final now."""
        if cutlass.const_expr(self.early):
            cute.arch.griddepcontrol_wait()
        if not late:
            self.let_next_start()

    @cute.jit
    def let_next_start(self):
        """Let blocks of the next kernel start where there is room.

        If many blocks share a multiprocessor and no merging kernel follows, blocks do so late: those of the next launch would find room
        on some multiprocessors, as many as fit, and none on others.
        """
        if cutlass.const_expr(self.early):
            cute.arch.griddepcontrol_launch_dependents()

    def launch_merge(self, call: Call, blocks: Int32, stream) -> None:
        items = cutlass.min(call.group, self.rows) * (self.dim // self.columns)
        shares = cute.ceil_div(items, MERGE_WARPS * self.merge_items)
        if self.merge_shares:
            shares = cutlass.min(shares, self.merge_shares)
        self.merge(call, blocks).launch(
            grid=[blocks, shares, 1],
            block=[MERGE_WARPS * WARP, 1, 1],
            min_blocks_per_mp=self.merge_blocks,
            preferred_smem_carveout=100,  # as the kernel before: a multiprocessor that changes it must be idle
            use_pdl=self.early,
            stream=stream,
        )

    @cute.kernel
    def merge(self, call: Call, blocks: Int32):
        """Merge the unit in which a run begins, if it was cut. An item is 128 columns of a row.

        The time goes by waiting for memory. So a warp asks for 8 or 16 pieces of parts at once: of few parts, for several items.
        """
        shared = SmemAllocator()
        storage = shared.allocate_tensor(Float32, cute.make_layout((self.columns + 4 * WARP, MERGE_WARPS)), 16)
        words = shared.allocate_tensor(Int32, cute.make_layout(CUT_WORDS), 16)
        if cutlass.const_expr(self.early):
            cute.arch.griddepcontrol_launch_dependents()  # the next kernel waits for the end of this one
        thread, _, _ = cute.arch.thread_idx()
        if thread < WARP:  # alone: a multiprocessor has many such blocks, whose warps would be in each other's way
            self.leave_cut(self.run_of_block(call, blocks), words)
        else:
            self.write_zeros(call, blocks)
        cute.arch.sync_threads()  # the first warp has told all what to merge
        cut = Cut(*[cute.arch.make_warp_uniform(words[i]) for i in range(CUT_WORDS)])
        if cutlass.const_expr(self.early):
            # Blocks without work end now, so that those of the next kernel start. One waits, because the next kernel begins
            # when this one ends, and must not do so before the previous one has ended.
            block, share, _ = cute.arch.block_idx()
            if cut.sequence >= 0 or block + share == 0:
                cute.arch.griddepcontrol_wait()
        if cut.sequence >= 0:
            merger = self.merger(call, blocks, cut, storage)
            parts = cut.parts()
            many = parts > 8 and merger.helpers >= merger.items  # there are enough blocks for all items
            if parts >= TOGETHER or many:
                merger.together(4)
            elif cutlass.const_expr(self.fragments):
                if merger.items > merger.helpers * MERGE_WARPS:
                    merger.alone(2, SHARERS)
                else:
                    merger.alone(1, SHARERS)
            elif cutlass.const_expr(self.merge_at_once > 1) and parts <= 4:
                merger.alone(self.merge_at_once, 4)
            else:
                merger.alone(1, 8)

    def merger(self, call: Call, blocks: Int32, cut: Cut, storage: cute.Tensor) -> Merger:
        _, share, _ = cute.arch.block_idx()
        _, shares, _ = cute.arch.grid_dim()
        group = call.group
        row_tiles = self.row_tiles(group)
        head = 0 if isinstance(call.heads, int) else cut.unit // row_tiles
        top = (cut.lane if self.side_by_side else cut.unit % row_tiles) * self.rows
        rows = cutlass.min(group - top, self.rows)
        items = self.part_rows(rows) * (self.dim // self.columns)
        heads = heads_of(group, call.out.shape[1])
        slots = self.parts_of(call.parts, blocks, group)
        helper, helpers = cut.helper * shares + share, cut.helpers() * shares
        scale = scale_of(call.v_scale, head)
        kind = FragmentMerger if self.fragments else Merger
        return kind(cut, *slots, call.out, storage, top, head, heads, items, helper, helpers, scale, group - top)

    @cute.jit
    def write_zeros(self, call: Call, blocks: Int32):
        """All warps but the first: what attention to no token gives, because no block sees a sequence of length 0."""
        thread, _, _ = cute.arch.thread_idx()
        block, share, _ = cute.arch.block_idx()
        _, shares, _ = cute.arch.grid_dim()
        out = call.out
        batch, tokens, heads, _ = out.shape
        slices = self.dim // self.columns
        first, step = share * (MERGE_WARPS - 1) + thread // WARP - 1, shares * (MERGE_WARPS - 1)
        for empty in cutlass.range(block, batch, blocks):
            if cutlass.min(call.lengths[empty], call.capacity) <= 0:
                for item in cutlass.range(first, tokens * heads * slices, step):
                    row, part = item // slices, item % slices
                    target = cute.local_tile(out[empty, row // heads, row % heads, None], (self.columns,), (part,))
                    store(cute.full(self.size, 0.0, Float32), target, thread % WARP, WARP, self.size)

    @cute.jit
    def leave_cut(self, run: Run, words: cute.Tensor):
        """One warp: tell all the unit in which a run begins, if it was cut and is not merged where blocks meet.

        Without one, its sequence is -1.
        """
        sequence, unit, earliest, latest, late = Int32(-1), Int32(0), Int32(0), Int32(0), Int32(0)
        if run.schedule.merged and run.first < run.end:
            piece = run.piece(run.first)
            if not piece.whole:
                found = run.cut(piece, self.lanes(run.group))
                if not (self.meets and found.meets()):
                    sequence, unit = found.sequence, found.unit
                    earliest, latest, late = found.earliest, found.latest, found.late
        lanes = self.lanes(run.group)
        cut = Cut(sequence, unit, earliest, latest, late, run.index - earliest - late, lanes, run.lane, Int32(0))
        if cute.arch.lane_idx() == 0:
            for i, word in enumerate(cut):
                words[i] = word


def scale_of(scales, head: Int32):
    """The scale of a head of the cache."""
    return 1.0 if scales is None else scales[head]


@cute.jit
def heads_of(group: Int32, tokens) -> Int32:
    """Heads that share a head of the cache, given their rows. Most calls have one token and need no division."""
    heads = group
    if tokens > 1:
        heads = group // tokens
    return heads
