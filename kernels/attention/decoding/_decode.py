"""Attention of a few new tokens against a cache of keys and values: cp.async, ldmatrix, mma.sync.

Reading the cache is the limit: each key and value is read once and meets only the few query rows that share its head. So
the code is built around many reads in flight, and around products that keep up with them.

* **Rows.** All query heads that share a head of the cache, of all new tokens, are rows of one matrix. 16 rows fill an
  instruction of the tensor cores. Rows that do not exist repeat the last one and are never written.
* **Teams.** A team of warps shares tokens; each of its warps has 16 rows, or several bands of 16. A team has its own ring
  of stages in shared memory and its own running softmax, and waits for nobody else. With up to 16 rows a team is a single
  warp. The teams of a block take turns at the tokens and are merged once, when the block leaves a unit. Their sums take
  the place of one stage then. The other stages are being filled with tokens of the next unit already.
* **Tails.** Tokens past the end of a sequence are not read: the last token is read in their place, and its score is
  replaced by minus infinity. What the rest of a page contains cannot leak, NaN included, because it never arrives.
* **Splits.** Blocks take equal shares of all sequences (see ``_schedule``). A unit that one block has seen as a whole is
  written at once. Parts of units go to a workspace, and a second kernel of the same call merges them. It also writes
  zeros for sequences of length 0, which no block sees.
* **Short sequences.** If sequences have room for few tokens, a block takes a whole unit, and there is no other kernel:
  see ``Merging.grid`` and ``_whole``. That is so with up to 16 rows. Many such blocks, or those of very short sequences, run
  code of which twice as many fit on a multiprocessor; few long ones are faster with more tokens at a time.
* **f8e4m3.** A narrow cache travels as if two elements were one of 16 bits, up to the registers. There each is converted,
  exactly, to f16, and both products are of f16: see ``_decode_f8``. Scales of keys belong to the scale of the scores, those
  of values to the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float16, Float32, Int32

import aot

from ..._device import WARP, fetch, store
from ..._versions import SmemAllocator
from ...sm80 import tiles
from ...sm80.tiles import CHUNK, ELEMENT_BYTES, LINE, MMA, SWIZZLED
from .._schedule import Tiles
from .._softmax import LOG2_E, MINUS_INFINITY, elements, inverse, make_softmax, mask_scores, scale_sums, softmax_step
from ._decode_f8 import normalized, query_column, value_column, wide_keys, wide_values
from ._merge import Call, Merging, Run, scale_of
from ._ring import PAGE, Ahead, Caches, make_ring

ROWS = MMA[0]  # of a warp
MAX_BLOCKS = 512  # of a launch; the workspace has room for their parts
ALIGNMENT = 16  # bytes of the widest access


@dataclass(frozen=True)
class Tiling:
    """``teams`` teams of ``row_warps`` warps each. A team takes ``tokens`` tokens at a time, through ``stages`` stages.

    A warp with ``bands`` bands of 16 rows uses what it loads from shared memory as often, for as many more registers.
    """

    row_warps: int
    teams: int
    tokens: int
    stages: int
    blocks: int  # that a multiprocessor runs at once
    bands: int = 1

    @property
    def label(self) -> str:
        return f"rows{self.rows}"

    @property
    def rows(self) -> int:
        return self.row_warps * self.bands * ROWS

    @property
    def team_threads(self) -> int:
        return self.row_warps * WARP

    @property
    def threads(self) -> int:
        return self.teams * self.team_threads

    @property
    def tile(self) -> int:
        """Tokens that all teams take in one step."""
        return self.teams * self.tokens

    def stage_bytes(self, width: int) -> int:
        """Keys and values of one stage of one team."""
        return 2 * self.tokens * width * ELEMENT_BYTES

    def sum_bytes(self, dim: int) -> int:
        """The sums of one team, in f32."""
        return self.rows * dim * 4

    def streamed(self, dim: int, width: int) -> bool:
        """Whether the sums of a team fit into one stage, so that the others can be filled for the next unit meanwhile."""
        return self.sum_bytes(dim) <= self.stage_bytes(width)

    def shared_bytes(self, dim: int, width: int) -> int:
        """The rings of all teams. Their sums reuse that memory, and what tells how to merge them follows."""
        ring = max(self.stages * self.stage_bytes(width), self.sum_bytes(dim))
        return self.teams * (ring + self.rows * 2 * 4)

    def fitting(self, target: aot.Target, dim: int, width: int) -> Tiling:
        """The same, with no more stages than shared memory has room for, and with fewer tokens if two are too many.

        Narrow heads want more blocks, for as many bytes in flight. Only teams of one warp leave registers for them.
        """
        more = self.row_warps == 1 and width < 2 * LINE
        fitted = replace(self, blocks=self.blocks * 2 if more else self.blocks)
        while fitted.stages > 2 and fitted.shared_bytes(dim, width) > target.shared_memory:
            fitted = replace(fitted, stages=fitted.stages - 1)
        while fitted.tokens > PAGE and fitted.shared_bytes(dim, width) > target.shared_memory:
            fitted = replace(fitted, tokens=fitted.tokens // 2)
        return fitted

    def shortened(self) -> Tiling:
        """Half as many tokens at a time, so that twice as many blocks hide what each waits for before its first tokens."""
        return replace(self, tokens=PAGE, blocks=2 * self.blocks)

    def validate(self, target: aot.Target, dim: int, width: int) -> None:
        if self.tokens % PAGE or width % LINE or self.threads > target.max_threads or self.stages < 2:
            raise aot.DeclarationError(
                f"{self.threads} threads with {self.stages} stages of {self.tokens} tokens of {width} elements",
                hint=f"tokens are a multiple of {PAGE}, elements of {LINE}; two stages or more",
            )
        if self.tokens % (self.team_threads * CHUNK // LINE):
            raise aot.DeclarationError(
                f"a team of {self.team_threads} threads copies {self.team_threads * CHUNK // LINE} tokens at once; "
                f"{self.tokens} are not a multiple of that"
            )
        if self.shared_bytes(dim, width) > target.shared_memory:
            raise aot.DeclarationError(
                f"{self.stages} stages take {self.shared_bytes(dim, width)} bytes; "
                f"a block of {target.arch} has {target.shared_memory}"
            )


class Decode(Merging):
    """``dim`` is the width of a head. ``narrow``: the cache is f8e4m3."""

    max_blocks = MAX_BLOCKS
    warm = False  # see ``WholeDecode``
    slack, more = 48, 1
    merging, alone = Tiles(-2, 8, 3), Tiles(4, 5, 20)

    def __init__(
        self, tiling: Tiling, target: aot.Target, dim: int, narrow: bool, fits: bool, whole: tuple[Decode, ...] = ()
    ) -> None:
        super().__init__(target, dim, tiling.rows, tiling.tile)
        self.tiling = tiling
        self.fits = fits
        self.narrow = narrow
        self.whole = whole  # code for blocks that take whole units: few long ones, and others
        if narrow:
            self.alone = Tiles(3, 5, 12)
        self.short_tiles = 3 if dim > LINE else 2  # that take longer to begin than to read
        # Products that wait for each other take longer than the others of so few rows.
        self.chains = 2 if tiling.row_warps == 1 else 1
        self.width = dim // 2 if narrow else dim  # of a head of the cache, in elements of 16 bits
        self.shared_bytes = tiling.shared_bytes(dim, self.width)
        self.streamed = tiling.streamed(dim, self.width)

    @cute.jit
    def __call__(
        self, q: cute.Tensor, k_cache: cute.Tensor, v_cache: cute.Tensor, lengths: cute.Tensor, out: cute.Tensor,
        scale: Float32, pages, k_scale, v_scale, parts: cute.Tensor, multiprocessors: Int32, stream: CUstream,
    ):  # fmt: skip
        self.dtype = Float16 if self.narrow else q.element_type  # of both products
        if cutlass.const_expr(self.narrow):
            k_cache, v_cache = (cute.recast_tensor(cache, self.dtype) for cache in (k_cache, v_cache))
        batch, tokens, heads, _ = q.shape
        call = Call(k_cache, lengths, out, pages, v_scale, parts)
        if batch * tokens * heads > 0:  # CUDA refuses an empty grid
            most = multiprocessors * self.tiling.blocks
            blocks, whole = self.blocks(call, most), cutlass.Boolean(False)
            if cutlass.const_expr(len(self.whole) > 0):
                blocks, whole = self.grid(call, most)
                # With a single code, it is that for few long units.
                others = blocks * 2 > most or call.capacity <= self.short_tiles * self.tile
                others = others & cutlass.Boolean(len(self.whole) > 1)
                if whole and others:
                    self.whole[-1].launch(q, v_cache, scale, k_scale, call, blocks, multiprocessors, stream)
                if whole and not others:
                    self.whole[0].launch(q, v_cache, scale, k_scale, call, blocks, multiprocessors, stream)
            if not whole:
                self.launch(q, v_cache, scale, k_scale, call, blocks, multiprocessors, stream)
                self.launch_merge(call, blocks, stream)

    def launch(
        self, q, v_cache, scale: Float32, k_scale, call: Call, blocks: Int32, multiprocessors: Int32, stream
    ) -> None:
        self.dtype = Float16 if self.narrow else q.element_type
        late = self.is_late(blocks, multiprocessors)
        mma = tiles.tiled_mma(self.dtype, (self.tiling.row_warps, 1))  # of one team
        self.kernel(q, v_cache, scale * LOG2_E, k_scale, call, mma, late).launch(
            grid=[blocks, 1, 1],
            block=[self.tiling.threads, 1, 1],
            use_pdl=self.early,
            min_blocks_per_mp=self.tiling.blocks,
            preferred_smem_carveout=100,  # percent: the rings need it, and nothing is read twice
            stream=stream,
        )

    def is_late(self, blocks: Int32, multiprocessors: Int32) -> cutlass.Boolean:
        """See ``let_next_start``."""
        return cutlass.Boolean(False)

    @cute.kernel
    def kernel(
        self, q: cute.Tensor, v_cache: cute.Tensor, scale: Float32, k_scale, call: Call, mma: cute.TiledMma,
        late: cutlass.Boolean,
    ):  # fmt: skip
        """A block takes its run of tiles, unit by unit. ``scale`` is for powers of two."""
        blocks, _, _ = cute.arch.grid_dim()
        thread, _, _ = cute.arch.thread_idx()
        storage = SmemAllocator().allocate(self.shared_bytes, byte_alignment=SWIZZLED)
        self.begin(late)
        run = self.run_of_block(call, blocks)
        row_tiles = self.row_tiles(run.group)
        slots = self.parts_of(call.parts, blocks, run.group)
        caches = Caches(call.cache, v_cache, call.pages, row_tiles)
        ring = make_ring(storage, self.dtype, self.tiling, self.width, caches, run, thread)
        if run.first < run.end:
            place = run.place(run.first)
            ahead = Ahead(place, Int32(0), run.tiles(place))
            if cutlass.const_expr(self.streamed):
                ahead = ring.fill(ahead)
            stage, tile = Int32(0), run.first
            while tile < run.end:
                piece = run.piece_at(place, tile)
                steps = piece.stop - piece.start
                if cutlass.const_expr(not self.streamed):
                    stage = Int32(0)
                    ahead = ring.fill(Ahead(place, stage, steps))
                head, row_tile = piece.unit // row_tiles, piece.unit % row_tiles
                own_scale = scale * scale_of(k_scale, head)
                stage, ahead, teams = self.attend(
                    q, own_scale, mma, storage, ring, run, piece, stage, ahead, head, row_tile
                )
                cute.arch.sync_threads()  # all teams have written their sums
                first = row_tile * self.tiling.rows
                v_scale = scale_of(call.v_scale, head)
                self.merge_teams(*teams, call.out, slots, run.slot(tile), run, piece, head, first, v_scale)
                cute.arch.sync_threads()  # the memory of the sums is free again
                place = run.after(place, steps)
                tile = piece.next

    # One piece of a unit: tokens of one sequence, against the rows of one head.

    @cute.jit
    def attend(self, q, scale, mma, storage, ring, run, piece, stage, ahead, head, row_tile):
        """The sums of all teams over a piece, in shared memory: see :meth:`leave`."""
        tiling = self.tiling
        keys = tiles.right_fragment(mma, ring.keys, False, ring.member)
        values = tiles.right_fragment(mma, ring.values, True, ring.member)
        rows = self.rows_of(mma, ring.member, run, piece, row_tile)
        queries = self.queries(q, mma, ring.member, rows, piece, head)
        scales = [scale for _ in rows]
        if cutlass.const_expr(q.element_type != self.dtype):
            queries, scales = normalized(queries, scale, len(rows))
        scores = cute.make_rmem_tensor(mma.partition_shape_C((tiling.rows, tiling.tokens)), Float32)
        sums = cute.make_rmem_tensor(mma.partition_shape_C((tiling.rows, self.dim)), Float32)
        softmax = make_softmax(rows=len(rows))
        sums.fill(0.0)
        softmax.reset()
        start = ring.team * tiling.tokens
        for index in cutlass.range(piece.start, piece.stop):
            # A thread waits for its own copies of this stage; those of ``stages - 2`` later ones may be on their way.
            cute.arch.cp_async_wait_group(tiling.stages - 2)
            # This stage has arrived for all of the team, and the previous one is no longer read.
            self.sync_team(ring.team)
            ahead = ring.copy_ahead(ahead)
            self.score(mma, scores, queries, keys, stage)
            self.mask(scores, scales, start + index * tiling.tile, rows)
            factors, grown = softmax_step(scores, softmax)
            if grown:
                scale_sums(sums, factors)
            self.weigh(mma, scores, sums, values, stage + 1)
            stage = ring.next_stage(stage)
        free = ahead.stage  # the stage that was read last, which is filled next
        if cutlass.const_expr(self.streamed):
            self.sync_team(ring.team)  # the whole team has read it
        else:
            free = Int32(0)
            cute.arch.cp_async_wait_group(0)
            cute.arch.sync_threads()  # the rings are no longer read or written
        return stage, ahead, self.leave(mma, storage, free, ring.team, ring.member, sums, softmax)

    def rows_of(self, mma: cute.TiledMma, member, run: Run, piece, row_tile) -> list:
        """The rows of this thread, two of each band."""
        places = mma.get_slice(member).partition_C(cute.make_identity_tensor((self.tiling.rows, self.dim)))
        rows = []
        for i in range(2 * self.tiling.bands):
            row = cutlass.min(row_tile * self.tiling.rows + places[(0, i % 2), i // 2, 0][0], run.group - 1)
            token, within = run.split_row(row)
            rows.append(Row(within, token, piece.length - (run.tokens - token), run.heads))
        return rows

    @cute.jit
    def queries(self, q: cute.Tensor, mma: cute.TiledMma, member, rows, piece, head):
        """The query rows, read into the registers in which the instruction wants them. Without a token they may be anything."""
        places = mma.get_slice(member).partition_A(cute.make_identity_tensor((self.tiling.rows, self.dim)))
        queries = cute.make_rmem_tensor(mma.partition_shape_A((self.tiling.rows, self.dim)), q.element_type)
        if cutlass.const_expr(not self.warm) or piece.length > 0:
            for i in cutlass.range_constexpr(len(rows)):
                source = q[piece.sequence, rows[i].token, head * rows[i].heads + rows[i].head, None]
                for half in cutlass.range_constexpr(2):
                    for block in cutlass.range_constexpr(self.dim // MMA[2]):
                        column = places[(0, i % 2, half), i // 2, block][1]
                        pair = fetch(source, (query_column(column) if self.narrow else column) // 2, 2)
                        for c in cutlass.range_constexpr(2):
                            queries[(c, i % 2, half), i // 2, block] = pair[c]
        return queries

    @cute.jit
    def sync_team(self, team):
        if cutlass.const_expr(self.tiling.row_warps == 1):
            cute.arch.sync_warp()
        else:  # barrier 0 is the block's
            cute.arch.barrier(barrier_id=team + 1, number_of_threads=self.tiling.team_threads)

    @cute.jit
    def score(self, mma, scores, queries, keys, stage):
        scores.fill(0.0)
        for block in cutlass.range_constexpr(self.width // MMA[2]):
            tiles.load(keys, block, stage)
        wide = wide_keys(mma, keys.values, self.tiling.tokens, self.dim) if self.narrow else keys.values
        chains = [scores] + [cute.make_rmem_tensor_like(scores) for _ in range(self.chains - 1)]
        for chain in chains[1:]:
            chain.fill(0.0)
        for block in cutlass.range_constexpr(self.dim // MMA[2]):
            chain = chains[block % self.chains]
            cute.gemm(mma, chain, queries[None, None, block], wide[None, None, block], chain)
        for chain in chains[1:]:
            scores.store(scores.load() + chain.load())

    @cute.jit
    def mask(self, scores, scales, start, rows):
        """Scale the scores, and mask tokens past the end and tokens that come after a row's own."""
        scale_sums(scores, scales)
        last = [row.last for row in rows]
        if start + self.tiling.tokens - 1 > cutlass.min(*last):
            mask_scores(scores, start, last.__getitem__, upper=True, rows=len(last))

    @cute.jit
    def weigh(self, mma, scores, sums, values, stage):
        """Add the values, times their weights. Scores lie in registers as the next product wants its rows."""
        rounded = cute.make_rmem_tensor_like(scores, self.dtype)
        rounded.store(scores.load().to(self.dtype))
        shape = mma.partition_shape_A((self.tiling.rows, self.tiling.tokens))
        bands = self.tiling.bands
        order = cute.make_layout(shape, stride=((1, 2, 4 * bands), 4, 8 * bands))
        weights = cute.make_tensor(rounded.iterator, order)
        blocks = self.tiling.tokens // MMA[2]
        for block in cutlass.range_constexpr(blocks):
            tiles.load(values, block, stage)
        wide = wide_values(mma, values.values, self.tiling.tokens, self.dim) if self.narrow else values.values
        for block in cutlass.range_constexpr(blocks):
            cute.gemm(mma, sums, weights[None, None, block], wide[None, None, block], sums)

    @cute.jit
    def leave(self, mma, storage, stage, team, member, sums, softmax):
        """Write what a team has to shared memory, for the whole block to merge. The sums take the place of a stage."""
        tiling = self.tiling
        apart = max(tiling.stages * tiling.stage_bytes(self.width), tiling.sum_bytes(self.dim))
        first = storage + stage * (tiling.stage_bytes(self.width) // 2)
        order = cute.make_layout((tiling.teams, tiling.rows, self.dim), stride=(apart // 4, self.dim, 1))
        shared = cute.make_tensor(cute.recast_ptr(first.align(ALIGNMENT), dtype=Float32), order)
        after = cute.recast_ptr(storage + tiling.teams * apart, dtype=Float32)
        order = cute.make_layout((tiling.teams, tiling.rows, 2), stride=(tiling.rows * 2, 2, 1))
        scalars = cute.make_tensor(after, order)
        places = mma.get_slice(member).partition_C(cute.make_identity_tensor((tiling.rows, self.dim)))
        for i in cutlass.range_constexpr(2 * tiling.bands):
            row, column = places[(0, i % 2), i // 2, 0]
            total = softmax.total(i)
            if member % 4 == 0:
                scalars[team, row, 0] = softmax.offsets[i]
                scalars[team, row, 1] = total
            for at, right in elements(cute.size(sums), i, 2 * tiling.bands):
                chunk, within = self.place_of_value(column, right)
                shared[team, row, shared_chunk(row, chunk) * CHUNK + within] = sums[at]
        return shared, scalars

    def place_of_value(self, column: Int32, right: int) -> tuple[Int32, Int32]:
        """The chunk of a row with a column of the second product, and the element there. ``column`` is below 8."""
        if not self.narrow:
            return right // CHUNK, column + right % CHUNK
        place = value_column(column + right)
        return place // CHUNK, place % CHUNK

    @cute.jit
    def merge_teams(self, sums, scalars, out, slots, slot, run, piece, head, first, scale):
        """Merge the teams. Write rows of the output, or of a slot if the block has not seen the whole unit."""
        thread, _, _ = cute.arch.thread_idx()
        chunks = self.dim // CHUNK
        rows = cutlass.min(run.group - first, self.tiling.rows)
        part_sums, part_scalars = slots
        for index in cutlass.range(thread, rows * chunks, self.tiling.threads):
            row, chunk = index // chunks, index % chunks
            top = Float32(MINUS_INFINITY)
            for team in cutlass.range_constexpr(self.tiling.teams):
                top = cute.arch.fmax(top, scalars[team, row, 0])
            finite = top if top > MINUS_INFINITY else Float32(0)
            total, values = Float32(0), cute.full(CHUNK, 0.0, Float32)
            for team in cutlass.range_constexpr(self.tiling.teams):
                factor = cute.math.exp2(scalars[team, row, 0] - finite, fastmath=True)
                total += factor * scalars[team, row, 1]
                values = values + factor * fetch(sums[team, row, None], shared_chunk(row, chunk), CHUNK).load()
            if piece.whole:
                token, within = run.split_row(first + row)
                target = out[piece.sequence, token, head * run.heads + within, None]
                store(values * (inverse(total) * scale), target, chunk, chunks, CHUNK)
            else:
                store(values, part_sums[slot, row, None], chunk, chunks, CHUNK)
                if chunk == 0:
                    part_scalars[slot, row, 0] = top
                    part_scalars[slot, row, 1] = total


def shared_chunk(row: Int32, chunk: Int32) -> Int32:
    """Where a chunk of a row of sums is in shared memory: a warp writes eight rows at once, each to other banks."""
    return (row & 7) ^ chunk


class Row(NamedTuple):
    head: Int32  # within the group of query heads that share a head of the cache
    token: Int32
    last: Int32  # token of the sequence that the row sees: its own
    heads: Int32  # of the group
