"""Gradients of attention, apart from its products: which blocks meet, statistics of rows, elements of the gradients.

With ``P = exp(scores - lse)`` and ``dP = grad_out @ v.T``:

* ``grad_v = P.T @ grad_out``
* ``dS = P * (dP - delta)`` with ``delta = sum(grad_out * out)`` of a row; with a soft cap, times the slope of the cap
* ``grad_q = scale * dS @ k`` and ``grad_k = scale * dS.T @ q``

* ``grad_sinks = -sum(exp(sink - lse) * delta)`` over all rows of a head: a sink is a part of ``lse``, and has no value

Scores are computed again, because to keep them would take more memory than everything else. A first kernel computes the
statistics of each row of queries: ``lse`` for powers of two, and ``delta``.

*Rows* are what a block of threads has for its whole life: keys with their values, or queries. *Columns* are what it goes
over: queries, or keys. :class:`Side` says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

import aot

from ..._device import WARP, KernelObject, add, await_previous, fetch, launched_early
from ..._versions import SmemAllocator
from .._softmax import LOG2_E, cap_scores, mask_scores, round_to
from ..prompts._attention import ELEMENT_BYTES, HELD, UNBOUNDED, BatchOrder, Problem, RaggedOrder, SideBySide, Tile

CHUNK = 8  # elements of 16 bytes
SLAB = 32  # columns of the sums of ``grad_q`` that lie side by side: a line of 128 bytes in each row
ROW_THREADS = 256  # of a block that computes statistics
NEAR = 8  # tokens that such a block takes of one head after the other
INFINITY = float("inf")
STREAMED = 8 * 2**20  # bytes of queries and ``grad_out`` of heads that are taken together if sequences lie side by side
# Bytes of queries and ``grad_out`` of a head of which four come together if tiles of keys add in turn; else two.
SHORT = 3 * 2**19
LAST = 512  # tiles that are ordered by their length: about four for each multiprocessor of the largest GPUs
# If queries share keys, their heads have more data than the L2 cache holds: half as many tiles then, but some heads if they are small.
FEWEST, SMALL, SEVERAL = LAST // 2, 64, 16


class Statistics(NamedTuple):
    """Of each row of queries, head by head: ``lse`` times ``log2(e)``, and ``delta``. A row that sees nothing has infinity.

    ``turns``, if it is not none, counts the tiles of keys that have added to the sums of a block of queries, at its first row.
    """

    lse: cute.Tensor
    delta: cute.Tensor
    turns: cute.Tensor | None = None


class Row(NamedTuple):
    """Of which a thread has a part in a kernel over rows: a token of a head."""

    exists: Boolean
    turn: Int32  # how many rows other threads take before it
    number: Int32  # of it, head by head
    place: tuple  # in tensors
    chunk: Int32  # the thread's part


class Blocks(NamedTuple):
    """Blocks of columns that a tile of rows meets: ``begin`` to ``end``. From ``clean_begin`` to ``clean_end`` nothing is masked."""

    begin: Int32
    end: Int32
    clean_begin: Int32
    clean_end: Int32


@dataclass(frozen=True)
class Side:
    """Rows are keys, or queries. A row meets the columns from one place to another."""

    by_keys: bool
    problem: Problem
    tile_rows: int
    tile_columns: int
    in_turn: Boolean | None = None  # whether tiles of keys add to a block of queries in turn: see ``turn``

    def tile_at(self, index: Int32) -> Tile:
        """Under a causal mask, the first keys and the last queries take longest. They come first."""
        tile = self.problem.order.tile_at(index)
        if not self.by_keys:
            return tile
        rising, last = Int32(self.rising(tile)), cute.ceil_div(tile.queries, self.tile_rows) - 1
        own = rising * tile.index + (1 - rising) * (last - tile.index)
        # The order has counted keys as rows: swap them back.
        return Tile(own, tile.head, tile.sequence, tile.tokens, tile.queries, tile.first_token, tile.first_query)

    def rising(self, tile: Tile) -> Boolean:
        """Whether tiles of this head begin with their own queries, and add in turn from the last keys on."""
        order = self.problem.order
        if self.in_turn is None or not isinstance(order, BatchOrder):
            return Boolean(False)
        return self.in_turn & (tile.sequence * order.heads + tile.head < order.first)

    def by_blocks(self, tile: Tile) -> Boolean:
        """Whether the outer loop goes over blocks of columns."""
        return Boolean(False) if self.in_turn is None else self.in_turn & (Int32(self.rising(tile)) == 0)

    def column_heads(self) -> Int32:
        """How many heads of columns a tile of rows meets: keys meet all heads of queries that share them."""
        return self.problem.heads_of_key if self.by_keys else Int32(1)

    def column_head(self, tile: Tile, index: Int32) -> Int32:
        """One of them."""
        share = self.problem.heads_of_key
        return tile.head * share + index if self.by_keys else tile.head // share

    def origins(self, tile: Tile) -> tuple[tuple, tuple]:
        """Where rows, and where columns, of the sequence begin if sequences lie side by side, and how many there are."""
        queries, keys = (tile.first_query, tile.queries), (tile.first_token, tile.tokens)
        return (keys, queries) if self.by_keys else (queries, keys)

    def row_count(self, tile: Tile) -> Int32:
        return tile.tokens if self.by_keys else tile.queries

    def span(self, tile: Tile, row: Int32) -> tuple[Int32, Int32]:
        """The first and the last column that a row meets. The last query is at the place of the last token."""
        if not self.by_keys:
            return self.problem.seen(tile, row)
        own, problem = row - tile.tokens + tile.queries, self.problem
        return cutlass.max(own - problem.right, 0), cutlass.min(own + problem.left, tile.queries - 1)

    def ends(self, tile: Tile) -> tuple[Int32, Int32]:
        """The first and the last row of a tile."""
        first = tile.index * self.tile_rows
        return first, cutlass.min(first + self.tile_rows, self.row_count(tile)) - 1

    def met(self, tile: Tile) -> tuple[Int32, Int32]:
        """The blocks of columns that a tile meets, from the first to the one after the last."""
        first, last = self.ends(tile)
        size, low, high = self.tile_columns, self.span(tile, first)[0], self.span(tile, last)[1]
        begin = low // size
        return begin, cutlass.max((cutlass.max(high, -1) + size) // size, begin)

    @cute.jit
    def blocks(self, tile: Tile) -> Blocks:
        size, (first, last), (begin, end) = self.tile_columns, self.ends(tile), self.met(tile)
        clean_high, clean_low = self.span(tile, first)[1], self.span(tile, last)[0]
        clean_end = (cutlass.max(clean_high, -1) + 1) // size
        # A product over the rows must not meet those past the end.
        clean_end = clean_end if first + self.tile_rows <= self.row_count(tile) else begin
        return Blocks(begin, end, (clean_low + size - 1) // size, clean_end)

    @cute.jit
    def loops(self, tile: Tile, blocks: Blocks):
        """How many rounds the outer, and the inner loop over columns have: heads and blocks, or blocks and heads: see ``by_blocks``."""
        outer, inner = self.column_heads(), blocks.end - blocks.begin
        if self.by_blocks(tile):
            outer, inner = inner, outer
        return outer, inner

    @cute.jit
    def columns_at(self, tile: Tile, blocks: Blocks, outer: Int32, inner: Int32):
        """The block of columns, and the number of the head, that come in a round of both loops.

        Tiles that add in turn from the first keys on begin with the last block, which all of them meet under a causal mask. So each
        is one turn behind the tile before it from then on, and the longest tiles can still be the first.
        """
        head, block = outer, blocks.begin + inner
        if self.by_blocks(tile):
            head, block = inner, blocks.end - 1 - outer
        return block, head

    def turn(self, tile: Tile, block: Int32) -> Int32:
        """How many tiles of keys add to a block of queries before this one. All of them have lower block indices.

        From the last keys on, these are those with later keys, which it sees: at its own queries, a tile is the first. So no
        tile waits to begin. But the longest tiles come last, so the last heads go from the first keys on.
        """
        size, first = self.tile_columns, block * self.tile_columns + tile.tokens - tile.queries
        turn = tile.index - cutlass.max(first - self.problem.left, 0) // self.tile_rows
        if self.in_turn is None:
            return turn
        seen = cutlass.min((block + 1) * size, tile.queries) - 1 + tile.tokens - tile.queries + self.problem.right
        rising, last = Int32(self.rising(tile)), cutlass.min(seen, tile.tokens - 1) // self.tile_rows
        return rising * (last - tile.index) + (1 - rising) * turn

    @cute.jit
    def mask(self, scores, tile, blocks, block, row, column=0):
        """Mask what the two rows of a thread do not meet of a block of columns, from ``column`` on. ``row`` is the first one."""
        if block >= blocks.clean_end or block < blocks.clean_begin:
            for upper in (True, False):
                mask_scores(scores, block * self.tile_columns + column, partial(self.bound, tile, row, upper), upper)

    @cute.jit
    def bound(self, tile, row, upper: cutlass.Constexpr, r: cutlass.Constexpr):
        low, high = self.span(tile, row + 8 * r)
        bound = high if cutlass.const_expr(upper) else low
        if cutlass.const_expr(upper):
            bound = bound if row + 8 * r < self.row_count(tile) else Int32(-1)
        return bound


class Scoring(NamedTuple):
    """How scores become weights: ``2 ** (scale * score - lse)``. With a soft cap, see ``cap_scores``."""

    scale: Float32
    inner: Float32  # 0 without a soft cap
    shift: Float32


def require_room(tiling: Any, what: str, target: aot.Target) -> None:
    """Refuse a tiling if ``what``, its largest part, does not fit into shared memory."""
    if tiling.shared_bytes > target.shared_memory:
        raise aot.DeclarationError(
            f"{what} take {tiling.shared_bytes} bytes; a block of {target.arch} has {target.shared_memory}"
        )


class AttentionBackward(KernelObject):
    """What gradients of all architectures share. Sequences are a ``batch``, or ``ragged``."""

    def __init__(self, tiling: Any, target: aot.Target, layout: str) -> None:
        tiling.validate(target)
        self.tiling = tiling
        self.ragged = layout == "ragged"
        self.early = launched_early(target)

    # Which tiles there are.

    @cute.jit
    def problem(
        self, q: cute.Tensor, k: cute.Tensor, starts, left: Int32, right: Int32, by_keys: cutlass.Constexpr,
        tile_rows: cutlass.Constexpr, in_turn=None,
    ):  # fmt: skip
        """The problem, and how many tiles of rows it has, at most if only the device knows it.

        Tiles of keys take one head after the other, because queries, ``grad_out`` and sums of ``grad_q`` must stay in the L2 cache.
        At last they take many heads together, if the tiles differ in length. ``in_turn``, tiles of one head would wait for each other,
        so several heads come together at first.
        """
        in_turn = False if cutlass.const_expr(in_turn is None) else in_turn
        rows, columns = (k, q) if cutlass.const_expr(by_keys) else (q, k)
        heads, share = rows.shape[-2], q.shape[-2] // k.shape[-2]
        left = cutlass.min(left, UNBOUNDED) if left >= 0 else Int32(UNBOUNDED)
        right = cutlass.min(right, UNBOUNDED) if right >= 0 else Int32(UNBOUNDED)
        if cutlass.const_expr(self.ragged):
            row_starts, column_starts = (starts[1], starts[0]) if cutlass.const_expr(by_keys) else starts
            most = None
            if cutlass.const_expr(by_keys):
                size = (self.tiling.dim + self.tiling.value_dim) * ELEMENT_BYTES * share
                most = Int32(2**31 - 1) if in_turn else STREAMED // size
            order = RaggedOrder(row_starts, SideBySide(column_starts), tile_rows, heads, most)
            sequences = cute.size(row_starts) - 1
            count = (rows.shape[0] // tile_rows + sequences) * heads if rows.shape[0] > 0 else Int32(0)
        else:
            size = columns.shape[1] * ((self.tiling.dim + self.tiling.value_dim) * ELEMENT_BYTES)
            size = size * share if cutlass.const_expr(by_keys) else size
            together = cutlass.max(cutlass.min(HELD // cutlass.max(size, 1), 65536), 1)
            together = together if cutlass.const_expr(by_keys) else together * share
            tiles = cute.ceil_div(rows.shape[1], tile_rows)
            first, before = None, Int32(1)
            if cutlass.const_expr(by_keys):
                at_last = self.at_last(tiles, heads * rows.shape[0], share) if right < UNBOUNDED else Int32(0)
                equal = Boolean(in_turn) & (right >= UNBOUNDED)  # tiles that add in turn, and do not differ in length
                first = Int32(0) if equal else cutlass.max(heads * rows.shape[0] - at_last, 0)
                together = together if equal else cutlass.max(at_last, 1)
                several = Int32(4) if size <= SHORT else Int32(2)
                before = several if in_turn else Int32(1)
            order = BatchOrder(tiles, heads, rows.shape[0], rows.shape[1], columns.shape[1], together, first, before)
            count = order.count()
        return Problem(order, left, right, share), count

    @cute.jit
    def at_last(self, tiles, heads, share):
        """How many of the ``heads`` of keys tiles of keys take together at last, if they differ in length. A head has some ``tiles``.

        ``share``: heads of queries that share a head of keys.
        """
        tiles = cutlass.max(tiles, 1)
        most, fewest = cute.ceil_div(LAST, tiles), cute.ceil_div(FEWEST, tiles)
        if cutlass.const_expr(self.tiling.dim <= SMALL):
            fewest = cutlass.min(cutlass.max(fewest, SEVERAL), most)
        return fewest if share > 1 and heads > most else most

    def of_sequence(self, x: cute.Tensor, sequence: Int32, first, head: Int32) -> cute.Tensor:
        """Tokens x elements of one head of a sequence."""
        if self.ragged:
            return cute.domain_offset((first, 0), x[None, head, None])
        return x[sequence, None, head, None]

    def statistics_of(self, statistics: Statistics, tile: Tile, head: Int32) -> Statistics:
        """Those of the queries of a sequence."""
        first = tile.first_query if self.ragged else tile.sequence * tile.queries
        return Statistics(*(cute.domain_offset((first,), x[head, None]) for x in statistics if x is not None))

    def turns_of(self, statistics: Statistics, tile: Tile) -> cute.Tensor:
        """Of all heads, those of the queries of a sequence."""
        first = tile.first_query if self.ragged else tile.sequence * tile.queries
        return cute.domain_offset((0, first), statistics.turns)

    # Statistics of queries.

    def row_statistics(self, statistics: Statistics, tile: Tile, row: Int32) -> list[list[Float32]]:
        """Those of a thread's two rows, if rows are queries. The last query stands for those past the end."""
        own = self.statistics_of(statistics, tile, tile.head)
        return [[x[cutlass.min(row + 8 * r, tile.queries - 1)] for r in range(2)] for x in own[:2]]

    def statistics(self, scratch: cute.Tensor, skipped, q: cute.Tensor, turns: bool = False) -> Statistics:
        """Where they are in the workspace: after ``skipped`` elements."""
        heads, rows = q.shape[-2], q.shape[0] if self.ragged else q.shape[0] * q.shape[1]
        layout = cute.make_layout((heads, rows), stride=(rows, 1))
        lse = cute.make_tensor(scratch.iterator + skipped, layout)
        delta = cute.make_tensor(lse.iterator + heads * rows, layout)
        if not turns:
            return Statistics(lse, delta)
        counts = cute.recast_ptr(delta.iterator + heads * rows, dtype=Int32)
        return Statistics(lse, delta, cute.make_tensor(counts, layout))

    @cute.jit
    def scoring(self, scale: Float32, soft_cap: Float32):
        capped = soft_cap > 0.0
        inner = scale / soft_cap * (2 * LOG2_E) if capped else Float32(0)
        scale = (2 * soft_cap if capped else scale) * LOG2_E
        return Scoring(scale, inner, scale / 2 if capped else Float32(0))

    def row_lanes(self, width: int) -> int:
        """Threads that share a row of that many elements: a power of two."""
        return 1 << (width // CHUNK - 1).bit_length()

    def tokens_of(self, q: cute.Tensor) -> Int32:
        """Tokens of all sequences."""
        return q.shape[0] if self.ragged else q.shape[0] * q.shape[1]

    def row_launch(self, q: cute.Tensor, width: int, stream, each: int = 1) -> dict:
        """The arguments of ``launch`` of a kernel that takes all rows of all heads. A thread has a part of ``each`` rows."""
        rows = cute.ceil_div(self.tokens_of(q), NEAR) * NEAR * q.shape[-2]
        blocks = cute.ceil_div(rows, ROW_THREADS // self.row_lanes(width) * each)
        return {"grid": [blocks, 1, 1], "block": [ROW_THREADS, 1, 1], "use_pdl": self.early, "stream": stream}

    def row_of_thread(self, q: cute.Tensor, width: int, each: int = 1, one: int = 0) -> Row:
        """Threads take some tokens of a head, then the same tokens of the next head.

        In most tensors, heads of a token lie side by side; in the workspace, tokens of a head. So both are moved in long pieces.
        """
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        lanes, tokens, heads = self.row_lanes(width), self.tokens_of(q), q.shape[-2]
        turn = (block * each + one) * (ROW_THREADS // lanes) + thread // lanes
        near = turn // NEAR
        head, token = near % heads, near // heads * NEAR + turn % NEAR
        place = (token, head) if self.ragged else (token // q.shape[1], token % q.shape[1], head)
        return Row(token < tokens, turn, head * tokens + token, place, thread % lanes)

    def place_of_sums(self, place: tuple, chunk: Int32, size: int) -> tuple:
        """Where the sums are that belong to a chunk of a row of queries: which row of them, and which chunk of it."""
        *outer, head = place
        own = (*outer, head * (self.tiling.dim // SLAB) + chunk // (SLAB // size), None)
        return own, chunk % (SLAB // size)

    def widest(self, sums) -> int:
        """Elements of a row that the kernel below reads, or clears."""
        return self.tiling.value_dim if sums is None else max(self.tiling.dim, self.tiling.value_dim)

    @cute.kernel
    def row_kernel(
        self, grad_out: cute.Tensor, out: cute.Tensor, lse: cute.Tensor, statistics: Statistics, sums, grad_sinks
    ):
        """The statistics of all rows. ``sums`` and ``grad_sinks``, if they are not none, become zero."""
        width, dim = self.tiling.value_dim, self.tiling.dim
        row = self.row_of_thread(out, self.widest(sums))
        await_previous(self.early)
        if cutlass.const_expr(grad_sinks is not None):  # noqa: SIM102 (known when the kernel is compiled)
            if cute.arch.block_idx()[0] == 0:
                for head in cutlass.range(cute.arch.thread_idx()[0], grad_sinks.shape[0], ROW_THREADS, unroll=1):
                    grad_sinks[head] = Float32(0)
        delta = Float32(0)
        rows = cute.size(statistics.lse)
        if row.exists and row.chunk < width // CHUNK:
            left = fetch(grad_out[(*row.place, None)], row.chunk, CHUNK).load().to(Float32)
            right = fetch(out[(*row.place, None)], row.chunk, CHUNK).load().to(Float32)
            delta = (left * right).reduce(cute.ReductionOp.ADD, 0.0, 0)
        if cutlass.const_expr(sums is not None):  # noqa: SIM102 (known when the kernel is compiled)
            if row.turn < rows and row.chunk < dim // CHUNK:
                zeros = cute.make_rmem_tensor(CHUNK, Float32)
                zeros.fill(0.0)
                # All become zero, so that it does not matter which of them a thread takes.
                line = cute.make_tensor(sums.iterator, cute.make_layout(cute.size(sums)))
                cute.autovec_copy(
                    zeros, cute.local_tile(line, (CHUNK,), (Int64(row.turn) * (dim // CHUNK) + row.chunk,))
                )
        delta = cute.arch.warp_reduction(delta, add, threads_in_group=self.row_lanes(self.widest(sums)))
        if row.exists and row.chunk == 0:
            logarithm = lse[row.place]
            logarithm = logarithm * LOG2_E if logarithm > -INFINITY else Float32(INFINITY)
            for target, value in zip(statistics, (logarithm, delta, Int32(0)), strict=True):
                if cutlass.const_expr(target is not None):
                    cute.make_tensor(target.iterator, cute.make_layout(rows))[row.number] = value

    @cute.jit
    def launch_sinks(self, sinks, lse, statistics, grad_sinks: cute.Tensor, stream):
        heads = grad_sinks.shape[0]
        if heads > 0:
            self.sink_kernel(sinks, lse, statistics, grad_sinks).launch(
                grid=[heads, 1, 1], block=[ROW_THREADS, 1, 1], use_pdl=self.early, stream=stream
            )

    @cute.kernel
    def sink_kernel(self, sinks, lse, statistics, grad_sinks: cute.Tensor):
        """The gradient of a head's sink, in a fixed order; zero without sinks. A block has one head."""
        thread, _, _ = cute.arch.thread_idx()
        head, _, _ = cute.arch.block_idx()
        await_previous(self.early)
        total = Float32(0)
        if cutlass.const_expr(sinks is not None):
            # The difference comes first: it is exact where it matters, which multiples of both are not.
            heads, rows = statistics.delta.shape
            own = cute.make_tensor(lse.iterator, cute.make_layout((rows, heads), stride=(heads, 1)))
            for row in cutlass.range(thread, rows, ROW_THREADS, unroll=4):
                logarithm = own[row, head]
                weight = cute.math.exp2((sinks[head] - logarithm) * LOG2_E, fastmath=True)
                weight = weight if logarithm > -INFINITY else Float32(0)
                total -= weight * statistics.delta[head, row]
        total = cute.arch.warp_reduction(total, add)
        of_warps = SmemAllocator().allocate_tensor(Float32, cute.make_layout(ROW_THREADS // WARP))
        if thread % WARP == 0:
            of_warps[thread // WARP] = total
        cute.arch.sync_threads()  # the sums of all warps are there
        if thread == 0:
            for i in cutlass.range_constexpr(1, ROW_THREADS // WARP):
                total += of_warps[i]
            grad_sinks[head] = total

    # Elements.

    @cute.jit
    def cap(self, scores, scoring):
        """With a soft cap, scores become what ``cap_scores`` makes of them. Mask them after that."""
        if scoring.inner > 0.0:
            cap_scores(scores, scoring, often=False)

    @cute.jit
    def weigh(self, scores, weights, scoring, lse, statistic: cutlass.Constexpr):
        """Scores become ``P``, which is rounded to ``weights`` unless that is none; then, with a soft cap, times the slope of the cap.

        ``statistic(i)`` tells which of a thread's values of ``lse`` belongs to accumulator ``i``.
        """
        if scoring.inner > 0.0:
            for i in cutlass.range_constexpr(0, cute.size(scores), 2):
                halves, pair = [scores[i], scores[i + 1]], cute.make_rmem_tensor(2, Float32)
                for j in cutlass.range_constexpr(2):  # (tanh - 1) / 2, or minus infinity if it is masked
                    own = scoring.shift - lse[statistic(i + j)]
                    pair[j] = cute.math.exp2(halves[j] * scoring.scale + own, fastmath=True)
                    half = cute.arch.fmax(halves[j], -1.0)
                    scores[i + j] = pair[j] * (-4.0 * half * (1.0 + half))
                if cutlass.const_expr(weights is not None):
                    rounded = cute.make_tensor(weights.iterator + i, cute.make_layout(2))
                    rounded.store(pair.load().to(weights.element_type))
        else:
            for i in cutlass.range_constexpr(cute.size(scores)):
                scores[i] = cute.math.exp2(scores[i] * scoring.scale - lse[statistic(i)], fastmath=True)
            if cutlass.const_expr(weights is not None):
                round_to(weights, scores)

    @cute.jit
    def gradient_of_scores(self, scores, slopes, scoring, lse, delta, statistic: cutlass.Constexpr):
        """Scores become weights ``P``; ``slopes``, which are ``dP``, become ``dS``.

        ``statistic(i)`` tells which of a thread's values of ``lse`` and ``delta`` belong to accumulator ``i``.
        """
        if scoring.inner > 0.0:
            for i in cutlass.range_constexpr(cute.size(scores)):
                own, half = statistic(i), scores[i]  # (tanh - 1) / 2, or minus infinity if it is masked
                weight = cute.math.exp2(half * scoring.scale + (scoring.shift - lse[own]), fastmath=True)
                scores[i] = weight
                half = cute.arch.fmax(half, -1.0)
                slopes[i] = weight * (slopes[i] - delta[own]) * (-4.0 * half * (1.0 + half))
        else:
            for i in cutlass.range_constexpr(cute.size(scores)):
                own = statistic(i)
                weight = cute.math.exp2(scores[i] * scoring.scale - lse[own], fastmath=True)
                scores[i] = weight
                slopes[i] = weight * (slopes[i] - delta[own])


def row_of(i: int) -> int:
    """Which of a thread's two rows accumulator ``i`` belongs to."""
    return i // 2 % 2


def column_of(i: int) -> int:
    """Which of a thread's columns accumulator ``i`` belongs to."""
    return i // 4 * 2 + i % 2
