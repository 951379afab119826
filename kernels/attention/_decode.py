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
* **f8e4m3.** A narrow cache travels as if two elements were one of 16 bits, up to the registers. There each is converted,
  exactly, to f16, and both products are of f16 (for queries of bf16 see ``normalized``). The elements of a head then have
  another order than the instruction expects. Queries are read in that order, and results are put back into the usual one
  (see ``query_column`` and ``value_column``). Scales of keys belong to the scale of the scores, those of values to the
  result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float8E4M3FN, Float16, Float32, Int32
from cutlass.cute.nvgpu import cpasync, warp
from cutlass.utils import LayoutEnum

import aot

from .._device import WARP, fetch, launched_early, store
from .._versions import SmemAllocator
from ..rows._rows import add
from ..sm80.tiles import CHUNK, ELEMENT_BYTES, LINE, MMA, chunk_copy, lines, load, make_fragment, swizzled
from ._merge import LOG2_E, MINUS_INFINITY, Merging, Place, inverse, scale_of

ROWS = MMA[0]  # of a warp
PAGE = 16  # tokens: the size of a page is a multiple of this, so 16 tokens in line share a page
MAX_BLOCKS = 512  # of a launch; the workspace has room for their parts
ALIGNMENT = 16  # bytes of the widest access
SWIZZLED = 8 * LINE * ELEMENT_BYTES  # bytes in which the pattern of a swizzled layout repeats


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
    """``dim`` is the width of a head. ``paged``: the cache is in pages, named by a table. ``narrow``: it is f8e4m3."""

    def __init__(self, tiling: Tiling, target: aot.Target, dim: int, paged: bool, narrow: bool = False) -> None:
        super().__init__(dim, tiling.rows, tiling.tile, MAX_BLOCKS, paged, launched_early(target))
        self.tiling = tiling
        self.narrow = narrow
        self.width = dim // 2 if narrow else dim  # of a head of the cache, in elements of 16 bits
        self.shared_bytes = tiling.shared_bytes(dim, self.width)
        self.streamed = tiling.streamed(dim, self.width)

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k_cache: cute.Tensor,
        v_cache: cute.Tensor,
        lengths: cute.Tensor,
        out: cute.Tensor,
        scale: Float32,
        pages,
        k_scale,
        v_scale,
        parts: cute.Tensor,
        multiprocessors: Int32,
        stream: CUstream,
    ):
        self.dtype = Float16 if self.narrow else q.element_type  # of both products
        if cutlass.const_expr(self.narrow):
            k_cache, v_cache = (cute.recast_tensor(cache, self.dtype) for cache in (k_cache, v_cache))
        batch, tokens, heads, _ = q.shape
        rows = batch * tokens * heads
        if rows > 0:  # CUDA refuses an empty grid
            blocks = self.runs(multiprocessors * self.tiling.blocks, Int32(1))
            mma = self.tiled_mma()
            self.kernel(q, k_cache, v_cache, lengths, out, scale * LOG2_E, pages, k_scale, v_scale, parts, mma).launch(
                grid=[blocks, 1, 1],
                block=[self.tiling.threads, 1, 1],
                use_pdl=self.early,
                min_blocks_per_mp=self.tiling.blocks,
                preferred_smem_carveout=100,  # percent: the rings need it, and nothing is read twice
                stream=stream,
            )
            self.launch_merge(k_cache, lengths, out, pages, v_scale, parts, blocks, stream)

    def tiled_mma(self) -> cute.TiledMma:
        """For one team: its warps along the rows. One ldmatrix serves two instructions side by side."""
        return cute.make_tiled_mma(
            warp.MmaF16BF16Op(self.dtype, Float32, MMA),
            cute.make_layout((self.tiling.row_warps, 1, 1)),
            permutation_mnk=(self.tiling.row_warps * ROWS, MMA[1] * 2, MMA[2]),
        )

    @cute.kernel
    def kernel(
        self,
        q: cute.Tensor,
        k_cache: cute.Tensor,
        v_cache: cute.Tensor,
        lengths: cute.Tensor,
        out: cute.Tensor,
        scale: Float32,
        pages,
        k_scale,
        v_scale,
        parts: cute.Tensor,
        mma: cute.TiledMma,
    ):
        """A block takes its run of tiles, unit by unit. ``scale`` is for powers of two."""
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        thread, _, _ = cute.arch.thread_idx()
        storage = SmemAllocator().allocate(self.shared_bytes, byte_alignment=SWIZZLED)
        self.begin()
        run = self.run_of_block(k_cache, lengths, out, pages, blocks)
        row_tiles = cute.ceil_div(run.group, self.tiling.rows)
        slots = self.parts_of(parts, blocks, run.group)
        ring = self.ring(storage, thread // self.tiling.team_threads, thread % self.tiling.team_threads)
        caches = Caches(k_cache, v_cache, pages, row_tiles)
        if run.first < run.end:
            place = run.place(run.first)
            ahead = Ahead(place, Int32(0), run.end - run.first)
            if cutlass.const_expr(self.streamed):
                ahead = self.fill(ring, caches, run, ahead)
            stage, tile = Int32(0), run.first
            while tile < run.end:
                piece = run.piece_at(place, tile)
                steps = piece.stop - piece.start
                if cutlass.const_expr(not self.streamed):
                    stage = Int32(0)
                    ahead = self.fill(ring, caches, run, Ahead(place, stage, steps))
                head, row_tile = piece.unit // row_tiles, piece.unit % row_tiles
                own_scale = scale * scale_of(k_scale, head)
                stage, ahead, sums, scalars = self.attend(
                    q, caches, own_scale, mma, storage, ring, run, piece, stage, ahead, head, row_tile
                )
                cute.arch.sync_threads()  # all teams have written their sums
                slot = 2 * block + (0 if tile == run.first else 1)
                self.write(sums, scalars, out, slots, slot, piece, head, row_tile, run.group, scale_of(v_scale, head))
                cute.arch.sync_threads()  # the memory of the sums is free again
                place = run.after(place, steps)
                tile += steps

    # One piece of a unit: tokens of one sequence, against the rows of one head.

    @cute.jit
    def attend(self, q, caches, scale, mma, storage, ring, run, piece, stage, ahead, head, row_tile):
        """The sums of all teams over a piece, in shared memory: see :meth:`leave`."""
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        team, member = thread // tiling.team_threads, thread % tiling.team_threads
        keys, values = self.fragments(mma, ring, member)
        rows = self.rows_of(mma, member, piece, row_tile, run.group, q.shape[1])
        queries = self.queries(q, mma, member, rows, piece.sequence, head)
        scales = [scale for _ in rows]
        if cutlass.const_expr(q.element_type != self.dtype):
            queries, scales = self.normalized(queries, scale)
        scores = cute.make_rmem_tensor(mma.partition_shape_C((tiling.rows, tiling.tokens)), Float32)
        sums = cute.make_rmem_tensor(mma.partition_shape_C((tiling.rows, self.dim)), Float32)
        largest, weights = (cute.make_rmem_tensor(2 * tiling.bands, Float32) for _ in range(2))
        sums.fill(0.0)
        largest.fill(MINUS_INFINITY)
        weights.fill(0.0)
        start = team * tiling.tokens
        for index in cutlass.range(piece.start, piece.stop):
            cute.arch.cp_async_wait_group(tiling.stages - 2)
            self.sync_team(team)  # this stage has arrived for all of the team, and the previous one is no longer read
            ahead = self.copy_ahead(ring, caches, run, ahead)
            self.score(mma, scores, queries, keys, stage)
            self.mask(mma, scores, scales, start + index * tiling.tile, rows, piece, member)
            self.soften(scores, sums, largest, weights)
            self.weigh(mma, scores, sums, values, stage + 1)
            stage = self.next_stage(stage)
        free = ahead.stage  # the stage that was read last, which is filled next
        if cutlass.const_expr(self.streamed):
            self.sync_team(team)  # the whole team has read it
        else:
            free = Int32(0)
            cute.arch.cp_async_wait_group(0)
            cute.arch.sync_threads()  # the rings are no longer read or written
        shared, scalars = self.leave(mma, storage, free, team, member, sums, largest, weights)
        return stage, ahead, shared, scalars

    @cute.jit
    def next_stage(self, stage: Int32) -> Int32:
        """Stages are counted by places of the ring: the place of the keys, which that of the values follows."""
        return stage + 2 if stage + 2 < 2 * self.tiling.stages else Int32(0)

    @cute.jit
    def fill(self, ring, caches, run, ahead):
        """Start to copy the first tiles of a run, or of a piece."""
        for _ in cutlass.range_constexpr(self.tiling.stages - 1):
            ahead = self.copy_ahead(ring, caches, run, ahead)
        return ahead

    @cute.jit
    def copy_ahead(self, ring, caches, run, ahead):
        """Start to copy the next tile, if there is one."""
        place, stage, left = ahead
        if left > 0:
            self.copy_tile(ring, caches, place, stage)
            place = run.after(place, Int32(1))
        cute.arch.cp_async_commit_group()  # commit even an empty group, because waiting counts groups
        return Ahead(place, self.next_stage(stage), left - 1)

    def ring(self, storage, team, member):
        """Where a team keeps keys (tokens x dim) and values (dim x tokens), in turns, and who copies what."""
        tiling = self.tiling
        base = (storage + team * (tiling.stages * tiling.stage_bytes(self.width))).align(SWIZZLED)
        places = 2 * tiling.stages
        keys = swizzled(base, self.dtype, lines(LayoutEnum.ROW_MAJOR), (tiling.tokens, self.width, places))
        values = swizzled(base, self.dtype, lines(LayoutEnum.COL_MAJOR), (self.width, tiling.tokens, places))
        past_l1 = cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL)
        by_key = chunk_copy(past_l1, self.dtype, LayoutEnum.ROW_MAJOR, tiling.team_threads).get_slice(member)
        by_value = chunk_copy(past_l1, self.dtype, LayoutEnum.COL_MAJOR, tiling.team_threads).get_slice(member)
        atom = cute.make_copy_atom(past_l1, self.dtype, num_bits_per_copy=CHUNK * ELEMENT_BYTES * 8)
        return Ring(atom, keys, values, by_key.partition_D(keys), by_value.partition_D(values))

    def fragments(self, mma: cute.TiledMma, ring, member) -> tuple:
        """The registers for keys and values. Values are transposed on their way there."""
        mine = mma.get_slice(member)
        made = []
        for shared, transposed in ((ring.keys, False), (ring.values, True)):
            matrices = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transposed, 4), self.dtype)
            registers = mma.make_fragment_B(mine.partition_B(shared[None, None, 0]))
            made.append(make_fragment(registers, cute.make_tiled_copy_B(matrices, mma), shared, member))
        return tuple(made)

    def rows_of(self, mma: cute.TiledMma, member, piece, row_tile, group, tokens) -> list:
        """The rows of this thread, two of each band."""
        places = mma.get_slice(member).partition_C(cute.make_identity_tensor((self.tiling.rows, self.dim)))
        heads = group // tokens
        rows = []
        for i in range(2 * self.tiling.bands):
            row = cutlass.min(row_tile * self.tiling.rows + places[(0, i % 2), i // 2, 0][0], group - 1)
            token = row // heads
            rows.append(Row(row % heads, token, piece.length - (tokens - 1 - token), heads))
        return rows

    def queries(self, q: cute.Tensor, mma: cute.TiledMma, member, rows, sequence, head) -> cute.Tensor:
        """The query rows, read into the registers in which the instruction wants them."""
        places = mma.get_slice(member).partition_A(cute.make_identity_tensor((self.tiling.rows, self.dim)))
        queries = cute.make_rmem_tensor(mma.partition_shape_A((self.tiling.rows, self.dim)), q.element_type)
        for i, row in enumerate(rows):
            source = q[sequence, row.token, head * row.heads + row.head, None]
            for half in range(2):
                for block in range(self.dim // MMA[2]):
                    column = places[(0, i % 2, half), i // 2, block][1]
                    pair = fetch(source, self.query_column(column) // 2, 2)
                    for c in range(2):
                        queries[(c, i % 2, half), i // 2, block] = pair[c]
        return queries

    @cute.jit
    def sync_team(self, team):
        if cutlass.const_expr(self.tiling.row_warps == 1):
            cute.arch.sync_warp()
        else:  # barrier 0 is the block's
            cute.arch.barrier(barrier_id=team + 1, number_of_threads=self.tiling.team_threads)

    @cute.jit
    def copy_tile(self, ring, caches, place, stage):
        """Start to copy the tokens of a team. Neighbouring threads copy neighbouring chunks of one token."""
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        team, member = thread // tiling.team_threads, thread % tiling.team_threads
        head = place.unit // caches.row_tiles
        across = LINE // CHUNK  # threads
        apart = tiling.team_threads // across  # tokens from one copy of this thread to the next
        last = place.length - 1
        first = place.index * tiling.tile + team * tiling.tokens
        keys, values, skipped = caches.keys, caches.values, Int32(0)
        for i in cutlass.range_constexpr(cute.size(ring.to_keys, mode=[1])):
            if cutlass.const_expr(i * apart % PAGE == 0):
                token = cutlass.min(first + i * apart + member // (across * PAGE) * PAGE, last)
                keys, values, skipped = self.page(caches, place.sequence, head, token)
            token = cutlass.min(first + i * apart + member // across, last) - skipped
            for j in cutlass.range_constexpr(self.width // LINE):
                chunk = j * across + member % across
                copy_chunk(ring.atom, keys, token, chunk, ring.to_keys[None, i, j, stage])
                copy_chunk(ring.atom, values, token, chunk, ring.to_values[None, j, i, stage + 1])

    def page(self, caches, sequence, head, token):
        """Keys and values (tokens x dim) of the page with a token, and the tokens of the sequence ahead of that page."""
        page, skipped = sequence, Int32(0)
        if self.paged:
            size = caches.keys.shape[1]
            index = token // size
            page, skipped = caches.pages[sequence, index], index * size
        return caches.keys[page, None, head, None], caches.values[page, None, head, None], skipped

    @cute.jit
    def score(self, mma, scores, queries, keys, stage):
        scores.fill(0.0)
        for block in cutlass.range_constexpr(self.width // MMA[2]):
            load(keys, block, stage)
        wide = self.wide_keys(mma, keys.values)
        for block in cutlass.range_constexpr(self.dim // MMA[2]):
            cute.gemm(mma, scores, queries[None, None, block], wide[None, None, block], scores)

    @cute.jit
    def mask(self, mma, scores, scales, start, rows, piece, member):
        """Scale the scores, and take out tokens past the end and tokens that come after the row's own."""
        by_row = self.by_row(scores)
        for i in cutlass.range_constexpr(2 * self.tiling.bands):
            by_row[i, None].store(by_row[i, None].load() * scales[i])
        if start + self.tiling.tokens > cutlass.min(*(row.visible for row in rows)):
            shape = (self.tiling.rows, self.tiling.tokens)
            places = mma.get_slice(member).partition_C(cute.make_identity_tensor(shape))
            for n in cutlass.range_constexpr(self.tiling.tokens // MMA[1]):
                for i in cutlass.range_constexpr(2 * self.tiling.bands):
                    for c in cutlass.range_constexpr(2):
                        at = ((c, i % 2), i // 2, n)
                        if start + places[at][1] >= rows[i].visible:
                            scores[at] = Float32(MINUS_INFINITY)

    @cute.jit
    def soften(self, scores, sums, largest, weights):
        """A step of the running softmax: scores become weights, and earlier sums are scaled to the new maximum."""
        by_row, sums_by_row = self.by_row(scores), self.by_row(sums)
        for i in cutlass.range_constexpr(2 * self.tiling.bands):
            row = by_row[i, None].load()
            top = cute.arch.warp_reduction(
                row.reduce(cute.ReductionOp.MAX, largest[i], 0), cute.arch.fmax, threads_in_group=4
            )
            # A row that has seen nothing yet has no maximum. Any number will do: its weights are 0.
            finite = top if top > MINUS_INFINITY else Float32(0)
            row = cute.math.exp2(row - finite, fastmath=True)
            factor = cute.math.exp2(largest[i] - finite, fastmath=True)
            by_row[i, None].store(row)
            weights[i] = weights[i] * factor + row.reduce(cute.ReductionOp.ADD, Float32(0), 0)
            largest[i] = top
            sums_by_row[i, None].store(sums_by_row[i, None].load() * factor)

    def by_row(self, values: cute.Tensor) -> cute.Tensor:
        """Accumulators as a matrix: a thread has two rows of each band, and two neighbouring columns in every eight."""
        bands, columns = self.tiling.bands, cute.size(values) // (4 * self.tiling.bands)
        order = cute.make_layout(((2, bands), (2, columns)), stride=((2, 4), (1, 4 * bands)))
        return cute.make_tensor(values.iterator, order)

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
            load(values, block, stage)
        wide = self.wide_values(mma, values.values)
        for block in cutlass.range_constexpr(blocks):
            cute.gemm(mma, sums, weights[None, None, block], wide[None, None, block], sums)

    # A narrow cache: a register of 32 bits has four elements and becomes two registers.

    def normalized(self, queries: cute.Tensor, scale: Float32) -> tuple[cute.Tensor, list[Float32]]:
        """Queries of bf16 as f16, with scales of the scores that make up for it.

        A power of two brings the largest of a row between 2**14 and 2**15. Then f16, with its three bits more, is exact
        but for elements that are 2**28 times smaller. Their error is 2**39 times smaller than the largest, less than
        that of sums in f32.
        """
        narrowed, scales = cute.make_rmem_tensor_like(queries, self.dtype), []
        blocks = self.dim // MMA[2]
        for i in range(2 * self.tiling.bands):
            row = [((c, i % 2, half), i // 2, block) for c in range(2) for half in range(2) for block in range(blocks)]
            largest = Float32(0)
            for at in row:
                value = Float32(queries[at])
                largest = cute.arch.fmax(largest, cute.arch.fmax(value, -value))
            largest = cute.arch.warp_reduction(largest, cute.arch.fmax, threads_in_group=4)
            exponent = cutlass.max(bits(largest, Float32, Int32) >> 23, 15)  # biased by 127
            for at in row:
                narrowed[at] = (Float32(queries[at]) * bits((268 - exponent) << 23, Int32, Float32)).to(self.dtype)
            scales.append(scale * bits((exponent - 14) << 23, Int32, Float32))
        return narrowed, scales

    def query_column(self, column: Int32) -> Int32:
        """Where in a head the element is that meets a column of the first product.

        Of 16 columns, a thread has two neighbours in each half; of a narrow cache, it has four neighbours.
        """
        within = column % 16
        return column - within + within % 8 // 2 * 4 + within // 8 * 2 + within % 2 if self.narrow else column

    def value_column(self, column: Int32) -> Int32:
        """Where in a head a column of the second product belongs.

        Of 16 elements of a head in a narrow cache, eight columns have those at even places, the next those at odd ones.
        """
        within = column % 16
        return column - within + within % 8 * 2 + within // 8 if self.narrow else column

    def wide_keys(self, mma: cute.TiledMma, narrow: cute.Tensor) -> cute.Tensor:
        """The four are neighbours in a head: two for each half of an instruction, see :meth:`query_column`."""
        if not self.narrow:
            return narrow
        wide = cute.make_rmem_tensor(mma.partition_shape_B((self.tiling.tokens, self.dim)), self.dtype)
        target, source = registers(wide), registers(widened(narrow, self.dtype))
        tokens = self.tiling.tokens // MMA[1]
        for block in range(self.width // MMA[2]):
            for half in range(2):
                for n in range(tokens):
                    first = cute.crd2idx(((0, half), n, block), narrow.layout)
                    for i in range(2):
                        target[i + 2 * n + 2 * tokens * (2 * block + half)] = source[first + i]
        return wide

    def wide_values(self, mma: cute.TiledMma, narrow: cute.Tensor) -> cute.Tensor:
        """The four are two neighbours in a head, of two tokens. Those of one place in the head go side by side."""
        if not self.narrow:
            return narrow
        wide = cute.make_rmem_tensor(mma.partition_shape_B((self.dim, self.tiling.tokens)), self.dtype)
        packed = registers(narrow)
        for i in range(cute.size(packed)):
            packed[i] = Int32(cute.arch.prmt(packed[i], 0, 0x3120))
        target, source = registers(wide), registers(widened(narrow, self.dtype))
        columns = self.dim // MMA[1]
        for block in range(self.tiling.tokens // MMA[2]):
            for half in range(2):
                for n in range(columns // 2):
                    first = cute.crd2idx(((0, half), n, block), narrow.layout)
                    for i in range(2):
                        target[half + 2 * (2 * n + i) + 2 * columns * block] = source[first + i]
        return wide

    @cute.jit
    def leave(self, mma, storage, stage, team, member, sums, largest, weights):
        """Write what a team has to shared memory, for the whole block to merge. The sums take the place of a stage."""
        tiling = self.tiling
        apart = max(tiling.stages * tiling.stage_bytes(self.width), tiling.sum_bytes(self.dim))
        first = storage + stage * (tiling.stage_bytes(self.width) // 2)
        order = cute.make_layout((tiling.teams, tiling.rows, self.dim), stride=(apart // 4, self.dim, 1))
        shared = cute.make_tensor(cute.recast_ptr(first.align(ALIGNMENT), dtype=Float32), order)
        after = cute.recast_ptr(storage + tiling.teams * apart, dtype=Float32)
        scalars = cute.make_tensor(
            after, cute.make_layout((tiling.teams, tiling.rows, 2), stride=(tiling.rows * 2, 2, 1))
        )
        places = mma.get_slice(member).partition_C(cute.make_identity_tensor((tiling.rows, self.dim)))
        for i in cutlass.range_constexpr(2 * tiling.bands):
            row = places[(0, i % 2), i // 2, 0][0]
            total = cute.arch.warp_reduction(weights[i], add, threads_in_group=4)
            if member % 4 == 0:
                scalars[team, row, 0] = largest[i]
                scalars[team, row, 1] = total
            for n in cutlass.range_constexpr(self.dim // MMA[1]):
                for c in cutlass.range_constexpr(2):
                    at = ((c, i % 2), i // 2, n)
                    shared[team, row, self.value_column(places[at][1])] = sums[at]
        return shared, scalars

    @cute.jit
    def write(self, sums, scalars, out, slots, slot, piece, head, row_tile, group, scale):
        """Merge the teams. Write rows of the output, or of a slot if the block has not seen the whole unit."""
        thread, _, _ = cute.arch.thread_idx()
        chunks = self.dim // CHUNK
        first = row_tile * self.tiling.rows
        rows = cutlass.min(group - first, self.tiling.rows)
        heads = group // out.shape[1]
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
                values = values + factor * fetch(sums[team, row, None], chunk, CHUNK).load()
            if piece.whole:
                target = out[piece.sequence, (first + row) // heads, head * heads + (first + row) % heads, None]
                store(values * (inverse(total) * scale), target, chunk, chunks, CHUNK)
            else:
                store(values, part_sums[slot, row, None], chunk, chunks, CHUNK)
                if chunk == 0:
                    part_scalars[slot, row, 0] = top
                    part_scalars[slot, row, 1] = total


class Row(NamedTuple):
    head: Int32  # within the group of query heads that share a head of the cache
    token: Int32
    visible: Int32  # tokens of the sequence up to the row's own
    heads: Int32  # of the group


class Caches(NamedTuple):
    keys: cute.Tensor
    values: cute.Tensor
    pages: cute.Tensor | None
    row_tiles: Int32  # units that share a head


class Ahead(NamedTuple):
    """What is copied next: which tile, to which stage, and how many are left."""

    place: Place
    stage: Int32
    left: Int32


class Ring(NamedTuple):
    atom: cute.CopyAtom
    keys: cute.Tensor
    values: cute.Tensor
    to_keys: cute.Tensor  # what a thread copies: chunk, along tokens, along dim, stage
    to_values: cute.Tensor  # chunk, along dim, along tokens, stage


def copy_chunk(atom: cute.CopyAtom, tokens: cute.Tensor, token: Int32, chunk: Int32, target: cute.Tensor) -> None:
    source = cute.local_tile(tokens[token, None], (CHUNK,), (chunk,))
    cute.copy(atom, cute.make_tensor(source.iterator.align(CHUNK * ELEMENT_BYTES), target.layout), target)


def bits(value, source, target):
    """The bits of a value of 32 bits as another type."""
    held = cute.make_rmem_tensor(1, source)
    held[0] = value
    return cute.make_tensor(cute.recast_ptr(held.iterator, dtype=target), cute.make_layout(1))[0]


def registers(values: cute.Tensor) -> cute.Tensor:
    """The registers of 32 bits that hold values, in order."""
    pointer = cute.recast_ptr(values.iterator, dtype=Int32)
    return cute.make_tensor(pointer, cute.make_layout(cute.size(values) // 2))


def widened(narrow: cute.Tensor, dtype) -> cute.Tensor:
    """Elements of f8e4m3, two in each value of 16 bits, converted in order."""
    count = 2 * cute.size(narrow)
    elements = cute.make_tensor(cute.recast_ptr(narrow.iterator, dtype=Float8E4M3FN), cute.make_layout(count))
    wide = cute.make_rmem_tensor(count, dtype)
    wide.store(elements.load().to(dtype))
    return wide
