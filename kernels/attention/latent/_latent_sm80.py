"""Attention of new tokens against a cache of latent vectors, for sm_80 and later: cp.async, ldmatrix, mma.sync.

A token of such a cache is one vector of 576 elements for all heads. The whole vector is the key, its first 512 elements are
the value. So a tile of the cache is read once and used twice.

* **Rows.** The heads of all new tokens of a sequence are rows of one matrix. A block has one or two *bands* of 16 rows, and
  four warps for each band.
* **Scores.** Each of the four warps has a quarter of the columns of its rows, in registers: of every line of 64 columns, 16.
  So its scores are sums over a quarter of the columns. The four add them up through shared memory, all in the same order,
  and each computes the same weights.
* **Sums.** Each of the four warps owns a quarter of the 512 columns of the result.
* **Tails.** Tokens past the end of a sequence are not read: the last token is read in their place, and its score is
  replaced by minus infinity.
* **f8e4m3.** Threads read a narrow cache through registers, a tile ahead, and convert it, exactly, on its way to shared memory.
* **Splits.** As for all caches: see ``_schedule`` and ``_merge``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import warp
from cutlass.utils import LayoutEnum

import aot

from ..._device import WARP, fetch
from ..._versions import SmemAllocator
from ...sm80 import tiles
from ...sm80.tiles import CHUNK, ELEMENT_BYTES, LINE, MMA, SWIZZLED
from .._pages import find_token
from .._softmax import LOG2_E, Softmax, make_softmax, round_to, scale_sums, softmax_step
from ..decoding._cache_sm90 import MAX_BLOCKS
from ..decoding._merge import Call, Merging, Output, Piece, scale_of
from ._latent_sm90 import KEY, VALUE

TOKENS = 32  # of a tile
QUARTERS = 4  # of the columns
KEY_LINES = KEY // LINE
OWN_LINES = VALUE // LINE // QUARTERS  # of the result, that one warp sums
STAGES = 4  # at most
TILE_BYTES = TOKENS * KEY * ELEMENT_BYTES


class TilesInTurn(Merging):
    """Blocks that take the tiles of their run one after the other, while cp.async copies the next ones.

    Subclasses define the ``place`` and the ``work`` of a thread, and what it does with a tile: they ``prepare`` queries,
    ``copy_step``, ``score``, ``mask``, compute ``weights``, ``weigh`` values and ``write`` sums.
    """

    stages: int
    shared_bytes: int

    @cute.kernel
    def kernel(self, q: cute.Tensor, scale: Float32, call: Call, mma: cute.TiledMma):
        """A block takes its run of tiles, unit by unit. ``scale`` is for powers of two."""
        blocks, _, _ = cute.arch.grid_dim()
        thread, _, _ = cute.arch.thread_idx()
        storage = SmemAllocator().allocate(self.shared_bytes, byte_alignment=SWIZZLED)
        self.begin()
        run = self.run_of_block(call, blocks)
        slots = self.parts_of(call.parts, blocks, run.group)
        place = self.place(thread)
        work = self.work(storage, place, mma)
        own_scale = scale_of(call.v_scale, 0)
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            self.attend(q, call, scale * own_scale, run, piece, place, work)
            output = Output(call.out, slots, run, piece, run.slot(tile), self.top(piece), Int32(0), own_scale)
            for r in cutlass.range_constexpr(2):
                self.write(output, work, place, r)
            tile = piece.next

    def top(self, piece: Piece) -> Int32:
        """The first row of a unit."""
        return piece.unit * self.rows

    @cute.jit
    def attend(self, q, call, scale, run, piece, place, work):
        """The sums of a warp over a piece."""
        for sums in work.sums:
            sums.fill(0.0)
        work.softmax.reset()
        steps = piece.stop - piece.start
        self.start_piece(call, piece, place, work)
        for step in cutlass.range_constexpr(self.stages - 1):
            self.copy_step(call, piece, Int32(step), steps, Int32(step), place, work)
        queries = self.prepare(q, scale, run, piece, place, work)
        reading, writing = Int32(0), Int32(self.stages - 1)
        for step in cutlass.range(steps, unroll=1):
            self.await_tile(reading, work)
            cute.arch.sync_threads()  # this tile has arrived for all warps, and the previous one is no longer read
            self.copy_step(call, piece, step + self.stages - 1, steps, writing, place, work)
            self.score(queries, reading, place, work)
            self.mask(run, piece, piece.start + step, place, work)
            factors, grown = self.weights(place, work)
            if grown:
                for sums in work.sums:
                    scale_sums(sums, factors)
            self.weigh(reading, place, work)
            writing = reading
            reading = reading + 1 if reading + 1 < self.stages else Int32(0)
        self.end_piece(place, work)
        cute.arch.sync_threads()  # the next piece may overwrite the tiles

    def await_tile(self, stage: Int32, work) -> None:
        """Wait until what this thread has copied of a tile has arrived."""
        cute.arch.cp_async_wait_group(self.stages - 2)

    def start_piece(self, call: Call, piece: Piece, place, work) -> None:
        """Called before the first tile is copied."""

    def end_piece(self, place, work) -> None:
        """Called before the tiles of the next piece are copied: no copy of this piece arrives after those begin."""
        cute.arch.cp_async_wait_group(0)


class LatentDecode(TilesInTurn):
    """A block has ``bands`` bands of 16 rows. ``narrow``: the cache is f8e4m3."""

    max_blocks = MAX_BLOCKS

    def __init__(self, bands: int, target: aot.Target, narrow: bool = False) -> None:
        super().__init__(target, VALUE, bands * MMA[0], TOKENS)
        self.bands = bands
        self.narrow = narrow
        self.threads = bands * QUARTERS * WARP
        shared_scores = bands * QUARTERS * MMA[0] * TOKENS * 4
        self.stages = 2 if narrow else min(STAGES, (target.shared_memory - shared_scores) // TILE_BYTES)
        self.shared_bytes = self.stages * TILE_BYTES + shared_scores
        if self.shared_bytes > target.shared_memory or self.stages < 2:
            raise aot.DeclarationError(
                f"two tiles of {TILE_BYTES} bytes and {shared_scores} bytes of scores; "
                f"a block of {target.arch} has {target.shared_memory}"
            )

    @cute.jit
    def __call__(
        self, q: cute.Tensor, cache: cute.Tensor, lengths: cute.Tensor, out: cute.Tensor, scale: Float32, pages,
        cache_scale, parts: cute.Tensor, multiprocessors: Int32, stream: CUstream,
    ):  # fmt: skip
        self.dtype = q.element_type
        batch, tokens, heads, _ = q.shape
        call = Call(cache, lengths, out, pages, cache_scale, parts)
        if batch * tokens * heads > 0:  # CUDA refuses an empty grid
            blocks = self.blocks(call, multiprocessors)
            self.kernel(q, scale * LOG2_E, call, tiles.tiled_mma(self.dtype)).launch(
                grid=[blocks, 1, 1], block=[self.threads, 1, 1], use_pdl=self.early, stream=stream
            )
            self.launch_merge(call, blocks, stream)

    def place(self, thread: Int32) -> Place:
        own = cute.arch.make_warp_uniform(thread // WARP)
        return Place(thread, thread % WARP, own % QUARTERS, own // QUARTERS)

    @cute.jit
    def write(self, output, work, place, r: cutlass.Constexpr):
        """Write a thread's sums of a row."""
        within, total = place.band * MMA[0] + place.lane // 4 + 8 * r, work.softmax.total(r)
        for i in cutlass.range_constexpr(OWN_LINES):
            column = place.quarter * OWN_LINES + i
            scalars = (column == 0) & (place.lane % 4 == 0)
            output.write_row(work.sums[i], r, within, column, work.softmax.offsets[r], total, scalars)

    def work(self, storage, place, mma: cute.TiledMma):
        """Shared memory and registers of a thread."""
        rows, columns = (cute.make_copy_atom(warp.LdMatrix8x8x16bOp(t, 4), self.dtype) for t in (False, True))
        by_key, by_value = (cute.make_tiled_copy_B(atom, mma).get_slice(place.lane) for atom in (rows, columns))
        shape = (TOKENS, LINE, self.stages * KEY_LINES)
        keys = tiles.swizzled(storage, self.dtype, tiles.lines(LayoutEnum.ROW_MAJOR), shape)
        values = cute.make_tensor(keys.iterator, cute.select(keys.layout, mode=[1, 0, 2]))
        chunks = tiles.chunk_copy(tiles.past_l1(), self.dtype, LayoutEnum.ROW_MAJOR, self.threads).get_slice(
            place.thread
        )
        exchanged = (self.bands, QUARTERS, TOKENS // MMA[1], WARP, 4)
        shared_scores = cute.make_tensor(
            cute.recast_ptr((storage + self.stages * TILE_BYTES).align(SWIZZLED), dtype=Float32),
            cute.make_ordered_layout(exchanged, order=(4, 3, 2, 1, 0)),
        )
        return Work(
            mma,
            tiles.chunk_atom(tiles.past_l1(), self.dtype),
            chunks.partition_D(keys),
            [
                cute.make_rmem_tensor(CHUNK, cutlass.Float8E4M3FN)
                for _ in range(TOKENS * KEY // CHUNK // self.threads if self.narrow else 0)
            ],
            by_key,
            by_key.partition_S(keys),
            by_value,
            by_value.partition_S(values),
            shared_scores,
            cute.make_rmem_tensor(mma.partition_shape_C((MMA[0], TOKENS)), Float32),
            [cute.make_rmem_tensor(mma.partition_shape_C((MMA[0], LINE)), Float32) for _ in range(OWN_LINES)],
            make_softmax(),
        )

    def start_piece(self, call: Call, piece: Piece, place: Place, work: Work) -> None:
        if self.narrow:
            self.read_tile(call, piece, Int32(0), place, work)

    def row(self, piece: Piece, place: Place) -> Int32:
        """The first of a thread's two rows."""
        return self.top(piece) + place.band * MMA[0] + place.lane // 4

    def mask(self, run, piece: Piece, tile: Int32, place: Place, work: Work) -> None:
        run.mask(work.scores, piece, tile * TOKENS, TOKENS, self.row(piece, place))

    def weights(self, place: Place, work: Work) -> tuple:
        return softmax_step(work.scores, work.softmax)

    def prepare(self, q: cute.Tensor, scale: Float32, run, piece, place, work) -> tuple[cute.Tensor, Float32]:
        """A quarter of the query rows, read into the registers in which the instruction wants them.

        Rows that do not exist repeat the last one and are never written.
        """
        held = cute.make_rmem_tensor(work.mma.partition_shape_A((MMA[0], KEY // QUARTERS)), self.dtype)
        heads = run.heads
        first = place.quarter * (MMA[2] // 2) + place.lane % 4  # pair of elements
        for r in range(2):
            row = cutlass.min(self.row(piece, place) + 8 * r, run.group - 1)
            source = q[piece.sequence, row // heads, row % heads, None]
            for line in range(KEY_LINES):
                for half in range(2):
                    pair = fetch(source, line * (LINE // 2) + half * (MMA[1] // 2) + first, 2)
                    for c in range(2):
                        held[(c, r, half), 0, line] = pair[c]
        return held, scale

    # From the cache to shared memory. Neighbouring threads copy neighbouring chunks of one token.

    @cute.jit
    def copy_step(self, call, piece, step, steps, stage, place, work):
        if step < steps:
            if cutlass.const_expr(self.narrow):
                self.convert_tile(stage, work)
                # Behind the last tile, it is read once more, for nothing.
                self.read_tile(call, piece, cutlass.min(step + 1, steps - 1), place, work)
            else:
                for i, token in enumerate(self.tokens(call, piece, step, place)):
                    for line in cutlass.range_constexpr(KEY_LINES):
                        target = work.to_keys[None, i, 0, stage * KEY_LINES + line]
                        tiles.copy_chunk(work.atom, token, chunk_of(line, place.thread), target)
        cute.arch.cp_async_commit_group()  # commit even an empty group, because waiting counts groups

    def tokens(self, call: Call, piece, step: Int32, place) -> list[cute.Tensor]:
        """The tokens of a tile of which this thread copies chunks. The last one stands for those past the end."""
        found = []
        across = LINE // CHUNK
        for i in range(TOKENS // (self.threads // across)):
            token = (piece.start + step) * TOKENS + i * (self.threads // across) + place.thread // across
            token = cutlass.min(token, piece.length - 1)
            found.append(call.cache[(*find_token(call.pages, piece.sequence, token, call.cache.shape[1]), None)])
        return found

    def read_tile(self, call, piece, step, place, work) -> None:
        """Read chunks of a narrow cache into registers."""
        for i, token in enumerate(self.tokens(call, piece, step, place)):
            for line in range(KEY_LINES):
                source = cute.local_tile(token, (CHUNK,), (chunk_of(line, place.thread),))
                cute.autovec_copy(source, work.held[i * KEY_LINES + line])

    def convert_tile(self, stage, work) -> None:
        wide = cute.make_rmem_tensor(CHUNK, self.dtype)
        for index, chunk in enumerate(work.held):
            i, line = index // KEY_LINES, index % KEY_LINES
            wide.store(chunk.load().to(Float32).to(self.dtype))
            target = work.to_keys[None, i, 0, stage * KEY_LINES + line]
            cute.autovec_copy(cute.make_tensor(wide.iterator, target.layout), target)

    # Products.

    @cute.jit
    def score(self, queries, stage, place, work):
        """Multiply a quarter of the columns, then add up those of the four warps."""
        (query, scale), scores = queries, work.scores
        key = cute.make_rmem_tensor(work.mma.partition_shape_B((TOKENS, KEY // QUARTERS)), self.dtype)
        target = work.by_key.retile(key)
        scores.fill(0.0)
        for line in cutlass.range_constexpr(KEY_LINES):
            source = work.key_source[None, None, place.quarter, stage * KEY_LINES + line]
            cute.copy(work.by_key, source, target[None, None, line])
            cute.gemm(work.mma, scores, query[None, None, line], key[None, None, line], scores)
        groups = cute.make_tensor(scores.iterator, cute.make_layout((4, TOKENS // MMA[1])))
        for n in cutlass.range_constexpr(TOKENS // MMA[1]):
            cute.autovec_copy(groups[None, n], work.shared_scores[place.band, place.quarter, n, place.lane, None])
        # Barrier 0 is the block's. Scores are written again only after all have passed it.
        cute.arch.barrier(barrier_id=place.band + 1, number_of_threads=QUARTERS * WARP)
        for n in cutlass.range_constexpr(TOKENS // MMA[1]):
            read = [fetch(work.shared_scores[place.band, i, n, place.lane, None], 0, 4) for i in range(QUARTERS)]
            for e in cutlass.range_constexpr(4):
                groups[e, n] = (read[0][e] + read[1][e]) + (read[2][e] + read[3][e])
        scores.store(scores.load() * scale)

    @cute.jit
    def weigh(self, stage, place, work):
        """Add a quarter of the columns of the values, times their weights."""
        weights = cute.make_rmem_tensor(work.mma.partition_shape_A((MMA[0], TOKENS)), self.dtype)
        round_to(weights, work.scores)
        for i in cutlass.range_constexpr(OWN_LINES):
            value = cute.make_rmem_tensor(work.mma.partition_shape_B((LINE, TOKENS)), self.dtype)
            target = work.by_value.retile(value)
            line = stage * KEY_LINES + place.quarter * OWN_LINES + i
            for k in cutlass.range_constexpr(TOKENS // MMA[2]):
                cute.copy(work.by_value, work.value_source[None, None, k, line], target[None, None, k])
                cute.gemm(work.mma, work.sums[i], weights[None, None, k], value[None, None, k], work.sums[i])


class Place(NamedTuple):
    """Where a thread is: in its warp, and its warp in the block."""

    thread: Int32
    lane: Int32
    quarter: Int32
    band: Int32


@dataclass(frozen=True)
class Work:
    """Shared memory and registers of a thread."""

    mma: cute.TiledMma
    atom: cute.CopyAtom
    to_keys: cute.Tensor  # where its copies go: chunk, along tokens, 0, line of a stage
    held: list[cute.Tensor]  # chunks of a narrow cache
    by_key: Any
    key_source: cute.Tensor
    by_value: Any
    value_source: cute.Tensor
    shared_scores: cute.Tensor  # band, quarter, eight tokens, lane, what a lane has of these
    scores: cute.Tensor
    sums: list[cute.Tensor]  # by line of the result
    softmax: Softmax


def chunk_of(line: int, thread: Int32) -> Int32:
    """The chunk of a token that a thread copies."""
    return line * (LINE // CHUNK) + thread % (LINE // CHUNK)
