"""Attention of new tokens against a cache of latent vectors, for sm_90a: TMA and wgmma.

A token of such a cache is one vector of 576 elements for all heads. The whole vector is the key, its first 512 elements are
the value. So a tile of the cache is read once and used twice, by up to 64 query rows of a block.

* **Rows.** The heads of all new tokens of a sequence are rows of one matrix, 64 of them in a block. If there are more, as
  many blocks as it takes walk side by side along the same tokens, and all but the first find them in the L2 cache.
* **Warp groups.** One loads. The other two each own half of the 512 columns of the result, 128 registers per thread.
  The *scoring* group also computes the scores and their running softmax, and leaves the weights in shared memory. Then
  both groups multiply them with their own half of the values.
* **Shared memory.** 72 KB of queries and two tiles of 64 tokens, 72 KB each: while one is multiplied, the other is loaded. A
  tile arrives in three parts of 192 columns, so that scores can begin with the first one.
* **Tails.** What lies past the end of a sequence is loaded with its last tile. Scores of such tokens become minus infinity,
  and their values are overwritten with zeros, because a weight of 0 does not remove a NaN.
* **f8e4m3.** See ``_latent_f8_sm90``.
* **Splits.** As for all caches: see ``_schedule`` and ``_merge``.
"""

from __future__ import annotations

from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._device import launched_early
from .._versions import SmemAllocator
from ..rows._rows import add
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
    mask,
    rescale,
    rows_of,
    soften,
    write_row,
)

MAX_BLOCKS = 192  # more than the multiprocessors of any sm_90
ROWS = 64  # of queries
TOKENS = 64  # of a tile
KEY, VALUE = 576, 512  # elements
KEY_LINES = KEY // LINE
OWN = VALUE // 2  # columns of the result that one warp group sums
STAGES = 2
PARTS = 3  # of a tile
PART_LINES = KEY_LINES // PARTS
SCORING = 1  # which warp group


class LatentDecode(Merging):
    """``box`` tokens are copied at once: they lie in one page. ``pair`` blocks form a cluster and share each tile."""

    def __init__(self, target: aot.Target, paged: bool, box: int = TOKENS, pair: int = 1) -> None:
        super().__init__(VALUE, ROWS, TOKENS, MAX_BLOCKS, paged, launched_early(target), side_by_side=pair)
        self.box = box
        self.pair = pair

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        cache: cute.Tensor,
        lengths: cute.Tensor,
        out: cute.Tensor,
        scale: Float32,
        pages,
        cache_scale,
        parts: cute.Tensor,
        multiprocessors: Int32,
        stream: CUstream,
    ):
        self.dtype = q.element_type
        batch, tokens, heads, _ = q.shape
        rows = tokens * heads
        # (rows, columns, sequences), and (tokens, columns, pages). The rows of all tokens of a sequence are in line.
        q_rows = cute.make_tensor(q.iterator, cute.make_layout((rows, KEY, batch), stride=(KEY, 1, q.stride[0])))
        tokens_of = cute.make_tensor(cache.iterator, cute.select(cache.layout, mode=[1, 2, 0]))
        row_major = LayoutEnum.ROW_MAJOR
        q_staged = hopper_helpers.make_smem_layout_a(row_major, (ROWS, TOKENS, LINE), self.dtype, KEY_LINES)
        k_staged = hopper_helpers.make_smem_layout_b(row_major, (ROWS, TOKENS, LINE), self.dtype, STAGES * KEY_LINES)
        k_box = hopper_helpers.make_smem_layout_b(row_major, (ROWS, self.box, LINE), self.dtype, 1)
        load = cpasync.CopyBulkTensorTileG2SOp()
        load_q, q_tiles = cpasync.make_tiled_tma_atom(load, q_rows, cute.select(q_staged, mode=[0, 1]), (ROWS, LINE))
        load_k, k_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SMulticastOp() if self.pair > 1 else load,
            tokens_of,
            cute.select(k_box, mode=[0, 1]),
            (self.box, LINE),
            num_multicast=self.pair,
        )
        first_mma, score_mma = self.score_products()
        sum_mma = hopper_helpers.make_trivial_tiled_mma(
            self.dtype, self.dtype, OperandMajorMode.K, OperandMajorMode.MN, Float32, (1, 1, 1), (ROWS, OWN)
        )
        if batch * rows > 0:  # CUDA refuses an empty grid
            lanes = self.lanes(rows)
            blocks = self.runs(multiprocessors, lanes) * lanes
            self.kernel(
                first_mma, score_mma, sum_mma, load_q, q_tiles, load_k, k_tiles, q_staged, k_staged,
                cache, lengths, out, scale * LOG2_E, pages, cache_scale, parts,
            ).launch(
                grid=[blocks, 1, 1],
                block=[THREADS, 1, 1],
                cluster=[self.pair, 1, 1],
                min_blocks_per_mp=1,
                use_pdl=self.early,
                stream=stream,
            )  # fmt: skip
            self.launch_merge(cache, lengths, out, pages, cache_scale, parts, blocks, stream)

    @cute.kernel
    def kernel(
        self,
        first_mma: cute.TiledMma,
        score_mma: cute.TiledMma,
        sum_mma: cute.TiledMma,
        load_q: cute.CopyAtom,
        q_tiles: cute.Tensor,
        load_k,
        k_tiles,
        q_staged: cute.ComposedLayout,
        k_staged: cute.ComposedLayout,
        cache: cute.Tensor,
        lengths: cute.Tensor,
        out: cute.Tensor,
        scale: Float32,
        pages,
        cache_scale,
        parts: cute.Tensor,
    ):
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // cute.arch.WARP_SIZE)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:
            cpasync.prefetch_descriptor(load_q)
            cpasync.prefetch_descriptor(load_k)
        shared = SmemAllocator()
        queries, keys = [
            shared.allocate_tensor(self.dtype, staged.outer, ALIGNMENT, swizzle=staged.inner)
            for staged in (q_staged, k_staged)
        ]
        one_line = cute.select(q_staged.outer, mode=[0, 1])
        weights = shared.allocate_tensor(
            self.dtype, cute.append(one_line, cute.make_layout(1)), ALIGNMENT, swizzle=q_staged.inner
        )
        factors = shared.allocate_tensor(Float32, cute.make_layout(ROWS), 16)
        totals = shared.allocate_tensor(Float32, cute.make_layout((ROWS, 2)), 16)
        barriers = shared.allocate_array(cutlass.Int64, 2 * STAGES * PARTS)
        q_barriers = shared.allocate_array(cutlass.Int64, 2)
        warps = WARP_GROUP // cute.arch.WARP_SIZE
        loaded = self.loading(barriers)
        loaded_q = self.loading_queries(q_barriers, warps)
        # Queries belong to one block, whatever its place in the cluster is.
        loaded_q = replace(loaded_q, is_signaling_thread=thread % cute.arch.WARP_SIZE == 0)
        pipeline.pipeline_init_arrive(cluster_shape_mn=(self.pair, 1), is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=(self.pair, 1))
        if cutlass.const_expr(self.early):
            cute.arch.griddepcontrol_wait()
            # Only now: blocks of the merging kernel may start, and find lengths and pages that are final.
            cute.arch.griddepcontrol_launch_dependents()
        run = self.run_of_block(cache, lengths, out, pages, cute.arch.grid_dim()[0])
        slots = self.parts_of(parts, cute.arch.grid_dim()[0], run.group)
        first_mma.set(warpgroup.Field.ACCUMULATE, False)
        score_mma.set(warpgroup.Field.ACCUMULATE, True)
        sum_mma.set(warpgroup.Field.ACCUMULATE, True)
        if group == 0:
            cute.arch.setmaxregister_decrease(LOADING_REGISTERS)
            if warp == 0:
                self.load_pieces(run, loaded, loaded_q, load_q, q_tiles, queries, load_k, k_tiles, keys, cache, pages)
        else:
            cute.arch.setmaxregister_increase(MULTIPLYING_REGISTERS)
            if group == SCORING:
                self.score_pieces(
                    run, loaded, loaded_q, (first_mma, score_mma), sum_mma, queries, keys, weights, factors, totals,
                    scale, out, slots,
                )  # fmt: skip
            else:
                self.help_pieces(run, loaded, sum_mma, keys, weights, factors, totals, out, slots)

    def score_products(self) -> list[cute.TiledMma]:
        """Two of the same kind: one starts the scores of a tile, the other adds to them."""
        return [
            hopper_helpers.make_trivial_tiled_mma(
                self.dtype, self.dtype, OperandMajorMode.K, OperandMajorMode.K, Float32, (1, 1, 1), (ROWS, TOKENS)
            )
            for _ in range(2)
        ]

    def loading_queries(self, barriers: cute.Pointer, warps: int) -> pipeline.PipelineTmaAsync:
        """All rows of a piece arrive together, and ``warps`` warps read them."""
        return pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=1,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, warps),
            tx_count=KEY_LINES * ROWS * LINE * ELEMENT_BYTES,
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
            defer_sync=True,
        )

    def loading(self, barriers: cute.Pointer):
        """The pipeline of parts of tiles, from the loading group to the multiplying ones."""
        warps = BOTH // cute.arch.WARP_SIZE
        threads = pipeline.Agent.Thread
        # Each warp that multiplies a part, in each block that receives it, reports when its memory is free again.
        return pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=STAGES * PARTS,
            producer_group=pipeline.CooperativeGroup(threads),
            consumer_group=pipeline.CooperativeGroup(threads, self.pair * warps),
            tx_count=PART_LINES * TOKENS * LINE * ELEMENT_BYTES,
            cta_layout_vmnk=cute.make_layout((1, self.pair, 1, 1)),
            defer_sync=True,
        )

    # Loading.

    @cute.jit
    def load_pieces(self, run, loaded, loaded_q, load_q, q_tiles, queries, load_k, k_tiles, keys, cache, pages):
        """One warp: bring the queries of each piece of the run, then its tiles."""
        to_q, from_q = self.query_copies(load_q, q_tiles, queries)
        box = (self.box, LINE)
        k_tiles = cute.local_tile(k_tiles, box, (None, None, None))
        keys = cute.local_tile(keys, box, (None, 0, None))
        # Each block of a pair loads its share of a box into both.
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) if self.pair > 1 else Int32(0)
        to_k, from_k = cpasync.tma_partition(
            load_k, rank, cute.make_layout(self.pair), cute.group_modes(keys, 0, 2), cute.group_modes(k_tiles, 0, 2)
        )
        both = Int32((1 << self.pair) - 1).to(cutlass.Int16) if self.pair > 1 else None
        q_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES * PARTS)
        size = cache.shape[1]  # of a page, or the capacity
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            q_state = self.load_queries(loaded_q, load_q, to_q, from_q, q_state, run, piece)
            for index in cutlass.range(piece.start, piece.stop):
                # Where the boxes of this tile are. Past the end, the last token's box is brought once more.
                places = []
                for i in cutlass.range_constexpr(TOKENS // self.box):
                    token = cutlass.min(index * TOKENS + i * self.box, piece.length - 1)
                    page = piece.sequence
                    if cutlass.const_expr(self.paged):
                        page = pages[piece.sequence, token // size]
                        token = token % size
                    places.append((page, token // self.box))
                for part in cutlass.range_constexpr(PARTS):
                    loaded.producer_acquire(state)
                    barrier = loaded.producer_get_barrier(state)
                    for i in cutlass.range_constexpr(TOKENS // self.box):
                        for line in cutlass.range_constexpr(PART_LINES):
                            source = from_k[None, places[i][1], part * PART_LINES + line, places[i][0]]
                            target = to_k[None, i, state.index * PART_LINES + line]
                            cute.copy(load_k, source, target, tma_bar_ptr=barrier, mcast_mask=both)
                    state.advance()
            tile += piece.stop - piece.start
        loaded.producer_tail(state)

    def query_copies(self, load_q, q_tiles, queries):
        q_tiles = cute.local_tile(q_tiles, (ROWS, LINE), (None, None, None))
        return cpasync.tma_partition(
            load_q, 0, cute.make_layout(1), cute.group_modes(queries, 0, 2), cute.group_modes(q_tiles, 0, 2)
        )

    @cute.jit
    def load_queries(self, loaded_q, load_q, to_q, from_q, state, run, piece):
        loaded_q.producer_acquire(state)
        barrier = loaded_q.producer_get_barrier(state)
        for line in cutlass.range_constexpr(KEY_LINES):
            cute.copy(load_q, from_q[None, run.lane, line, piece.sequence], to_q[None, line], tma_bar_ptr=barrier)
        state.advance()
        return state

    # Multiplying.

    @cute.jit
    def score_pieces(
        self, run, loaded, loaded_q, score_mmas, sum_mma, queries, keys, weights, factors, totals, scale, out, slots,
    ):  # fmt: skip
        """The scoring group. While it multiplies weights and values of a tile, it starts on the scores of the next."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        mma = score_mmas[1]
        a = mma.make_fragment_A(mma.get_slice(0).partition_A(queries))
        b = mma.make_fragment_B(mma.get_slice(0).partition_B(keys))
        scores = cute.make_rmem_tensor(mma.partition_shape_C((ROWS, TOKENS)), Float32)
        places = mma.get_slice(thread).partition_C(cute.make_identity_tensor((ROWS, TOKENS)))
        sums = cute.make_rmem_tensor(sum_mma.partition_shape_C((ROWS, OWN)), Float32)
        largest, total = (cute.make_rmem_tensor(2, Float32) for _ in range(2))
        scoring = (score_mmas, a, b, scores)
        state = (places, largest, total, sums)
        handed = (weights, factors)
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES * PARTS)
        freed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES * PARTS)
        q_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            sums.fill(0.0)
            largest.fill(MINUS_INFINITY)
            total.fill(0.0)
            loaded_q.consumer_wait(q_state)
            for part in cutlass.range_constexpr(PARTS):
                read = self.start_scores(loaded, scoring, read, part)
            for index in cutlass.range(piece.start, piece.stop - 1):
                read, freed = self.step(
                    loaded, scoring, state, handed, sum_mma, keys, scale, run, piece, index, read, freed, True
                )
            read, freed = self.step(
                loaded, scoring, state, handed, sum_mma, keys, scale, run, piece, piece.stop - 1, read, freed, False
            )
            loaded_q.consumer_release(q_state)
            q_state.advance()
            for i in cutlass.range_constexpr(2):
                all_weights = cute.arch.warp_reduction(total[i], add, threads_in_group=4)
                if thread % 4 == 0:
                    totals[places[2 * i][0], 0] = largest[i]
                    totals[places[2 * i][0], 1] = all_weights
            self.written().arrive_and_wait()
            self.write(sum_mma, sums, totals, out, slots, run, piece, tile, 0)
            tile += piece.stop - piece.start

    @cute.jit
    def start_scores(self, loaded, scoring, read, part: cutlass.Constexpr):
        """Multiply the queries with one part of the next tile, when it has arrived."""
        (first_mma, mma), a, b, scores = scoring
        loaded.consumer_wait(read)
        warpgroup.fence()
        for line in cutlass.range_constexpr(PART_LINES):
            for k in cutlass.range_constexpr(cute.size(a, mode=[2])):
                opening = part == 0 and line == 0 and k == 0  # overwrites the old scores
                own, other = (
                    a[None, None, k, part * PART_LINES + line],
                    b[None, None, k, read.index * PART_LINES + line],
                )
                cute.gemm(first_mma if opening else mma, scores, own, other, scores)
        warpgroup.commit_group()
        read.advance()
        return read

    @cute.jit
    def step(
        self,
        loaded,
        scoring,
        state,
        handed,
        sum_mma,
        keys,
        scale,
        run,
        piece,
        index,
        read,
        freed,
        more: cutlass.Constexpr,
    ):
        """From the scores of a tile to the sums. ``more``: start on the scores of the next one."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        score_mmas, _, _, scores = scoring
        places, largest, total, sums = state
        weights, factors = handed
        factor = cute.make_rmem_tensor(2, Float32)
        warpgroup.wait_group(0)
        mask(scores, places, scale, index * TOKENS, TOKENS, run.lane * ROWS, run, piece)
        soften(scores, largest, total, factor)
        rescale(sums, factor)
        self.may_write().arrive_and_wait()
        self.hand_over(score_mmas[1], scores, weights, thread)
        if thread % 4 == 0:
            for i in cutlass.range_constexpr(2):
                factors[places[2 * i][0]] = factor[i]
        cute.arch.fence_proxy("async.shared", space="cta")
        self.written().arrive_and_wait()
        self.weigh(sum_mma, sums, weights, keys, index, piece, freed.index // PARTS, 0)
        if cutlass.const_expr(more):
            read = self.start_scores(loaded, scoring, read, 0)
            warpgroup.wait_group(1)
        else:
            warpgroup.wait_group(0)
        for _ in cutlass.range_constexpr(PARTS):
            loaded.consumer_release(freed)
            freed.advance()
        if cutlass.const_expr(more):
            for part in cutlass.range_constexpr(1, PARTS):
                read = self.start_scores(loaded, scoring, read, part)
        return read, freed

    @cute.jit
    def hand_over(self, mma, scores, weights, thread):
        """Weights, rounded, into shared memory."""
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), self.dtype)
        copy = cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, mma))
        mine = copy.get_slice(thread)
        rounded = cute.make_rmem_tensor(cute.shape(mine.partition_S(weights))[:3], self.dtype)
        ordered = copy.retile(scores)
        for v in cutlass.range_constexpr(cute.size(rounded)):
            rounded[v] = ordered[v].to(self.dtype)
        cute.copy(copy, rounded, mine.partition_D(weights)[None, None, None, 0])

    @cute.jit
    def help_pieces(self, run, loaded, sum_mma, keys, weights, factors, totals, out, slots):
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        sums = cute.make_rmem_tensor(sum_mma.partition_shape_C((ROWS, OWN)), Float32)
        places = sum_mma.get_slice(thread).partition_C(cute.make_identity_tensor((ROWS, OWN)))
        factor = cute.make_rmem_tensor(2, Float32)
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES * PARTS)
        freed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES * PARTS)
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            sums.fill(0.0)
            for index in cutlass.range(piece.start, piece.stop):
                self.may_write().arrive()
                self.written().arrive_and_wait()
                for _ in cutlass.range_constexpr(PARTS):
                    loaded.consumer_wait(read)
                    read.advance()
                for i in cutlass.range_constexpr(2):
                    factor[i] = factors[places[2 * i][0]]
                rescale(sums, factor)
                self.weigh(sum_mma, sums, weights, keys, index, piece, freed.index // PARTS, 1)
                warpgroup.wait_group(0)
                for _ in cutlass.range_constexpr(PARTS):
                    loaded.consumer_release(freed)
                    freed.advance()
            self.written().arrive_and_wait()
            self.write(sum_mma, sums, totals, out, slots, run, piece, tile, 1)
            tile += piece.stop - piece.start

    def may_write(self) -> pipeline.NamedBarrier:
        """The scoring group waits here until the other one no longer reads the weights of the previous tile."""
        return pipeline.NamedBarrier(barrier_id=1, num_threads=BOTH)

    def written(self) -> pipeline.NamedBarrier:
        """Both wait here for what the scoring group leaves in shared memory."""
        return pipeline.NamedBarrier(barrier_id=2, num_threads=BOTH)

    def together(self, half: int) -> pipeline.NamedBarrier:
        return pipeline.NamedBarrier(barrier_id=3 + half, num_threads=WARP_GROUP)

    @cute.jit
    def weigh(self, mma, sums, weights, keys, index, piece, stage, half: cutlass.Constexpr):
        """Start to add this half of the values, times their weights."""
        valid = piece.length - index * TOKENS
        if valid < TOKENS:
            self.clear(keys, valid, stage, half)
        own = mma.get_slice(0)
        a, b = mma.make_fragment_A(own.partition_A(weights)), mma.make_fragment_B(own.partition_B(self.values(keys)))
        warpgroup.fence()
        for k in cutlass.range_constexpr(cute.size(a, mode=[2])):
            cute.gemm(mma, sums, a[None, None, k, 0], b[None, None, k, (half, stage)], sums)
        warpgroup.commit_group()

    def values(self, keys: cute.Tensor) -> cute.Tensor:
        """The halves of the values of each stage, as columns x tokens: the same memory as the keys."""
        one = hopper_helpers.make_smem_layout_b(LayoutEnum.COL_MAJOR, (ROWS, OWN, TOKENS), self.dtype, 1)
        where = cute.make_layout((2, STAGES), stride=(OWN * TOKENS, KEY * TOKENS))
        return cute.make_tensor(keys.iterator, cute.append(cute.select(one.outer, mode=[0, 1]), where))

    @cute.jit
    def clear(self, keys, valid, stage, half: cutlass.Constexpr):
        """Zeros for this half of the values of tokens past the end."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        for index in cutlass.range(thread, (TOKENS - valid) * OWN, WARP_GROUP):
            column = index % OWN
            line = stage * KEY_LINES + half * (OWN // LINE) + column // LINE
            keys[valid + index // OWN, column % LINE, line] = self.dtype(0)
        cute.arch.fence_proxy("async.shared", space="cta")
        self.together(half).arrive_and_wait()

    @cute.jit
    def write(self, mma, sums, totals, out, slots, run, piece, tile, half: cutlass.Constexpr):
        """Write this half of the rows of the output, or of a slot if the block has not seen all tokens."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        block, _, _ = cute.arch.block_idx()
        places = mma.get_slice(thread).partition_C(cute.make_identity_tensor((ROWS, OWN)))
        heads = run.group // run.tokens
        part_sums, part_scalars = slots
        slot = 2 * block + (0 if tile == run.first else 1)
        by_row = rows_of(sums)
        for i in cutlass.range_constexpr(2):
            within = places[2 * i][0]
            row = run.lane * ROWS + within
            first = (half * OWN + places[0][1]) // 2
            if row < run.group:
                if piece.whole:
                    factor = inverse(totals[within, 1])
                    target = out[piece.sequence, row // heads, row % heads, None]
                    write_row(by_row, i, factor, target, first)
                else:
                    write_row(by_row, i, Float32(1), part_sums[slot, within, None], first)
                    if cutlass.const_expr(half == 0):  # noqa: SIM102  decided when compiling
                        if thread % 4 == 0:
                            part_scalars[slot, within, 0] = totals[within, 0]
                            part_scalars[slot, within, 1] = totals[within, 1]
