"""Attention of whole sequences, apart from its products: which tile comes next, what its rows see, the running softmax.

The tensor cores leave the sums of a 16 x 8 block in a thread's registers in this way: two rows that are 8 apart, and two
neighbouring columns of each. Blocks of 8 columns follow each other. So a thread's scores are
``scores[4 * n + 2 * r + c]``, row ``r`` and column ``8 * n + c``, and four threads share a row. The left operand of a product
has the same order, so weights become one by rounding alone.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

import aot

from .._device import WARP, KernelObject, launched_early
from ..rows._rows import add
from ._schedule import Sequences

LOG2_E = math.log2(math.e)
MINUS_INFINITY = float("-inf")
UNBOUNDED = 2**30  # tokens
HELD = 32 * 2**20  # bytes of keys and values that stay in the L2 cache
SLACK = 8.0  # see ``soften``
# Of a polynomial in x**2, highest power first: tanh(x / 2 / LOG2_E) / 2 / x, up to x / 2 / LOG2_E = BENDABLE. With f32 it is
# exact to 2**-21.
BENDABLE = 0.8
BENDING = (4.3498744e-07, -1.4752611e-05, 3.3071689e-04, -6.9362988e-03, 1.7328661e-01)
ELEMENT_BYTES = 2


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
    """Sequences of one length. The order of work takes the tiles of ``together`` heads at a time.

    Of these, the last tiles come first, because under a causal mask they take longest. Keys and values of these heads
    stay in the L2 cache meanwhile.
    """

    tiles: Int32
    heads: Int32
    sequences: Int32
    queries: Int32
    tokens: Int32
    together: Int32

    def count(self) -> Int32:
        return self.tiles * self.heads * self.sequences

    def tile_at(self, index: Int32) -> Tile:
        first = index // (self.together * self.tiles) * self.together
        width = cutlass.min(self.heads * self.sequences - first, self.together)
        within = index - first * self.tiles
        head = first + within % width
        sequence = head // self.heads
        tile = self.tiles - 1 - within // width
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

    Only the device knows how many tiles there are. All lanes of a warp find them together.
    """

    q_starts: cute.Tensor
    tokens: SideBySide | InPages
    rows: int
    heads: Int32

    def sequences(self) -> Starts:
        return Starts(self.q_starts, Int32(0), self.rows, self.heads)

    def count(self) -> Int32:
        sequences = self.sequences()
        return sequences.total() * self.heads

    def tile_at(self, index: Int32) -> Tile:
        sequences = self.sequences()
        sequence, before = sequences.find(index)
        within = index - before * self.heads
        tile = sequences.tiles(sequence) - 1 - within // self.heads
        first_token, tokens = self.tokens.of(sequence)
        first_query = self.q_starts[sequence]
        return Tile(tile, within % self.heads, sequence, sequences.length(sequence), tokens, first_query, first_token)


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


class Softmax(NamedTuple):
    """The running softmax of a thread's two rows. Weights are ``2 ** (scale * score - offset)``.

    With a soft cap, scores are bent first, and ``shift`` is missing in ``scale * score``: see ``bend``.
    """

    scale: Float32
    inner: Float32  # 0 without a soft cap
    shift: Float32  # likewise
    offsets: cute.Tensor
    totals: cute.Tensor  # of the weights that this thread has seen

    def reset(self) -> None:
        self.offsets.fill(MINUS_INFINITY)
        self.totals.fill(0.0)


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
        offsets, totals = (cute.make_rmem_tensor(2, Float32) for _ in range(2))
        shift = scale / 2 if inner > 0.0 else Float32(0)
        return Softmax(scale, inner, shift, offsets, totals)

    @cute.jit
    def cap(self, scores, softmax, often: cutlass.Constexpr):
        """With a soft cap, bend the scores. Only code that runs ``often`` has the faster way too, to be compiled sooner."""
        if softmax.inner > 0.0:
            if cutlass.const_expr(often):
                self.bend(scores, softmax)
            else:
                self.bend_far(scores, softmax)

    @cute.jit
    def bend(self, scores, softmax):
        """What a hyperbolic tangent has of the score: ``tanh(x) = 1 + 2 * bent`` with ``bent = -1 / (e ** (2 * x) + 1)``.

        If no score of this warp exceeds ``BENDABLE`` parts of the cap, a polynomial gives it. The tangent of the hardware
        is not exact enough: its error of 2**-11, times a cap of 50, would change weights by 2%.
        """
        tops = [Float32(0) for _ in range(4)]
        for i in cutlass.range_constexpr(cute.size(scores)):
            tops[i % 4] = cute.arch.fmax(tops[i % 4], cute.math.abs(scores[i]))
        top = cute.arch.fmax(cute.arch.fmax(tops[0], tops[1]), cute.arch.fmax(tops[2], tops[3]))
        if cute.arch.vote_all_sync(top * softmax.inner <= BENDABLE * 2 * LOG2_E):
            for i in cutlass.range_constexpr(cute.size(scores)):
                power = scores[i] * softmax.inner  # of two
                square = power * power
                factor = Float32(BENDING[0])
                for coefficient in BENDING[1:]:
                    factor = factor * square + coefficient
                scores[i] = power * factor - 0.5
        else:
            self.bend_far(scores, softmax)

    @cute.jit
    def bend_far(self, scores, softmax):
        """The same for all scores.

        Powers and reciprocals have a unit of their own, which is the limit here. So four reciprocals come from one, that
        of the product of all four. Powers end at 2**30, for which the result is 1 in f32 and the product in range.
        """
        for i in cutlass.range_constexpr(0, cute.size(scores), 4):
            a, b, c, d = (
                cute.math.exp2(cute.arch.fmin(scores[i + j] * softmax.inner, 30.0), fastmath=True) + 1 for j in range(4)
            )
            ab, cd = a * b, c * d
            inverse = -cute.arch.rcp_approx(ab * cd)
            ab, cd = inverse * cd, inverse * ab  # -1 over the products
            for j, bent in enumerate((ab * b, ab * a, cd * d, cd * c)):
                scores[i + j] = bent

    @cute.jit
    def mask(self, scores, block, tile, problem, row, upper: cutlass.Constexpr):
        """Take out tokens after the last one that a row sees, or before the first one. ``row``: a thread's first row."""
        tiling = self.tiling
        start = block * tiling.tokens + cute.arch.lane_idx() % 4 * 2
        for r in cutlass.range_constexpr(2):
            low, high = problem.seen(tile, tile.index * tiling.rows + row + 8 * r)
            for n in cutlass.range_constexpr(tiling.tokens // 8):
                for c in cutlass.range_constexpr(2):
                    i, place = 4 * n + 2 * r + c, 8 * n + c
                    inside = high - start >= place if cutlass.const_expr(upper) else low - start <= place
                    scores[i] = scores[i] if inside else Float32(MINUS_INFINITY)

    @cute.jit
    def finish(self, sums, softmax, lse, sinks, tile, row):
        """Divide the sums by the sum of weights. A sink is one more token, whose value is zero."""
        inverses = []
        for r in cutlass.range_constexpr(2):
            total = cute.arch.warp_reduction(softmax.totals[r], add, threads_in_group=4)
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


@cute.jit
def soften(scores, softmax):
    """A step of the running softmax: scores become weights.

    Returns by which factors to scale earlier sums, and whether this warp has a factor that is not 1. Offsets need not
    be the largest score. They only keep weights in range. So an offset stays as it is until a score exceeds it by
    more than ``SLACK``: weights up to ``2 ** SLACK`` are as exact as others, and sums are rarely scaled.
    """
    lanes = 4  # independent chains of operations
    factors, grown = [], []
    for r in cutlass.range_constexpr(2):
        row = [4 * n + 2 * r + c for n in range(cute.size(scores) // 4) for c in range(2)]
        tops = [scores[i] for i in row[:lanes]]
        for place in cutlass.range_constexpr(lanes, len(row)):
            tops[place % lanes] = cute.arch.fmax(tops[place % lanes], scores[row[place]])
        top = cute.arch.fmax(cute.arch.fmax(tops[0], tops[1]), cute.arch.fmax(tops[2], tops[3]))
        top = cute.arch.warp_reduction(top, cute.arch.fmax, threads_in_group=4) * softmax.scale
        old = softmax.offsets[r]
        grows = top > old + SLACK
        offset = top if grows else old
        # A row that has seen nothing yet has no offset. Any number will do: its weights are 0.
        finite = offset if offset > MINUS_INFINITY else Float32(0)
        factor = cute.math.exp2(old - finite, fastmath=True)
        parts = [Float32(0) for _ in range(lanes)]
        for place in cutlass.range_constexpr(len(row)):
            weight = cute.math.exp2(scores[row[place]] * softmax.scale - finite, fastmath=True)
            scores[row[place]] = weight
            parts[place % lanes] = parts[place % lanes] + weight
        softmax.totals[r] = softmax.totals[r] * factor + ((parts[0] + parts[1]) + (parts[2] + parts[3]))
        softmax.offsets[r] = offset
        factors.append(factor)
        grown.append(grows)
    return factors, cute.arch.vote_any_sync(grown[0] | grown[1])


@cute.jit
def scale_sums(sums, factors):
    for i in cutlass.range_constexpr(cute.size(sums)):
        sums[i] = sums[i] * factors[i // 2 % 2]


def thread_row(thread: Int32) -> Int32:
    """The first of the two rows of a thread, if each warp has 16 rows."""
    return thread // WARP * 16 + thread % WARP // 4


def narrow(values: cute.Tensor, rounded: cute.Tensor) -> None:
    """Round values in the order of registers. Eight at a time become four instructions, however many there are."""
    size = 8
    for i in range(cute.size(values) // size):
        source = cute.make_tensor(values.iterator + i * size, cute.make_layout(size))
        target = cute.make_tensor(rounded.iterator + i * size, cute.make_layout(size))
        target.store(source.load().to(rounded.element_type))
