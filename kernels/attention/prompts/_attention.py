"""Attention of whole sequences, apart from its products: the tile scheduler, what the rows of a tile see, the end of a tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

import aot

from ..._device import WARP, KernelObject, launched_early
from ..._scheduler import causal, causal_at_last
from .._schedule import Sequences
from .._softmax import LOG2_E, MINUS_INFINITY, Softmax, cap_scores, make_softmax, mask_scores, scale_sums

UNBOUNDED = 2**30  # tokens
HELD = 32 * 2**20  # bytes of keys and values that stay in the L2 cache
ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Tiling:
    """``rows`` queries against ``tokens`` keys at a time."""

    rows: int
    tokens: int
    dim: int
    value_dim: int

    @property
    def label(self) -> str:
        return f"tile{self.rows}x{self.tokens}"

    @property
    def query_bytes(self) -> int:
        return self.rows * self.dim * ELEMENT_BYTES

    @property
    def key_bytes(self) -> int:
        """Of one stage."""
        return self.tokens * self.dim * ELEMENT_BYTES

    @property
    def value_bytes(self) -> int:
        return self.tokens * self.value_dim * ELEMENT_BYTES


class Tile(NamedTuple):
    """Tile ``index`` of one head of a sequence, and what is known of the sequence."""

    index: Int32
    head: Int32
    sequence: Int32
    queries: Int32
    tokens: Int32
    first_query: Int32 | None = None  # if queries of sequences lie side by side
    first_token: Int32 | None = None  # if keys and values do


class BatchOrder(NamedTuple):
    """Sequences of one length. The order of work takes the tiles of ``together`` heads at a time: see ``causal``.

    If ``first`` is not none, it takes these heads before, ``before`` at a time: see ``causal_at_last``.
    """

    tiles: Int32
    heads: Int32
    sequences: Int32
    queries: Int32
    tokens: Int32
    together: Int32
    first: Int32 | None = None
    before: Int32 | None = None

    def count(self) -> Int32:
        return self.tiles * self.heads * self.sequences

    def tile_at(self, index: Int32) -> Tile:
        heads = self.heads * self.sequences
        if self.first is None:
            head, tile = causal(index, heads, self.tiles, self.together)
        else:
            head, tile = causal_at_last(index, heads, self.tiles, self.together, self.first, self.before)
        sequence = head // self.heads
        return Tile(tile, head - sequence * self.heads, sequence, self.queries, self.tokens)


class SideBySide(NamedTuple):
    """Keys and values of sequences that lie side by side, by where each begins. One more place says where the last ends."""

    starts: cute.Tensor

    def of(self, sequence: Int32) -> tuple[Int32, Int32]:
        """Where the tokens of a sequence begin, and how many there are."""
        first = self.starts[sequence]
        return first, cutlass.max(self.starts[sequence + 1] - first, 0)


class InPages(NamedTuple):
    """Keys and values of sequences in pages, by the length of each. A length above ``capacity`` is taken as that."""

    lengths: cute.Tensor
    capacity: Int32

    def of(self, sequence: Int32) -> tuple[None, Int32]:
        return None, cutlass.max(cutlass.min(self.lengths[sequence], self.capacity), 0)


class Starts(Sequences):
    """Sequences by where each begins. One more place says where the last one ends."""

    def count(self) -> Int32:
        return cute.size(self.lengths) - 1

    def length(self, sequence: Int32) -> Int32:
        return cutlass.max(self.lengths[sequence + 1] - self.lengths[sequence], 0)


class RaggedOrder(NamedTuple):
    """Queries of sequences that lie side by side. Sequence by sequence, the last tiles of all heads come first.

    If ``most`` is not none, heads of a sequence are taken together as long as they have that many tokens at most. Only the
    device knows how many tiles there are. All lanes of a warp find them together.
    """

    q_starts: cute.Tensor
    tokens: SideBySide | InPages
    rows: int
    heads: Int32
    most: Int32 | None = None

    def sequences(self) -> Starts:
        return Starts(self.q_starts, Int32(0), self.rows, self.heads)

    def count(self) -> Int32:
        sums = self.sequences().sums()
        return cute.arch.shuffle_sync(sums, WARP - 1) * self.heads

    def tile_at(self, index: Int32) -> Tile:
        sequences = self.sequences()
        sums = sequences.sums()
        sequence, before = sequences.find(index, sums)
        within = index - before * self.heads
        first_token, tokens = self.tokens.of(sequence)
        tiles, together = sequences.tiles(sequence), self.heads
        if self.most is not None:
            together = cutlass.min(cutlass.max(self.most // cutlass.max(tokens, 1), 1), self.heads)
        head, tile = causal(within, self.heads, tiles, together)
        first_query = self.q_starts[sequence]
        return Tile(tile, head, sequence, sequences.length(sequence), tokens, first_query, first_token)


class Bounds(NamedTuple):
    """What a tile sees: blocks of tokens ``begin`` to ``end``. All its rows see ``clean_begin`` to ``clean_end`` whole."""

    begin: Int32
    end: Int32
    clean_begin: Int32
    clean_end: Int32


class Problem(NamedTuple):
    """What all warps derive their work from."""

    order: BatchOrder | RaggedOrder
    left: Int32
    right: Int32
    heads_of_key: Int32

    def seen(self, tile: Tile, row: Int32) -> tuple[Int32, Int32]:
        """The first and the last token that a query sees. The last query is at the place of the last token."""
        own = row + tile.tokens - tile.queries
        return cutlass.max(own - self.left, 0), cutlass.min(own + self.right, tile.tokens - 1)

    def bounds(self, tile: Tile, tiling: Any) -> Bounds:
        """There is always one block, be it only to be masked, so that no tile is a special case."""
        size = tiling.tokens
        first = tile.index * tiling.rows
        last = cutlass.min(first + tiling.rows, tile.queries) - 1
        (low, clean_high), (clean_low, high) = self.seen(tile, first), self.seen(tile, last)
        begin = low // size
        end = cutlass.max((cutlass.max(high, -1) + size) // size, begin + 1)
        return Bounds(begin, end, (clean_low + size - 1) // size, (cutlass.max(clean_high, -1) + 1) // size)


@dataclass(frozen=True)
class View:
    """What a thread's two rows of a tile see. ``row`` is the first of them, within the tile."""

    problem: Problem
    tile: Tile
    bounds: Bounds
    row: Int32
    tiling: Any

    @cute.jit
    def mask(self, scores, softmax, block, border: cutlass.Constexpr):
        """Cap the scores of a block, and mask them if it is at the ``border`` of what the rows see, or the first block."""
        if softmax.inner > 0.0:
            cap_scores(scores, softmax, often=border == "none")
        if cutlass.const_expr(border == "first"):
            if block >= self.bounds.clean_end:
                self.mask_side(scores, block, upper=True)
            if block < self.bounds.clean_begin:
                self.mask_side(scores, block, upper=False)
        if cutlass.const_expr(border == "upper"):
            self.mask_side(scores, block, upper=True)
            if block < self.bounds.clean_begin:  # a narrow window has both borders in one block
                self.mask_side(scores, block, upper=False)
        if cutlass.const_expr(border == "lower"):
            self.mask_side(scores, block, upper=False)

    @cute.jit
    def mask_side(self, scores, block, upper: cutlass.Constexpr):
        mask_scores(scores, block * self.tiling.tokens, partial(self.bound, upper), upper)

    def bound(self, upper: bool, r: int) -> Int32:
        low, high = self.problem.seen(self.tile, self.tile.index * self.tiling.rows + self.row + 8 * r)
        return high if upper else low


class Attention(KernelObject):
    """How sequences lie in memory is the ``layout``.

    * ``batch``: they have one length, and a mode of the tensors tells them apart.
    * ``ragged``: they lie side by side, and tensors on the device say where each begins.
    * ``pages``: queries lie side by side. Keys and values are in pages, which a table on the device names.
    """

    def __init__(self, tiling: Any, target: aot.Target, layout: str) -> None:
        tiling.validate(target)
        self.tiling = tiling
        self.ragged = layout != "batch"
        self.paged = layout == "pages"
        self.early = launched_early(target)

    @cute.jit
    def problem(self, q: cute.Tensor, k: cute.Tensor, q_starts, k_starts, pages, lengths, left: Int32, right: Int32):
        """The problem, and how many tiles it has, at most if only the device knows it."""
        tiling = self.tiling
        heads, key_heads = q.shape[-2], k.shape[-2]
        left = cutlass.min(left, UNBOUNDED) if left >= 0 else Int32(UNBOUNDED)
        right = cutlass.min(right, UNBOUNDED) if right >= 0 else Int32(UNBOUNDED)
        if cutlass.const_expr(self.ragged):
            sequences = cute.size(q_starts) - 1
            if cutlass.const_expr(self.paged):
                tokens = InPages(lengths, pages.shape[1] * k.shape[1] if k.shape[0] > 0 else Int32(0))
            else:
                tokens = SideBySide(k_starts)
            order = RaggedOrder(q_starts, tokens, tiling.rows, heads)
            count = (q.shape[0] // tiling.rows + sequences) * heads if q.shape[0] > 0 else Int32(0)
        else:
            # Heads whose keys and values fit into the L2 cache together.
            size = k.shape[1] * ((tiling.dim + tiling.value_dim) * ELEMENT_BYTES)
            together = cutlass.max(cutlass.min(HELD // cutlass.max(size, 1), 65536), 1) * (heads // key_heads)
            order = BatchOrder(
                cute.ceil_div(q.shape[1], tiling.rows), heads, q.shape[0], q.shape[1], k.shape[1], together
            )
            count = order.count()
        return Problem(order, left, right, heads // key_heads), count

    @cute.jit
    def scales(self, scale: Float32, soft_cap: Float32):
        """The factors of :class:`Softmax`: scores are for powers of two."""
        capped = soft_cap > 0.0
        inner = scale / soft_cap * (2 * LOG2_E) if capped else Float32(0)
        return (2 * soft_cap if capped else scale) * LOG2_E, inner

    @cute.jit
    def softmax(self, scale: Float32, inner: Float32) -> Softmax:
        return make_softmax(scale, inner, scale / 2 if inner > 0.0 else Float32(0))

    @cute.jit
    def finish(self, sums, softmax, lse, sinks, tile, row):
        """Divide the sums by the sum of weights. A sink is one more token, whose value is zero."""
        inverses = []
        for r in cutlass.range_constexpr(2):
            total = softmax.total(r)
            offset, share = softmax.offsets[r] + softmax.shift, Float32(1)
            if cutlass.const_expr(sinks is not None):
                sink = sinks[tile.head] * LOG2_E
                top = cute.arch.fmax(offset, sink)
                top = top if top > MINUS_INFINITY else Float32(0)
                share = cute.math.exp2(offset - top, fastmath=True)
                total = total * share + cute.math.exp2(sink - top, fastmath=True)
                offset = top
            inverses.append(share / total if total != 0.0 else Float32(0))  # a row that sees no token is zero
            if cutlass.const_expr(lse is not None):
                own = tile.index * self.tiling.rows + row + 8 * r
                if cute.arch.lane_idx() % 4 == 0 and own < tile.queries:
                    logarithm = (offset + cute.math.log2(total, fastmath=True)) / LOG2_E
                    logarithm = logarithm if total != 0.0 else Float32(MINUS_INFINITY)
                    if cutlass.const_expr(self.ragged):
                        lse[tile.first_query + own, tile.head] = logarithm
                    else:
                        lse[tile.sequence, own, tile.head] = logarithm
        scale_sums(sums, inverses)
