"""Attention of a few new tokens whose many heads share one head of the cache, for sm_90a: TMA and wgmma.

With more than 64 query rows for each token of the cache, ``_decode`` is limited by what its warps load from shared memory.
wgmma multiplies from there directly.

* **Rows.** A block has 128 query rows, 64 for each of two warp groups that multiply. A third warp group loads.
* **Ring.** Keys and values of 128 tokens take turns in a ring of slots in shared memory. Both warp groups use each slot.
* **Turns.** Warp groups start their products in turns. While one is at its softmax, the products of the other run.
* **Weights** stay in registers: what the first product leaves there has the order that the second expects.
* **L2 cache.** Where a sequence is cut, the cache is asked to replace its keys and values first, so that it keeps the parts
  until they are merged. Whole sequences leave no parts, and are faster without that. With more than 128 rows several blocks
  read the same tokens, and the cache should keep those.
* **Tails and splits**: as in ``_latent_sm90``. To merge 128 rows takes long, so blocks take whole sequences if these have
  the same length and if almost as many blocks are busy.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._device import EVICT_FIRST, EVICT_NORMAL, fetch, launched_early
from .._versions import SmemAllocator
from ..rows._rows import add
from ._attention import Softmax, narrow, scale_sums, soften, thread_row
from ._merge import LOG2_E, MINUS_INFINITY, Merging, inverse
from ._tile_sm90 import (
    ALIGNMENT,
    BOTH,
    ELEMENT_BYTES,
    LINE,
    LOADING_REGISTERS,
    MULTIPLYING_REGISTERS,
    THREADS,
    WARP_GROUP,
    rows_of,
    write_row,
)

MAX_BLOCKS = 192  # more than the multiprocessors of any sm_90
OWN = 64  # query rows of a warp group
ROWS = 2 * OWN
TOKENS = 128  # of a tile
SLACK = 12  # a run may be longer by one tile in so many, if then nothing is merged
BOXES = (64, 16)  # tokens that one copy brings: as many, or a divisor, make a page
CHUNK = 8  # elements of 16 bytes
SMALLEST = 2.0**-100  # scale of the scores: their differences vanish


class WideDecode(Merging):
    """``dim`` is the width of a head. ``box`` tokens are copied at once: they lie in one page."""

    merge_shares = 4  # more blocks take longer to start, fewer to merge

    def __init__(self, target: aot.Target, dim: int, paged: bool, box: int) -> None:
        super().__init__(dim, ROWS, TOKENS, MAX_BLOCKS, paged, launched_early(target), side_by_side=1, slack=SLACK)
        self.box = box
        self.lines = dim // LINE
        self.slot_bytes = TOKENS * dim * ELEMENT_BYTES
        self.slots = (target.shared_memory - ROWS * dim * ELEMENT_BYTES - ALIGNMENT) // self.slot_bytes // 2 * 2

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
        self.dtype = q.element_type
        batch, tokens, heads, _ = q.shape
        if batch * tokens * heads > 0:  # CUDA refuses an empty grid
            lanes = self.lanes(self.group(out, k_cache))
            blocks = self.runs(multiprocessors, lanes) * lanes
            if cutlass.min(k_cache.shape[0], k_cache.shape[1]) > 0:  # TMA refuses an empty cache
                self.launch(q, k_cache, v_cache, lengths, out, scale * LOG2_E, pages, parts, blocks, stream)
            self.launch_merge(k_cache, lengths, out, pages, None, parts, blocks, stream)

    def launch(self, q, k_cache, v_cache, lengths, out, scale, pages, parts, blocks: Int32, stream) -> None:
        row_major = LayoutEnum.ROW_MAJOR
        tile = (OWN, TOKENS, LINE)
        q_staged = hopper_helpers.make_smem_layout_a(row_major, tile, self.dtype, 2 * self.lines)
        staged = hopper_helpers.make_smem_layout_b(row_major, tile, self.dtype, self.slots * self.lines)
        box = hopper_helpers.make_smem_layout_b(row_major, (OWN, self.box, LINE), self.dtype, 1)
        (load_k, k_tiles), (load_v, v_tiles) = [
            cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileG2SOp(),
                cute.make_tensor(cache.iterator, cute.select(cache.layout, mode=[1, 3, 2, 0])),
                cute.select(box, mode=[0, 1]),
                (self.box, LINE),
            )
            for cache in (k_cache, v_cache)
        ]
        first_mma, score_mma = [
            hopper_helpers.make_trivial_tiled_mma(
                self.dtype, self.dtype, OperandMajorMode.K, OperandMajorMode.K, Float32, (1, 1, 1), (OWN, TOKENS)
            )
            for _ in range(2)
        ]
        sum_mma = hopper_helpers.make_trivial_tiled_mma(
            self.dtype, self.dtype, OperandMajorMode.K, OperandMajorMode.MN, Float32, (1, 1, 1), (OWN, self.dim),
            warpgroup.OperandSource.RMEM,
        )  # fmt: skip
        self.kernel(
            first_mma, score_mma, sum_mma, load_k, k_tiles, load_v, v_tiles, q_staged, staged,
            q, k_cache, lengths, out, scale, pages, parts,
        ).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], min_blocks_per_mp=1, use_pdl=self.early, stream=stream)  # fmt: skip

    @cute.kernel
    def kernel(
        self,
        first_mma: cute.TiledMma,
        score_mma: cute.TiledMma,
        sum_mma: cute.TiledMma,
        load_k: cute.CopyAtom,
        k_tiles: cute.Tensor,
        load_v: cute.CopyAtom,
        v_tiles: cute.Tensor,
        q_staged: cute.ComposedLayout,
        staged: cute.ComposedLayout,
        q: cute.Tensor,
        cache: cute.Tensor,
        lengths: cute.Tensor,
        out: cute.Tensor,
        scale: Float32,
        pages,
        parts: cute.Tensor,
    ):
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // cute.arch.WARP_SIZE)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:
            cpasync.prefetch_descriptor(load_k)
            cpasync.prefetch_descriptor(load_v)
        shared = SmemAllocator()
        queries, ring = [
            shared.allocate_tensor(self.dtype, layout.outer, ALIGNMENT, swizzle=layout.inner)
            for layout in (q_staged, staged)
        ]
        loaded = pipeline.PipelineTmaAsync.create(
            barrier_storage=shared.allocate_array(Int64, 2 * self.slots),
            num_stages=self.slots,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, BOTH // cute.arch.WARP_SIZE),
            tx_count=self.slot_bytes,
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
            defer_sync=True,
        )
        pipeline.pipeline_init_arrive(cluster_shape_mn=(1, 1), is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=(1, 1))
        self.begin()
        run = self.run_of_block(cache, lengths, out, pages, cute.arch.grid_dim()[0])
        slots = self.parts_of(parts, cute.arch.grid_dim()[0], run.group)
        first_mma.set(warpgroup.Field.ACCUMULATE, False)
        score_mma.set(warpgroup.Field.ACCUMULATE, True)
        sum_mma.set(warpgroup.Field.ACCUMULATE, True)
        if group == 0:
            cute.arch.setmaxregister_decrease(LOADING_REGISTERS)
            if warp == 0:
                self.load_pieces(run, loaded, load_k, k_tiles, load_v, v_tiles, ring, cache, pages)
        else:
            cute.arch.setmaxregister_increase(MULTIPLYING_REGISTERS)
            self.attend_pieces(
                run, loaded, (first_mma, score_mma), sum_mma, q, queries, ring, scale, out, slots, group - 1
            )

    @cute.jit
    def load_pieces(self, run, loaded, load_k, k_tiles, load_v, v_tiles, ring, cache, pages):
        """One warp: bring keys and values of each tile, one after the other."""
        box = (self.box, LINE)
        targets = cute.group_modes(cute.local_tile(ring, box, (None, 0, None)), 0, 2)
        k_tiles, v_tiles = [
            cute.group_modes(cute.local_tile(tiles, box, (None, None, None, None)), 0, 2)
            for tiles in (k_tiles, v_tiles)
        ]
        to_k, from_k = cpasync.tma_partition(load_k, 0, cute.make_layout(1), targets, k_tiles)
        to_v, from_v = cpasync.tma_partition(load_v, 0, cute.make_layout(1), targets, v_tiles)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.slots)
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            policy = Int64(EVICT_NORMAL) if piece.whole or run.group > ROWS else Int64(EVICT_FIRST)
            keys, values = (load_k, from_k, to_k, policy), (load_v, from_v, to_v, policy)
            # In the order in which they are multiplied: the keys of a tile before the values of the previous one.
            for index in cutlass.range(piece.start, piece.stop):
                state = self.load_tile(loaded, keys, cache, pages, piece, index, state)
                if index > piece.start:
                    state = self.load_tile(loaded, values, cache, pages, piece, index - 1, state)
            state = self.load_tile(loaded, values, cache, pages, piece, piece.stop - 1, state)
            tile += piece.stop - piece.start
        loaded.producer_tail(state)

    @cute.jit
    def load_tile(self, loaded, copying, cache, pages, piece, index, state):
        """Keys, or values, of a tile, from one page for each box. Past the end, the last token's box is brought once more."""
        load, source, target, policy = copying
        size = cache.shape[1]  # of a page, or the capacity
        places = []
        for i in cutlass.range_constexpr(TOKENS // self.box):
            token = cutlass.min(index * TOKENS + i * self.box, piece.length - 1)
            page = piece.sequence
            if cutlass.const_expr(self.paged):
                page = pages[piece.sequence, token // size]
                token = token % size
            places.append((token // self.box, page))
        loaded.producer_acquire(state)
        barrier = loaded.producer_get_barrier(state)
        for i in cutlass.range_constexpr(TOKENS // self.box):
            for line in cutlass.range_constexpr(self.lines):
                brought = source[None, places[i][0], line, piece.unit, places[i][1]]
                slot = target[None, i, state.index * self.lines + line]
                cute.copy(load, brought, slot, tma_bar_ptr=barrier, cache_policy=policy)
        state.advance()
        return state

    @cute.jit
    def attend_pieces(self, run, loaded, score_mmas, sum_mma, q, queries, ring, scale, out, slots, half):
        """A warp group: 64 rows of each piece. The softmax of a tile runs beside the second product of the previous one."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        mma = score_mmas[1]
        a = mma.make_fragment_A(mma.get_slice(0).partition_A(queries))
        b = mma.make_fragment_B(mma.get_slice(0).partition_B(ring))
        scores = cute.make_rmem_tensor(mma.partition_shape_C((OWN, TOKENS)), Float32)
        rounded = cute.make_rmem_tensor_like(scores, self.dtype)
        row = run.lane * ROWS + half * OWN + thread_row(thread)
        sums = cute.make_rmem_tensor(sum_mma.partition_shape_C((OWN, self.dim)), Float32)
        offsets, totals = (cute.make_rmem_tensor(2, Float32) for _ in range(2))
        # The softmax wants the largest score to stay the largest. So a sign goes to the queries, and 0 is almost 0.
        magnitude = cute.arch.fmax(cute.arch.fmax(scale, -scale), SMALLEST)
        softmax = Softmax(magnitude, Float32(0), Float32(0), offsets, totals)
        sign = Float32(1) if scale >= 0.0 else Float32(-1)
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.slots)
        freed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.slots)
        top = run.lane * ROWS + half * OWN
        scoring = (score_mmas, a, b, scores, half)
        if half == 1:
            self.turn(0).arrive()  # which is the first
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            self.copy_queries(q, queries, sign, run, piece, top, half)
            sums.fill(0.0)
            softmax.reset()
            read = self.start_scores(loaded, scoring, read)
            warpgroup.wait_group(0)
            loaded.consumer_release(freed)
            freed.advance()
            self.mask(scores, piece.start, row, run, piece)
            soften(scores, softmax)
            narrow(scores, rounded)
            for index in cutlass.range(piece.start, piece.stop - 1):
                self.turn(half).arrive_and_wait()
                read = self.start_scores(loaded, scoring, read)
                read = self.start_sums(loaded, sum_mma, sums, rounded, ring, read)
                self.turn(1 - half).arrive()
                warpgroup.wait_group(1)
                loaded.consumer_release(freed)
                freed.advance()
                self.mask(scores, index + 1, row, run, piece)
                factors, grown = soften(scores, softmax)
                # This is never true. Without it, the assembler waits for the second product before it computes most of
                # the weights.
                if softmax.totals[0] + softmax.totals[1] < 0.0:
                    cute.arch.sync_warp()
                warpgroup.wait_group(0)
                loaded.consumer_release(freed)
                freed.advance()
                narrow(scores, rounded)
                if grown:
                    scale_sums(sums, factors)
            # Only the last tile of a sequence may have tokens past its end. Nothing is being multiplied now.
            loaded.consumer_wait(read)
            valid = piece.length - (piece.stop - 1) * TOKENS
            if valid < TOKENS:
                self.clear(ring, valid, read.index)
            read = self.start_sums(loaded, sum_mma, sums, rounded, ring, read)
            warpgroup.wait_group(0)
            loaded.consumer_release(freed)
            freed.advance()
            for i in cutlass.range_constexpr(2):
                softmax.totals[i] = cute.arch.warp_reduction(softmax.totals[i], add, threads_in_group=4)
            self.write(sum_mma, sums, softmax.offsets, softmax.totals, out, slots, run, piece, tile, top, half)
            tile += piece.stop - piece.start

    @cute.jit
    def mask(self, scores, index, row, run, piece):
        """Take out tokens past the end, and tokens that come after the row's own."""
        if (index + 1) * TOKENS > piece.length - (run.tokens - 1):
            start = index * TOKENS + cute.arch.lane_idx() % 4 * 2
            for r in cutlass.range_constexpr(2):
                token = cutlass.min(row + 8 * r, run.group - 1) // (run.group // run.tokens)
                visible = piece.length - (run.tokens - 1 - token)
                for n in cutlass.range_constexpr(TOKENS // 8):
                    for c in cutlass.range_constexpr(2):
                        i = 4 * n + 2 * r + c
                        scores[i] = scores[i] if visible - start > 8 * n + c else Float32(MINUS_INFINITY)

    @cute.jit
    def start_scores(self, loaded, scoring, read):
        """Multiply the queries with the keys of the next tile, when they have arrived."""
        (first_mma, mma), a, b, scores, half = scoring
        loaded.consumer_wait(read)
        warpgroup.fence()
        for line in cutlass.range_constexpr(self.lines):
            for k in cutlass.range_constexpr(cute.size(a, mode=[2])):
                own = a[None, None, k, half * self.lines + line]
                other = b[None, None, k, read.index * self.lines + line]
                cute.gemm(first_mma if line + k == 0 else mma, scores, own, other, scores)
        warpgroup.commit_group()
        read.advance()
        return read

    @cute.jit
    def start_sums(self, loaded, mma, sums, rounded, ring, read):
        """Start to add the values of a tile, times their weights, when they have arrived."""
        values = mma.make_fragment_B(mma.get_slice(0).partition_B(self.values(ring)))
        # Accumulators, reordered: two columns, two rows, two blocks of eight columns; then along the tokens.
        order = cute.make_layout(((2, 2, 2), 1, TOKENS // 16), stride=((1, 2, 4), 0, 8))
        weights = cute.make_tensor(rounded.iterator, order)
        loaded.consumer_wait(read)
        warpgroup.fence()
        for k in cutlass.range_constexpr(TOKENS // 16):
            cute.gemm(mma, sums, weights[None, None, k], values[None, None, k, read.index], sums)
        warpgroup.commit_group()
        read.advance()
        return read

    def values(self, ring: cute.Tensor) -> cute.Tensor:
        """Slots as columns x tokens."""
        one = hopper_helpers.make_smem_layout_b(LayoutEnum.COL_MAJOR, (OWN, self.dim, TOKENS), self.dtype, 1)
        where = cute.make_layout(self.slots, stride=self.dim * TOKENS)
        return cute.make_tensor(ring.iterator, cute.append(cute.select(one.outer, mode=[0, 1]), where))

    @cute.jit
    def copy_queries(self, q, queries, sign, run, piece, top, half):
        """The rows of a warp group into shared memory. Rows that do not exist repeat the last one and are never written."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        heads = run.group // run.tokens
        across = self.dim // CHUNK
        self.together(half).arrive_and_wait()  # the rows of the previous piece are no longer multiplied
        for index in cutlass.range(thread, OWN * across, WARP_GROUP):
            within, chunk = index // across, index % across
            row = cutlass.min(top + within, run.group - 1)
            values = fetch(q[piece.sequence, row // heads, piece.unit * heads + row % heads, None], chunk, CHUNK)
            target = queries[within, None, half * self.lines + chunk // (LINE // CHUNK)]
            for c in cutlass.range_constexpr(CHUNK):
                target[chunk % (LINE // CHUNK) * CHUNK + c] = (Float32(values[c]) * sign).to(self.dtype)
        cute.arch.fence_proxy("async.shared", space="cta")
        self.together(half).arrive_and_wait()

    @cute.jit
    def clear(self, ring, valid, slot):
        """Zeros for the values of tokens past the end, by both warp groups."""
        thread = cute.arch.thread_idx()[0] % BOTH
        for index in cutlass.range(thread, (TOKENS - valid) * self.dim, BOTH):
            column = index % self.dim
            ring[valid + index // self.dim, column % LINE, slot * self.lines + column // LINE] = self.dtype(0)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipeline.NamedBarrier(barrier_id=1, num_threads=BOTH).arrive_and_wait()

    def turn(self, half) -> pipeline.NamedBarrier:
        """The barrier at which a warp group waits until the other one has started its products."""
        return pipeline.NamedBarrier(barrier_id=4 + half, num_threads=BOTH)

    def together(self, half) -> pipeline.NamedBarrier:
        """The barrier of a warp group."""
        return pipeline.NamedBarrier(barrier_id=2 + half, num_threads=WARP_GROUP)

    @cute.jit
    def write(self, mma, sums, largest, total, out, slots, run, piece, tile, top, half):
        """Write rows of the output, or of a slot if the block has not seen all tokens."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        block, _, _ = cute.arch.block_idx()
        places = mma.get_slice(thread).partition_C(cute.make_identity_tensor((OWN, self.dim)))
        heads = run.group // run.tokens
        part_sums, part_scalars = slots
        slot = 2 * block + (0 if tile == run.first else 1)
        by_row = rows_of(sums)
        first = places[0][1] // 2
        for i in cutlass.range_constexpr(2):
            within = half * OWN + places[2 * i][0]
            row = top + places[2 * i][0]
            if row < run.group:
                if piece.whole:
                    target = out[piece.sequence, row // heads, piece.unit * heads + row % heads, None]
                    write_row(by_row, i, inverse(total[i]), target, first)
                else:
                    write_row(by_row, i, Float32(1), part_sums[slot, within, None], first)
                    if thread % 4 == 0:
                        part_scalars[slot, within, 0] = largest[i]
                        part_scalars[slot, within, 1] = total[i]
