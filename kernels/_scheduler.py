"""The order in which a tile scheduler numbers tiles, for every architecture.

It is guaranteed that each tile has one number, so none is computed twice and none is left out.

Tiles that are computed at the same time should share rows of ``a`` and ``b``, which then come from the L2 cache: that is the
swizzle. The heads of attention are swizzled in the same way. Rows of a grouped product belong to experts, and where an
expert's rows end is known on the device alone. So each warp finds the tiles of its block there: 32 lanes look at 32 experts
at once.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ._device import WARP


def swizzled(index: Int32, tiles_m: Int32, tiles_n: Int32, group: int | Int32) -> tuple[Int32, Int32]:
    """The tile at a position in the order of work. ``group`` rows of tiles are taken together, column by column."""
    first = index // (group * tiles_n) * group
    height = cutlass.min(tiles_m - first, group)
    within = index - first * tiles_n
    return first + within % height, within // height


def causal(index: Int32, heads: Int32, tiles: Int32, group: Int32) -> tuple[Int32, Int32]:
    """The head and the tile of its queries at a position in the order of work.

    Tiles of ``group`` heads are taken together, whose keys and values stay in the L2 cache meanwhile. The last tiles come
    first, because under a causal mask they take longest.
    """
    head, before = swizzled(index, heads, tiles, group)
    return head, tiles - 1 - before


def causal_at_last(
    index: Int32, heads: Int32, tiles: Int32, group: Int32, first: Int32, before: Int32
) -> tuple[Int32, Int32]:
    """The same, after all tiles of the ``first`` heads, which come ``before`` at a time: fewer heads are in work at a time.

    The longest tiles of many heads must come first towards the end, so that all multiprocessors have work until then.
    """
    late = cutlass.min(cutlass.max(index + 1 - first * tiles, 0), 1)
    skipped, own = late * first, first + late * (heads - 2 * first)
    head, tile = causal(index - skipped * tiles, own, tiles, before + late * (group - before))
    return skipped + head, tile


@cute.jit
def swizzled_batch(index: Int32, tiles, group: cutlass.Constexpr) -> tuple[Int32, Int32, Int32]:
    """The tile at a position in the order of work of a batch, one matrix after the other: ``(m, n, batch)``.

    ``tiles`` counts tiles along m and n, and matrices; these can be left out if there is one.
    """
    batch = Int32(0)
    if cutlass.const_expr(len(tiles) == 3):
        batch = index // (tiles[0] * tiles[1])
        index = index % (tiles[0] * tiles[1])
    m, n = swizzled(index, tiles[0], tiles[1], group)
    return m, n, batch


@cute.jit
def rows_of_expert(offsets, expert: Int32):
    """First row of an expert, and the row after its last one; none for experts that do not exist."""
    experts = cute.size(offsets)
    start, end = Int32(0), Int32(0)
    if expert < experts:
        end = offsets[expert]
        if expert > 0:
            start = offsets[expert - 1]
    return start, end


@cute.jit
def count_tiles_of_experts(offsets, tiles_n: Int32, height: cutlass.Constexpr) -> Int32:
    """Tiles, or clusters of tiles, of ``height`` rows of all experts."""
    rows = Int32(0)
    for first in cutlass.range(0, cute.size(offsets), WARP):
        start, end = rows_of_expert(offsets, first + cute.arch.lane_idx())
        rows += cute.ceil_div(end - start, height)
    for i in cutlass.range_constexpr(5):
        rows += cute.arch.shuffle_sync_bfly(rows, offset=1 << i)
    return cute.arch.make_warp_uniform(rows) * tiles_n


@cute.jit
def window_of_experts(offsets, tiles_n: Int32, height: cutlass.Constexpr, first: Int32):
    """Of the expert of this lane, among 32: its rows, and the tiles of all experts of the window up to it."""
    start, end = rows_of_expert(offsets, first + cute.arch.lane_idx())
    own = cute.ceil_div(end - start, height) * tiles_n
    for i in cutlass.range_constexpr(5):  # a scan: each lane adds what those before it have
        before = cute.arch.shuffle_sync_up(own, offset=1 << i)
        if cute.arch.lane_idx() >= (1 << i):
            own += before
    return start, end, own


@cute.jit
def tile_of_expert(
    index: Int32,
    offsets,
    tiles_n: Int32,
    height: cutlass.Constexpr,
    group: cutlass.Constexpr,
    first: Int32,
    before: Int32,
):
    """Where a tile is: its expert, the first and the end of the expert's rows, its place among the expert's tiles.

    ``first`` is the first expert of the window of 32 in which the previous tile was, ``before`` the number of tiles
    before that window; both are returned as well. A warp that begins passes zeros.
    """
    start, end, upto = window_of_experts(offsets, tiles_n, height, first)
    last = cute.arch.shuffle_sync(upto, WARP - 1)
    while before + last <= index:
        first += WARP
        before += last
        start, end, upto = window_of_experts(offsets, tiles_n, height, first)
        last = cute.arch.shuffle_sync(upto, WARP - 1)
    # Experts whose tiles all come before this one. All lanes get the same answer, so that a warp does not diverge.
    lane = cute.arch.popc(cute.arch.vote_ballot_sync(before + upto <= index))
    expert = cute.arch.make_warp_uniform(first + lane)
    start, limit = [cute.arch.make_warp_uniform(cute.arch.shuffle_sync(value, lane)) for value in (start, end)]
    upto = cute.arch.make_warp_uniform(cute.arch.shuffle_sync(upto, lane))
    tiles_m = cute.ceil_div(limit - start, height)
    m, n = swizzled(index - (before + upto - tiles_m * tiles_n), tiles_m, tiles_n, group)
    return expert, start, limit, m, n, first, before
