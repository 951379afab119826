"""What products of every architecture share: how they are scaled, and the order in which tiles are computed.

Rows of a grouped product belong to experts, and where an expert's rows end is known on the device alone. So each warp
finds the tiles of its block there: 32 lanes look at 32 experts at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from .._device import WARP, KernelObject

BLOCK = 128  # rows of b, and elements along k, that share a scale


@dataclass(frozen=True)
class Scaling:
    """``rows``: a scale per row of ``a`` and per row of ``b``, or one for all. ``blocks``: 1 x 128 and 128 x 128."""

    kind: str = ""  # "": none
    promoted: bool = False


@cute.jit
def place_of(index: Int32, tiles_m: Int32, tiles_n: Int32, group: cutlass.Constexpr) -> tuple[Int32, Int32]:
    """The tile at a position in the order of work. ``group`` rows of tiles are taken together, column by column."""
    first = index // (group * tiles_n) * group
    height = cutlass.min(tiles_m - first, group)
    within = index - first * tiles_n
    return first + within % height, within // height


class Order(KernelObject):
    """A product whose blocks each compute some tiles, or some clusters of tiles, of ``height`` rows."""

    def __init__(self, tiling: Any, height: int, scaling: Scaling, grouped: bool) -> None:
        self.tiling, self.height, self.scaling, self.grouped = tiling, height, scaling, grouped

    @cute.jit
    def expert_rows(self, offsets, expert: Int32):
        """First row of an expert, and the row after its last one; none for experts that do not exist."""
        experts = cute.size(offsets)
        start, end = Int32(0), Int32(0)
        if expert < experts:
            end = offsets[expert]
            if expert > 0:
                start = offsets[expert - 1]
        return start, end

    @cute.jit
    def count_tiles(self, offsets, tiles):
        """Tiles, or clusters of tiles, of all experts."""
        count = tiles[0] * tiles[1]
        if cutlass.const_expr(self.grouped):
            rows = Int32(0)
            for first in cutlass.range(0, cute.size(offsets), WARP):
                start, end = self.expert_rows(offsets, first + cute.arch.lane_idx())
                rows += cute.ceil_div(end - start, self.height)
            for i in cutlass.range_constexpr(5):
                rows += cute.arch.shuffle_sync_bfly(rows, offset=1 << i)
            count = cute.arch.make_warp_uniform(rows) * tiles[1]
        return count

    @cute.jit
    def window(self, offsets, tiles, first: Int32):
        """Of the expert of this lane, among 32: its rows, and the tiles of all experts of the window up to it."""
        start, end = self.expert_rows(offsets, first + cute.arch.lane_idx())
        own = cute.ceil_div(end - start, self.height) * tiles[1]
        for i in cutlass.range_constexpr(5):
            before = cute.arch.shuffle_sync_up(own, offset=1 << i)
            if cute.arch.lane_idx() >= (1 << i):
                own += before
        return start, end, own

    @cute.jit
    def find(self, offsets, tiles, index: Int32, first: Int32, before: Int32, row: Int32):
        """Where a tile is: its expert, its first row, the end of the expert's rows, its place among columns.

        ``first`` is the first expert of the window of 32 in which the previous tile was, ``before`` the number of tiles
        before that window; both are returned as well.
        """
        expert, top, limit = Int32(0), Int32(0), Int32(0)
        m, n = Int32(0), Int32(0)
        if cutlass.const_expr(self.grouped):
            start, end, upto = self.window(offsets, tiles, first)
            last = cute.arch.shuffle_sync(upto, WARP - 1)
            while before + last <= index:
                first += WARP
                before += last
                start, end, upto = self.window(offsets, tiles, first)
                last = cute.arch.shuffle_sync(upto, WARP - 1)
            lane = cute.arch.popc(cute.arch.vote_ballot_sync(before + upto <= index))
            expert = cute.arch.make_warp_uniform(first + lane)
            start, limit = [cute.arch.make_warp_uniform(cute.arch.shuffle_sync(value, lane)) for value in (start, end)]
            upto = cute.arch.make_warp_uniform(cute.arch.shuffle_sync(upto, lane))
            tiles_m = cute.ceil_div(limit - start, self.height)
            m, n = place_of(index - (before + upto - tiles_m * tiles[1]), tiles_m, tiles[1], self.tiling.group)
            top = start + m * self.height + row * self.tiling.m
        else:
            m, n = place_of(index, tiles[0], tiles[1], self.tiling.group)
            top = m * self.height + row * self.tiling.m
        return expert, top, limit, n, first, before
