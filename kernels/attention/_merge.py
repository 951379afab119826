"""What all kernels share that split sequences among blocks: runs of tiles, parts of units, and their merging.

See ``_schedule`` for units, tiles and slots. Tiles of query rows of the same tokens are units of their own, which a block
takes one after the other; or they are *side by side*: as many blocks as there are tiles of rows take the same run, each
with its own rows, and read the same tokens at about the same time.

A run cuts at most the unit that it begins with, so there are fewer cut units than runs. Each block leaves a *note* about the
unit that its run is the first to cut, and the merging kernel has a few blocks for each note.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from .._device import WARP, KernelObject, await_previous, fetch, store
from ..rows._rows import add
from ._schedule import Schedule, Sequences

MERGE_WARPS = 8  # of a block that merges
MERGE_ITEMS = 2  # rows, or parts of rows, that each of its warps merges
NOTE = 4  # numbers that a block leaves behind for the merging kernel
MERGE_COLUMNS = 128  # of a row of the output, that one warp merges
BATCH = 16  # parts that a warp reads at once while it merges
LOG2_E = math.log2(math.e)
MINUS_INFINITY = float("-inf")


class Piece(NamedTuple):
    """Tiles of one unit, from ``start`` up to ``stop``."""

    sequence: Int32
    unit: Int32
    length: Int32  # of the sequence, in tokens
    start: Int32
    stop: Int32
    whole: cutlass.Boolean  # whether these are all tiles of the unit


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

    @cute.jit
    def piece(self, tile: Int32) -> Piece:
        """What the run has of the unit that a tile belongs to, from that tile on."""
        sequence, before = self.sequences.find(tile)
        tiles = self.sequences.tiles(sequence)
        within = tile - before * self.sequences.units
        unit, start = within // tiles, within % tiles
        stop = cutlass.min(tiles, start + self.end - tile)
        return Piece(sequence, unit, self.sequences.length(sequence), start, stop, stop - start == tiles)


class Merging(KernelObject):
    """``dim`` columns and ``rows`` rows of a tile of the output, ``tile`` tokens of the cache.

    The workspace has room for the parts of ``max_blocks`` blocks.
    """

    def __init__(
        self, dim: int, rows: int, tile: int, max_blocks: int, paged: bool, early: bool, side_by_side: int = 0
    ) -> None:
        self.dim = dim
        self.rows = rows
        self.tile = tile
        self.max_blocks = max_blocks
        self.paged = paged
        self.early = early
        self.side_by_side = side_by_side
        self.columns = min(dim, MERGE_COLUMNS)

    # What both kernels derive from the arguments. A cache is pages (or sequences) x tokens x heads x columns.

    def heads(self, cache: cute.Tensor):
        return cache.shape[2] if cute.rank(cache) == 4 else 1

    def group(self, out: cute.Tensor, cache: cute.Tensor) -> Int32:
        """Query rows that share a head of the cache."""
        return out.shape[1] * (out.shape[2] // self.heads(cache))

    def lanes(self, group: Int32) -> Int32:
        """Blocks that are side by side: a multiple of ``side_by_side``."""
        if not self.side_by_side:
            return Int32(1)
        return cute.ceil_div(group, self.rows * self.side_by_side) * self.side_by_side

    def runs(self, blocks: Int32, lanes: Int32) -> Int32:
        return cutlass.max(cutlass.min(blocks, self.max_blocks) // lanes, 1)

    def sequences(self, lengths: cute.Tensor, out: cute.Tensor, cache: cute.Tensor, pages) -> Sequences:
        capacity = pages.shape[1] * cache.shape[1] if self.paged else cache.shape[1]
        row_tiles = 1 if self.side_by_side else cute.ceil_div(self.group(out, cache), self.rows)
        return Sequences(lengths, Int32(capacity), self.tile, Int32(self.heads(cache) * row_tiles))

    def run_of_block(self, cache: cute.Tensor, lengths: cute.Tensor, out: cute.Tensor, pages) -> Run:
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        group = self.group(out, cache)
        lanes = self.lanes(group)
        sequences = self.sequences(lengths, out, cache, pages)
        schedule = sequences.schedule(blocks // lanes)
        index = block // lanes
        first, end = schedule.first(index), schedule.first(index + 1)
        return Run(sequences, schedule, index, first, end, block % lanes, group, Int32(out.shape[1]))

    def parts_of(self, parts: cute.Tensor, blocks: Int32, group: Int32) -> tuple[cute.Tensor, cute.Tensor, cute.Tensor]:
        """The workspace: sums by slot, row and column; by slot and row, the largest score and the sum of weights; notes."""
        rows = cutlass.min(group, self.rows)
        sums = cute.make_layout((2 * blocks, rows, self.dim), stride=(rows * self.dim, self.dim, 1))
        scalars = cute.make_layout((2 * blocks, rows, 2), stride=(rows * 2, 2, 1))
        after = parts.iterator + 2 * blocks * rows * self.dim
        notes = cute.recast_ptr(after + 2 * blocks * rows * 2, dtype=Int32)
        return (
            cute.make_tensor(parts.iterator, sums),
            cute.make_tensor(after, scalars),
            cute.make_tensor(notes, cute.make_layout((blocks, NOTE), stride=(NOTE, 1))),
        )

    @cute.jit
    def leave_note(self, run: Run, notes: cute.Tensor):
        """Tell the merging kernel which unit this block's run cuts first, if no earlier run cuts it. One thread."""
        block, _, _ = cute.arch.block_idx()
        sequence, unit, earliest, latest = Int32(-1), Int32(0), Int32(0), Int32(0)
        if run.first < run.end:
            piece = run.piece(run.first)
            if piece.start > 0:
                begin = run.first - piece.start
                earliest = run.schedule.owner(begin)
                if earliest == run.index - 1:
                    tiles = run.sequences.tiles(piece.sequence)
                    sequence, unit, latest = piece.sequence, piece.unit, run.schedule.owner(begin + tiles - 1)
                    # The earliest run may begin with this unit, or only end with it.
                    earliest = 2 * earliest + (0 if run.schedule.first(earliest) == begin else 1)
        if cute.arch.lane_idx() == 0:
            for i, value in enumerate((sequence, unit, earliest, latest)):
                notes[block, i] = value

    def launch_merge(self, cache, lengths, out, pages, v_scale, parts, blocks: Int32, stream) -> None:
        rows = cutlass.min(self.group(out, cache), self.rows)
        items = rows * (self.dim // self.columns)
        self.merge(cache, lengths, out, pages, v_scale, parts, blocks).launch(
            grid=[blocks, cute.ceil_div(items, MERGE_WARPS * MERGE_ITEMS), 1],
            block=[MERGE_WARPS * WARP, 1, 1],
            use_pdl=self.early,
            stream=stream,
        )

    @cute.kernel
    def merge(self, cache: cute.Tensor, lengths: cute.Tensor, out: cute.Tensor, pages, v_scale, parts, blocks: Int32):
        """Merge the unit that a block of the other kernel names, row by row. A warp has 128 columns of a row at a time.

        No block sees a sequence of length 0, so its zeros are written here.
        """
        thread, _, _ = cute.arch.thread_idx()
        block, share, _ = cute.arch.block_idx()
        _, shares, _ = cute.arch.grid_dim()
        batch, tokens, all_heads, _ = out.shape
        group = self.group(out, cache)
        heads = group // tokens
        sums, scalars, notes = self.parts_of(parts, blocks, group)
        lanes = self.lanes(group)
        slices = self.dim // self.columns
        first = share * MERGE_WARPS + thread // WARP
        await_previous(self.early)
        sequence, unit = notes[block, 0], notes[block, 1]
        if sequence >= 0:
            row_tiles = 1 if self.side_by_side else cute.ceil_div(group, self.rows)
            head = unit // row_tiles
            row_tile = block % lanes if self.side_by_side else unit % row_tiles
            count = cutlass.min(group - row_tile * self.rows, self.rows)
            runs = (notes[block, 2] // 2, notes[block, 3], notes[block, 2] % 2, lanes, block % lanes)
            for item in cutlass.range(first, count * slices, shares * MERGE_WARPS):
                within, part = item // slices, item % slices
                row = row_tile * self.rows + within
                target = out[sequence, row // heads, head * heads + row % heads, None]
                target = cute.local_tile(target, (self.columns,), (part,))
                self.merge_row((sums, scalars), within, part, runs, target, scale_of(v_scale, head))
        sequences = self.sequences(lengths, out, cache, pages)
        size = self.columns // WARP
        for empty in cutlass.range(block, batch, blocks):
            if sequences.length(empty) == 0:
                for item in cutlass.range(first, tokens * all_heads * slices, shares * MERGE_WARPS):
                    row, part = item // slices, item % slices
                    target = cute.local_tile(
                        out[empty, row // all_heads, row % all_heads, None], (self.columns,), (part,)
                    )
                    store(cute.full(size, 0.0, Float32), target, thread % WARP, WARP, size)

    @cute.jit
    def merge_row(self, slots, row, part, runs, target, scale):
        """Runs ``earliest`` to ``latest`` have a part each. All but the first begin with it, and that one if not ``late``."""
        earliest, latest, late, lanes, side = runs
        lane = cute.arch.lane_idx()
        size = self.columns // WARP
        sums, scalars = slots
        top, total, values = Float32(MINUS_INFINITY), Float32(0), cute.full(size, 0.0, Float32)
        for start in cutlass.range(earliest, latest + 1, BATCH):
            # Lanes have one part each, for its scalars. Past the last part they repeat it, with no weight.
            run = start + lane % BATCH
            block = cutlass.min(run, latest) * lanes + side
            slot = slot_of(block, earliest * lanes + side, late)
            own = scalars[slot, row, 0] if run <= latest else Float32(MINUS_INFINITY)
            higher = cute.arch.fmax(top, cute.arch.warp_reduction(own, cute.arch.fmax))
            finite = higher if higher > MINUS_INFINITY else Float32(0)
            factor = cute.math.exp2(own - finite, fastmath=True)
            weight = cute.arch.warp_reduction(factor * scalars[slot, row, 1], add, threads_in_group=BATCH)
            before = cute.math.exp2(top - finite, fastmath=True)
            top, total, values = higher, total * before + weight, values * before
            first = part * WARP + lane
            rows = [fetch(sums[cute.arch.shuffle_sync(slot, i), row, None], first, size) for i in range(BATCH)]
            for i in cutlass.range_constexpr(BATCH):
                values = values + cute.arch.shuffle_sync(factor, i) * rows[i].load()
        store(values * (inverse(total) * scale), target, lane, WARP, size)


def scale_of(scales, head: Int32):
    """The scale of a head of the cache."""
    return 1.0 if scales is None else scales[head]


@cute.jit
def inverse(total: Float32) -> Float32:
    """``1 / total``, or 0 for a row without weights: a row that may see no token is zero."""
    return 1 / total if total > 0.0 else Float32(0)


@cute.jit
def slot_of(block: Int32, earliest: Int32, late: Int32) -> Int32:
    """Where a block left its part. ``late`` is 1 if the earliest block ended its run with it, 0 if it began."""
    return 2 * block + (late if block == earliest else Int32(0))
