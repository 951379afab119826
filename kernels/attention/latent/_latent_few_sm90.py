"""Latent attention of at most 16 query rows against a cache of f8e4m3, for sm_90a: bulk copies, ldmatrix, mma.sync.

wgmma multiplies 64 rows, however few there are, and takes longer for that than the memory for a cache of 8 bits. So few rows
have code of their own, whose limit is reading.

* **Blocks.** Four warps, and two blocks on a multiprocessor, so that one has work while another waits. Each has two tiles of
  64 tokens, as they are in the cache. Two tokens in shared memory are followed by an empty chunk: so eight tokens have chunks
  in different banks. Two tokens are nine lines of the L2 cache, one is five, of which it needs a half of one. So a lane
  copies two tokens with one instruction if they are side by side.
* **Scores.** Each of the four warps has a quarter of the tokens of a tile. It multiplies them in units of 32 columns, and
  adds to several sums in turn, because a product waits for the one before that has the same sums. Queries are in shared
  memory, in the order in which threads need them; each warp has some in registers, too.
* **Softmax.** Warps tell each other their largest scores, so all have the same offsets. Then each leaves its weights in shared
  memory for the others.
* **Sums.** Each of the four warps owns a quarter of the 512 columns of the result.
* **f8e4m3.** Elements are converted, exactly, to f16 in registers, and both products are of f16: see ``_decode_f8``.
* **Tails and splits.** As in ``_latent_sm80``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float16, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warp

import aot

from ..._device import EVICT_FIRST, WARP, fetch
from ...sm80 import tiles
from ...sm80.tiles import CHUNK, MMA
from ...sm90.hardware import BARRIER_BYTES
from .._pages import find_token
from .._schedule import Tiles
from .._softmax import (
    LOG2_E,
    MINUS_INFINITY,
    SLACK,
    Softmax,
    elements,
    inverse,
    make_softmax,
    round_to,
    scale_sums,
)
from ..decoding._cache_sm90 import MAX_BLOCKS
from ..decoding._decode_f8 import bits, wide_keys, wide_values
from ..decoding._merge import Call, Piece
from ._latent_sm80 import TilesInTurn
from ._latent_sm90 import KEY, VALUE

BLOCKS = 2  # of a multiprocessor
STAGES = 2
TOKENS = 64  # of a tile
WARPS = 4
THREADS = WARPS * WARP
OWN_TOKENS = TOKENS // WARPS  # whose scores a warp computes
PAIRS = OWN_TOKENS // 2  # of tokens, that a warp copies
UNIT = 32  # columns
STEPS = UNIT // MMA[2]  # instructions along a unit, when it is converted
UNITS = KEY // UNIT
OWN_UNITS = -(-UNITS // WARPS)  # of the queries, that a warp prepares, at most
HELD = 8  # units of the queries that a warp has in registers
CHAINS = 2 * STEPS  # sums of scores that do not wait for each other
GROUPS = VALUE // UNIT // WARPS  # units of the result that a warp sums
FRAGMENT = 8  # elements of queries, or weights, that a thread needs for one instruction
QUERY_BYTES = UNITS * STEPS * WARP * FRAGMENT * 2
WEIGHT_BYTES = WARPS * WARP * FRAGMENT * 2


class CopiedTokens(TilesInTurn):
    """Tiles arrive by bulk copies: a lane copies one or two whole tokens with an instruction."""

    stages = STAGES
    # Of a token, and of what follows two of them in shared memory, in elements of 16 bits.
    width, padding = KEY // 2, CHUNK
    policy = EVICT_FIRST  # nobody reads a token again, so parts of sequences stay in the L2 cache until they are merged

    @property
    def pair_pitch(self) -> int:
        """Of two tokens in shared memory, in elements of 16 bits."""
        return 2 * self.width + self.padding

    @property
    def tile_elements(self) -> int:
        return TOKENS // 2 * self.pair_pitch

    @cute.jit
    def init_barriers(self, barriers, place):
        if place.thread == 0:
            for stage in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(barriers + stage, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()  # nobody copies before the mbarriers are there

    def start_piece(self, call: Call, piece: Piece, place: Place, work: Work) -> None:
        self.look_up(call, piece, Int32(0), place, work)

    def token(self, piece: Piece, step: Int32, place: Place) -> Int32:
        """The first of the two tokens of a tile that a lane copies."""
        return (piece.start + step) * TOKENS + place.warp * OWN_TOKENS + 2 * (place.lane % PAIRS)

    def look_up(self, call: Call, piece: Piece, step: Int32, place: Place, work: Work) -> None:
        """Where the tokens of a tile are that a lane copies: the last one, if they are past the end.

        This is read a tile ahead: a page takes as long to arrive as a token.
        """
        token = cutlass.min(self.token(piece, step, place), piece.length - 1)
        work.found[0], work.found[1] = find_token(call.pages, piece.sequence, token, call.cache.shape[1])

    @cute.jit
    def copy_step(self, call, piece, step, steps, stage, place, work):
        """Start to copy a tile, if there is one."""
        if step < steps:
            barrier = work.barriers + stage
            if place.thread == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(barrier, TOKENS * self.width * 2)
            self.copy_tokens(call, piece, step, stage, place, work)
            self.look_up(call, piece, step + 1, place, work)

    @cute.jit
    def copy_tokens(self, call, piece, step, stage, place, work):
        barrier = work.barriers + stage
        if place.lane < PAIRS:
            source = call.cache[work.found[0], work.found[1], None].iterator
            target = work.memory + (stage * self.tile_elements + (place.warp * PAIRS + place.lane) * self.pair_pitch)
            follows = self.token(piece, step, place) + 1 < piece.length
            if follows and call.cache.stride[1] == self.width:
                self.copy(source, target, 2 * self.width, barrier, work)
            else:  # past the end, the last token is copied once more
                second = call.cache[work.found[0], work.found[1] + Int32(follows), None].iterator
                self.copy(source, target, self.width, barrier, work)
                self.copy(second, target + self.width, self.width, barrier, work)

    @cute.jit
    def copy(self, source, target, size: cutlass.Constexpr, barrier, work):
        source, target = [cute.make_tensor(place.align(16), cute.make_layout(size)) for place in (source, target)]
        cute.copy(work.atom, source, target, mbar_ptr=barrier, cache_policy=Int64(self.policy))

    @cute.jit
    def await_tile(self, stage, work):
        """Wait for all bytes of a tile. A bit for each stage tells which of two phases of its mbarrier comes next."""
        cute.arch.mbarrier_wait(work.barriers + stage, work.phases[0] >> stage & 1)
        work.phases[0] = work.phases[0] ^ (1 << stage)


class FewLatentDecode(CopiedTokens):
    max_blocks = BLOCKS * MAX_BLOCKS
    # In tiles. On an H200 these were the fastest of five for 60 drawn problems.
    start, slack, more, merging = 2, 16, 2, Tiles(2, 16, 9)
    converted = OWN_UNITS  # units of the queries that a warp prepares and that meet elements of f8

    def __init__(self, target: aot.Target) -> None:
        super().__init__(target, VALUE, MMA[0], TOKENS)

    @property
    def shared_bytes(self) -> int:
        after_tiles = QUERY_BYTES + WEIGHT_BYTES + 2 * WARPS * MMA[0] * 4 + STAGES * BARRIER_BYTES
        return STAGES * self.tile_elements * 2 + after_tiles

    @cute.jit
    def __call__(
        self, q: cute.Tensor, cache: cute.Tensor, lengths: cute.Tensor, out: cute.Tensor, scale: Float32, pages,
        cache_scale, parts: cute.Tensor, multiprocessors: Int32, stream: CUstream,
    ):  # fmt: skip
        call = Call(cute.recast_tensor(cache, Float16), lengths, out, pages, cache_scale, parts)
        self.launch_both(q, scale, call, multiprocessors, stream)

    @cute.jit
    def launch_both(self, q: cute.Tensor, scale: Float32, call: Call, multiprocessors: Int32, stream: CUstream):
        """Attend, and merge what was cut."""
        if cute.size(call.lengths) * call.group > 0:  # CUDA refuses an empty grid
            blocks = self.blocks(call, multiprocessors * BLOCKS)
            self.kernel(q, scale * LOG2_E, call, tiles.tiled_mma(Float16)).launch(
                grid=[blocks, 1, 1],
                block=[THREADS, 1, 1],
                use_pdl=self.early,
                min_blocks_per_mp=BLOCKS,
                preferred_smem_carveout=100,
                stream=stream,
            )
            self.launch_merge(call, blocks, stream)

    def place(self, thread: Int32) -> Place:
        return Place(thread, thread % WARP, cute.arch.make_warp_uniform(thread // WARP))

    def top(self, piece: Piece) -> Int32:
        return Int32(0)

    def mask(self, run, piece: Piece, tile: Int32, place: Place, work: Work) -> None:
        first = tile * TOKENS + place.warp * OWN_TOKENS
        run.mask(work.scores, piece, first, OWN_TOKENS, place.row)

    @cute.jit
    def end_piece(self, place, work):
        for r in cutlass.range_constexpr(2):
            total = work.softmax.total(r)
            if place.lane % 4 == 0:
                work.totals[place.warp, place.row + 8 * r] = total

    @cute.jit
    def prepare(self, q, scale, run, piece, place, work):
        """Queries of f16 in shared memory and in registers, and the scales of their scores: see ``normalized``."""
        query, scales = self.queries(q, run, piece, place, work), [scale, scale]
        count = self.converted * STEPS * FRAGMENT  # of those that meet elements of f8
        if cutlass.const_expr(q.element_type != Float16):
            for r in cutlass.range_constexpr(2):
                largest = Float32(0)
                for i in cutlass.range_constexpr(count // 4):
                    for c in cutlass.range_constexpr(2):
                        value = Float32(query[4 * i + 2 * r + c])
                        largest = cute.arch.fmax(largest, cute.arch.fmax(value, -value))
                self.tell(largest, r, place, work)
            cute.arch.sync_threads()  # all warps have told the largest of their columns
            tops, scales = [self.told(r, place, work) for r in range(2)], []
            rounded = cute.make_rmem_tensor_like(query, Float16)
            rounded.store(cute.recast_tensor(query, Float16).load())  # the same bits
            for r in cutlass.range_constexpr(2):
                exponent = cutlass.max(bits(tops[r], Float32, Int32) >> 23, 15)  # biased by 127
                factor = bits((268 - exponent) << 23, Int32, Float32)
                for i in cutlass.range_constexpr(count // 4):
                    for c in cutlass.range_constexpr(2):
                        rounded[4 * i + 2 * r + c] = (Float32(query[4 * i + 2 * r + c]) * factor).to(Float16)
                scales.append(scale * bits((exponent - 14) << 23, Int32, Float32))
            query = rounded
        for block in cutlass.range_constexpr(OWN_UNITS * STEPS):
            unit = place.warp + block // STEPS * WARPS
            own = cute.make_tensor(query.iterator + FRAGMENT * block, cute.make_layout(FRAGMENT))
            if unit < UNITS:
                cute.autovec_copy(own, work.queries[unit * STEPS + block % STEPS, place.lane, None])
        cute.arch.sync_threads()  # all columns are there: a warp multiplies all of them with its tokens
        for block in cutlass.range_constexpr(HELD * STEPS):
            own = cute.make_tensor(work.held.iterator + FRAGMENT * block, cute.make_layout(FRAGMENT))
            cute.autovec_copy(work.queries[block, place.lane, None], own)
        return scales

    def pair(self, block: int, lane: Int32, half: int) -> Int32:
        """Which two of 16 columns a thread needs for a half of an instruction."""
        return lane * 2 + half

    @cute.jit
    def tell(self, value, r: cutlass.Constexpr, place, work):
        """Tell the other warps the largest of a row that this one has."""
        largest = cute.arch.warp_reduction(value, cute.arch.fmax, threads_in_group=4)
        if place.lane % 4 == 0:
            work.tops[place.warp, place.row + 8 * r] = largest

    def told(self, r: int, place, work) -> Float32:
        """The largest of a row that any warp has."""
        tops = [work.tops[i, place.row + 8 * r] for i in range(WARPS)]
        return cute.arch.fmax(cute.arch.fmax(tops[0], tops[1]), cute.arch.fmax(tops[2], tops[3]))

    def queries(self, q: cute.Tensor, run, piece, place, work) -> cute.Tensor:
        """A warp's columns of the query rows, in the order of ``query_column``: a thread has four neighbours of each 16.

        Rows that do not exist repeat the last one and are never written.
        """
        blocks = OWN_UNITS * STEPS
        held = cute.make_rmem_tensor(work.mma.partition_shape_A((MMA[0], blocks * MMA[2])), q.element_type)
        heads, lane = run.heads, place.lane % 4
        for r in range(2):
            row = cutlass.min(place.row + 8 * r, run.group - 1)
            source = q[piece.sequence, row // heads, row % heads, None]
            for block in range(blocks):
                unit = cutlass.min(place.warp + block // STEPS * WARPS, UNITS - 1)
                first = unit * UNIT + block % STEPS * MMA[2]
                for half in range(2):
                    two = fetch(source, first // 2 + self.pair(block, lane, half), 2)
                    for c in range(2):
                        held[(c, r, half), 0, block] = two[c]
        return held

    @cute.jit
    def score(self, scales, stage, place, work):
        """Multiply the queries with the tokens of this warp."""
        mma, chains = work.mma, work.chains
        for chain in chains:
            chain.fill(0.0)
        for unit in cutlass.range_constexpr(UNITS):
            keys = cute.make_rmem_tensor(mma.partition_shape_B((OWN_TOKENS, UNIT // 2)), Float16)
            target = work.by_key.retile(keys)
            cute.copy(work.by_key, work.key_source[None, None, unit, stage], target[None, None, 0])
            wide = wide_keys(mma, keys, OWN_TOKENS, UNIT)
            for step in cutlass.range_constexpr(STEPS):
                chain = chains[(unit * STEPS + step) % CHAINS]
                query = self.query(unit * STEPS + step, work)
                cute.gemm(mma, chain, query[None, None, 0], wide[None, None, step], chain)
        for i in cutlass.range_constexpr(cute.size(work.scores)):
            sums = [chain[i] for chain in chains]
            work.scores[i] = (sums[0] + sums[1]) + (sums[2] + sums[3])
        scale_sums(work.scores, scales)

    def query(self, block: int, work) -> cute.Tensor:
        """The queries of an instruction, out of registers or of shared memory."""
        shape = work.mma.partition_shape_A((MMA[0], MMA[2]))
        if block < HELD * STEPS:
            return cute.make_tensor(work.held.iterator + FRAGMENT * block, cute.make_layout(shape))
        own = fetch(work.queries[block, cute.arch.lane_idx(), None], 0, FRAGMENT)
        return cute.make_tensor(own.iterator, cute.make_layout(shape))

    @cute.jit
    def weights(self, place, work):
        """A step of the running softmax, as ``softmax_step``, over the tokens of all warps. Weights go to shared memory."""
        scores, softmax = work.scores, work.softmax
        rows = [[i for i, _ in elements(cute.size(scores), r)] for r in range(2)]
        for r in cutlass.range_constexpr(2):
            own = [scores[i] for i in rows[r]]
            self.tell(cute.arch.fmax(cute.arch.fmax(own[0], own[1]), cute.arch.fmax(own[2], own[3])), r, place, work)
        # Barrier 0 is the block's. What warps tell is written again only after all have passed it.
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)
        factors, grown = [], []
        for r in cutlass.range_constexpr(2):
            top, old = self.told(r, place, work), softmax.offsets[r]
            grows = top > old + SLACK
            offset = top if grows else old
            finite = offset if offset > MINUS_INFINITY else Float32(0)
            factor = cute.math.exp2(old - finite, fastmath=True)
            for i in rows[r]:
                scores[i] = cute.math.exp2(scores[i] - finite, fastmath=True)
            own = [scores[i] for i in rows[r]]
            softmax.totals[r] = softmax.totals[r] * factor + ((own[0] + own[1]) + (own[2] + own[3]))
            softmax.offsets[r] = offset
            factors.append(factor)
            grown.append(grows)
        rounded = cute.make_rmem_tensor(FRAGMENT, Float16)
        round_to(rounded, scores)
        cute.autovec_copy(rounded, work.weights[place.warp, place.lane, None])
        # The weights of all tokens are there: a warp multiplies them with its columns of the values.
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)
        return factors, cute.arch.vote_any_sync(grown[0] or grown[1])

    def weights_of(self, stage, place, work) -> list[cute.Tensor]:
        """Weights of a tile, in registers, as instructions take them."""
        shape = work.mma.partition_shape_A((MMA[0], MMA[2]))
        read = [fetch(work.weights[k, place.lane, None], 0, FRAGMENT) for k in range(TOKENS // MMA[2])]
        return [cute.make_tensor(own.iterator, cute.make_layout(shape)) for own in read]

    @cute.jit
    def weigh(self, stage, place, work):
        """Add a quarter of the columns of the values, times their weights."""
        mma, weights = work.mma, self.weights_of(stage, place, work)
        for group in cutlass.range_constexpr(GROUPS):
            values = cute.make_rmem_tensor(mma.partition_shape_B((UNIT // 2, TOKENS)), Float16)
            target = work.by_value.retile(values)
            for k in cutlass.range_constexpr(TOKENS // MMA[2]):
                source = work.value_source[None, None, k, place.warp * GROUPS + group, stage]
                cute.copy(work.by_value, source, target[None, None, k])
            wide = wide_values(mma, values, TOKENS, UNIT)
            for k in cutlass.range_constexpr(TOKENS // MMA[2]):
                cute.gemm(mma, work.sums[group], weights[k][None, None, 0], wide[None, None, k], work.sums[group])

    @cute.jit
    def write(self, output, work, place, r: cutlass.Constexpr):
        """Write a thread's sums of a row."""
        row = place.row + 8 * r
        totals = [work.totals[i, row] for i in range(WARPS)]
        total = (totals[0] + totals[1]) + (totals[2] + totals[3])
        sums, scalars = output.parts
        if row < output.run.group:
            if output.piece.whole:
                factor = inverse(total) * output.scale * self.unit_of_sums(work)
                self.write_row(work.sums, r, factor, output.row_of_output(row), place)
            else:
                self.write_row(work.sums, r, self.unit_of_sums(work), sums[output.slot, row, None], place)
                if place.warp == 0 and place.lane % 4 == 0:
                    scalars[output.slot, row, 0] = work.softmax.offsets[r]
                    scalars[output.slot, row, 1] = total

    def unit_of_sums(self, work) -> Float32:
        """What a sum of one stands for."""
        return Float32(1)

    @cute.jit
    def write_row(self, sums, r: cutlass.Constexpr, factor, target, place):
        """A thread has four neighbours of each 16 columns: see ``value_column``."""
        four = cute.make_rmem_tensor(4, target.element_type)
        for group in cutlass.range_constexpr(GROUPS):
            own = cute.local_tile(target, (UNIT,), (place.warp * GROUPS + group,))
            for block in cutlass.range_constexpr(STEPS):
                for i in cutlass.range_constexpr(4):
                    value = sums[group][4 * (2 * block + i % 2) + 2 * r + i // 2]
                    four[i] = (value * factor).to(target.element_type)
                cute.autovec_copy(four, cute.local_tile(own, (4,), (block * 4 + place.lane % 4,)))

    def work(self, storage, place, mma: cute.TiledMma):
        """Shared memory and registers of a thread."""
        rows, columns = (cute.make_copy_atom(warp.LdMatrix8x8x16bOp(t, 4), Float16) for t in (False, True))
        by_key, by_value = (cute.make_tiled_copy_B(atom, mma).get_slice(place.lane) for atom in (rows, columns))
        memory, tile = cute.recast_ptr(storage, dtype=Float16), self.tile_elements
        apart = self.width, self.pair_pitch
        own = memory + place.warp * (PAIRS * self.pair_pitch)
        order = cute.make_layout(((2, PAIRS), KEY // 2, STAGES), stride=(apart, 1, tile))
        keys = cute.make_tensor(own.align(16), order)
        shape = (UNIT // 2, (2, TOKENS // 2), VALUE // UNIT, STAGES)
        values = cute.make_tensor(memory, cute.make_layout(shape, stride=(1, apart, UNIT // 2, tile)))
        after = (storage + STAGES * tile * 2).align(128)
        order = cute.make_ordered_layout((UNITS * STEPS, WARP, FRAGMENT), order=(2, 1, 0))
        queries = cute.make_tensor(cute.recast_ptr(after, dtype=Float16), order)
        after = (after + QUERY_BYTES).align(128)
        order = cute.make_ordered_layout((WARPS, WARP, FRAGMENT), order=(2, 1, 0))
        weights = cute.make_tensor(cute.recast_ptr(after, dtype=Float16), order)
        after = cute.recast_ptr((after + WEIGHT_BYTES).align(128), dtype=Float32)
        order = cute.make_layout((WARPS, MMA[0]), stride=(MMA[0], 1))
        tops, totals = (cute.make_tensor(after + i * WARPS * MMA[0], order) for i in range(2))
        barriers = cute.recast_ptr((after + 2 * WARPS * MMA[0]).align(BARRIER_BYTES), dtype=Int64)
        self.init_barriers(barriers, place)
        phases = cute.make_rmem_tensor(1, Int32)
        phases.fill(0)
        scores = mma.partition_shape_C((MMA[0], OWN_TOKENS))
        return Work(
            mma,
            cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Float16),
            memory,
            barriers,
            phases,
            cute.make_rmem_tensor(2, Int32),
            queries,
            cute.make_rmem_tensor(HELD * STEPS * FRAGMENT, Float16),
            weights,
            tops,
            totals,
            by_key,
            by_key.partition_S(keys),
            by_value,
            by_value.partition_S(values),
            [cute.make_rmem_tensor(scores, Float32) for _ in range(CHAINS)],
            cute.make_rmem_tensor(scores, Float32),
            [cute.make_rmem_tensor(mma.partition_shape_C((MMA[0], UNIT)), Float32) for _ in range(GROUPS)],
            make_softmax(),
        )


class Place(NamedTuple):
    """Where a thread is: in its block and in its warp, and its warp in the block."""

    thread: Int32
    lane: Int32
    warp: Int32

    @property
    def row(self) -> Int32:
        """The first of the thread's two rows."""
        return self.lane // 4


@dataclass(frozen=True)
class Work:
    """Shared memory and registers of a thread."""

    mma: cute.TiledMma
    atom: cute.CopyAtom
    memory: cute.Pointer
    barriers: cute.Pointer  # an mbarrier for each stage
    phases: cute.Tensor  # see ``await_tile``
    found: cute.Tensor  # the page of the token that this lane copies next, and its place there
    queries: cute.Tensor  # instruction, lane, what a lane needs for it
    held: cute.Tensor  # the first of these, in registers
    weights: cute.Tensor  # of a tile: 16 tokens, lane, what a lane needs for them
    tops: cute.Tensor  # warp, row: the largest of what a warp has
    totals: cute.Tensor  # warp, row: sums of weights
    by_key: Any
    key_source: cute.Tensor
    by_value: Any
    value_source: cute.Tensor
    chains: list[cute.Tensor]  # of scores: these are their sums
    scores: cute.Tensor
    sums: list[cute.Tensor]  # by unit of the result
    softmax: Softmax
