"""The tile scheduler: which tiles a persistent block computes, and where they are.

A block starts with the tile of its cluster's number and goes on in steps of as many clusters as run. Producer and consumer
warps each ask the scheduler by themselves, so they must get the same answer: it depends on the number of the tile alone.
It is guaranteed that blocks compute each tile once, however many of them run, and that those of a cluster go on together.

Tiles of attention take different times. So its blocks draw the number of their next tile (:func:`draw_tile`), and the
producer tells the consumers. In which order tiles are numbered, for products and for attention, is in ``kernels/_scheduler.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass.cute as cute
from cutlass import Int32

from .._scheduler import count_tiles_of_experts, swizzled_batch, tile_of_expert
from .tiling import Tiling


@cute.jit
def draw_tile(tickets: cute.Tensor) -> Int32:
    """The next tile for the block of this warp, from a counter in memory. The first tile of a block needs no ticket."""
    ticket = Int32(0)
    if cute.arch.lane_idx() == 0:  # for its warp; relaxed, because nothing but the number is handed on
        ticket = Int32(cute.arch.atomic_add(tickets.iterator, Int32(1), sem="relaxed", scope="gpu"))
    return cute.arch.grid_dim()[0] + cute.arch.shuffle_sync(ticket, 0)


class Block(NamedTuple):
    """A block's place in the grid and in its cluster."""

    first: Int32  # its first tile, in the order of work
    step: Int32  # from one tile to the next
    row: Int32  # in the cluster, along m
    column: Int32  # in the cluster, along n
    part: Int32  # of the sum over ``k``


def this_block(tiling: Tiling) -> Block:
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    none = Int32(0)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) if tiling.blocks > 1 else none
    row = rank if tiling.cluster_n == 1 else rank % tiling.cluster_m
    return Block(
        first=block // tiling.blocks,
        step=blocks // tiling.blocks,
        row=row if tiling.cluster_m > 1 else none,
        column=rank // tiling.cluster_m if tiling.cluster_n > 1 else none,
        part=rank if tiling.split_k > 1 else none,
    )


class Tile(NamedTuple):
    """Where the tile of a block is."""

    top: Int32  # its first row
    n: Int32  # its place among tiles along n
    batch: Int32  # of ``a`` and the output
    b_batch: Int32  # of ``b``
    limit: Any = None  # of a grouped product, the end of the expert's rows: those below are another's


class Work(NamedTuple):
    """What a launch computes, as every warp sees it."""

    tiles: tuple  # along m and n in clusters, and in the batch if there is one
    count: Int32
    depth: Int32  # extent along k
    offsets: Any  # ends of the rows of experts, or None
    arguments: tuple  # what mainloop and epilogue need beside the matrices


@dataclass(frozen=True)
class TileScheduler:
    """Tiles of one matrix, or of a batch of them."""

    tiling: Tiling

    grouped = False

    @property
    def height(self) -> int:
        """Rows of a cluster."""
        return self.tiling.m * self.tiling.cluster_m

    def tiles(self, out: cute.Tensor) -> tuple:
        """How many clusters of tiles an output has: along m, along n, and in the batch if there is one."""
        m, n, batch = out.shape
        tiles = cute.ceil_div(m, self.height), cute.ceil_div(n, self.tiling.columns * self.tiling.cluster_n)
        return tiles if isinstance(batch, int) else (*tiles, batch)

    def most_tiles(self, tiles: tuple, offsets) -> Int32:
        """As many as the host must expect."""
        return math.prod(tiles)

    @cute.jit
    def count(self, tiles, offsets):
        return self.most_tiles(tiles, offsets)

    def weights_read_once(self, tiles: tuple, offsets):
        """Whether no other tile needs the weights of a tile, so that the L2 cache need not keep them."""
        return tiles[1 if self.tiling.swapped else 0] == 1

    @cute.jit
    def first_tile(self, work: Work, block: Block):
        """The tile that a block computes first, before anything was read from memory."""
        return self.find(block.first, work, block, Int32(0), Int32(0))[0]

    @cute.jit
    def find(self, index: Int32, work: Work, block: Block, first: Int32, before: Int32):
        """The tile with a number. ``first`` and ``before`` are zero for the first tile, then what this has returned."""
        m, n, batch = swizzled_batch(index, work.tiles, self.tiling.swizzle)
        top = m * self.height + block.row * self.tiling.m
        return Tile(top, n * self.tiling.cluster_n + block.column, batch, batch), first, before


@dataclass(frozen=True)
class GroupedScheduler(TileScheduler):
    """Tiles of rows that belong to experts. A tile never has rows of two of them."""

    grouped = True

    def most_tiles(self, tiles: tuple, offsets) -> Int32:
        return (tiles[0] + cute.size(offsets)) * tiles[1]

    @cute.jit
    def count(self, tiles, offsets):
        return count_tiles_of_experts(offsets, tiles[1], self.height)

    def weights_read_once(self, tiles: tuple, offsets):
        """If an expert's rows fit into a tile. In the mean, they do if there are few tiles."""
        return tiles[0] <= cute.size(offsets)

    @cute.jit
    def find(self, index: Int32, work: Work, block: Block, first: Int32, before: Int32):
        expert, start, limit, m, n, first, before = tile_of_expert(
            index, work.offsets, work.tiles[1], self.height, self.tiling.swizzle, first, before
        )
        top = start + m * self.height + block.row * self.tiling.m
        return Tile(top, n * self.tiling.cluster_n + block.column, Int32(0), expert, limit), first, before
