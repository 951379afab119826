"""Attention of new tokens against a cache of latent vectors of f8e4m3, for sm_90a.

As ``_latent_sm90``, but for these:

* **Conversion.** TMA brings a line of 64 columns into the second half of the memory that it will need. A warp of the loading
  group converts it, exactly, in its place.
* **Warp groups.** The two groups that multiply take turns at the scores: the first computes those of tiles 0, 2, 4 and so on,
  and their running softmax, the second those of the others. Each leaves its weights in shared memory for the other one, and
  multiplies them with its own half of the values from its registers. So while one computes a softmax, the other multiplies.
* **Shared memory.** Each line of a tile is loaded as soon as the same line of the tile before the previous one is no longer
  needed. The last line has no values, so weights take its place when the scores have been computed.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float8E4M3FN, Float32, Int32, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._versions import SmemAllocator
from ..rows._rows import add
from ._latent_sm90 import KEY, KEY_LINES, OWN, ROWS, STAGES, TOKENS, VALUE, LatentDecode
from ._merge import LOG2_E, MINUS_INFINITY, inverse, scale_of
from ._tile_sm90 import (
    ALIGNMENT,
    BOTH,
    ELEMENT_BYTES,
    LINE,
    THREADS,
    WARP_GROUP,
    mask,
    rescale,
    rows_of,
    soften,
    write_row,
)

OWN_LINES = OWN // LINE
CHUNK = 16  # elements that a lane converts at once
LINE_CHUNKS = LINE // CHUNK
LINE_BYTES = TOKENS * LINE * ELEMENT_BYTES  # of a tile
CONVERTERS = 3  # warps
# A block gets 168 registers per thread. Those that multiply cannot do with fewer than 208.
CONVERTING_REGISTERS, MULTIPLYING_REGISTERS = 72, 216


class NarrowLatentDecode(LatentDecode):
    """``box`` tokens are copied at once: they lie in one page."""

    def __init__(self, target: aot.Target, paged: bool, box: int = TOKENS) -> None:
        super().__init__(target, paged, box)

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
        load = cpasync.CopyBulkTensorTileG2SOp()
        load_q, q_tiles = cpasync.make_tiled_tma_atom(load, q_rows, cute.select(q_staged, mode=[0, 1]), (ROWS, LINE))
        k_box = cute.make_layout((self.box, LINE), stride=(LINE, 1))
        load_k, k_tiles = cpasync.make_tiled_tma_atom(load, tokens_of, k_box, (self.box, LINE))
        first_mma, score_mma = self.score_products()
        sum_mma, own_mma = [
            hopper_helpers.make_trivial_tiled_mma(
                self.dtype, self.dtype, OperandMajorMode.K, OperandMajorMode.MN, Float32, (1, 1, 1), (ROWS, OWN), source
            )
            for source in (warpgroup.OperandSource.SMEM, warpgroup.OperandSource.RMEM)
        ]
        if batch * rows > 0:  # CUDA refuses an empty grid
            lanes = self.lanes(rows)
            blocks = self.runs(multiprocessors, lanes) * lanes
            self.kernel(
                first_mma, score_mma, sum_mma, own_mma, load_q, q_tiles, load_k, k_tiles, q_staged, k_staged,
                cache, lengths, out, scale * LOG2_E, pages, cache_scale, parts,
            ).launch(
                grid=[blocks, 1, 1],
                block=[THREADS, 1, 1],
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
        own_mma: cute.TiledMma,
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
        # The weights of a tile take the place of its last line, which nobody but the scores needs.
        weights = cute.make_tensor(
            keys.iterator + VALUE * TOKENS, cute.append(one_line, cute.make_layout(STAGES, stride=KEY * TOKENS))
        )
        handed = shared.allocate_tensor(Float32, cute.make_layout((ROWS, 2, 2)), 16)
        totals = shared.allocate_tensor(Float32, cute.make_layout((ROWS, 2)), 16)
        barriers = shared.allocate_array(cutlass.Int64, 2 * STAGES * KEY_LINES)
        q_barriers = shared.allocate_array(cutlass.Int64, 2)
        warps = BOTH // cute.arch.WARP_SIZE
        # A line has arrived when TMA has brought it, and is loaded when it has been converted.
        arrived = self.arriving(barriers)
        loaded = self.converting(shared.allocate_array(cutlass.Int64, 2 * STAGES * KEY_LINES))
        loaded_q = self.loading_queries(q_barriers, warps)
        pipeline.pipeline_init_arrive(cluster_shape_mn=(1, 1), is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=(1, 1))
        if cutlass.const_expr(self.early):
            cute.arch.griddepcontrol_wait()
            # Only now: blocks of the merging kernel may start, and find lengths and pages that are final.
            cute.arch.griddepcontrol_launch_dependents()
        run = self.run_of_block(cache, lengths, out, pages, cute.arch.grid_dim()[0])
        slots = self.parts_of(parts, cute.arch.grid_dim()[0], run.group)
        first_mma.set(warpgroup.Field.ACCUMULATE, False)
        score_mma.set(warpgroup.Field.ACCUMULATE, True)
        sum_mma.set(warpgroup.Field.ACCUMULATE, True)
        own_mma.set(warpgroup.Field.ACCUMULATE, True)
        if group == 0:
            cute.arch.setmaxregister_decrease(CONVERTING_REGISTERS)
            if warp == 0:
                self.load_pieces(run, arrived, loaded_q, load_q, q_tiles, queries, load_k, k_tiles, keys, cache, pages)
            else:
                self.convert_pieces(run, arrived, loaded, keys, warp - 1)
        else:
            cute.arch.setmaxregister_increase(MULTIPLYING_REGISTERS)
            factor = scale_of(cache_scale, 0)
            for half in cutlass.range_constexpr(2):
                if group == 1 + half:
                    self.attend_pieces(
                        run, (loaded, arrived), loaded_q, (first_mma, score_mma), sum_mma, own_mma, queries, keys, weights, handed,
                        totals, scale * factor, factor, out, slots, half,
                    )  # fmt: skip

    def arriving(self, barriers: cute.Pointer) -> pipeline.PipelineTmaAsync:
        """The pipeline of lines of tiles that TMA brings."""
        # Each warp of the group that needs a line last reports when its memory is free.
        warps = WARP_GROUP // cute.arch.WARP_SIZE
        return pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=STAGES * KEY_LINES,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, warps),
            tx_count=LINE_BYTES // 2,
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
            defer_sync=True,
        )

    def converting(self, barriers: cute.Pointer) -> pipeline.PipelineAsync:
        """The pipeline of lines that one warp converts. Their memory is free when :meth:`arriving` says so."""
        return pipeline.PipelineAsync.create(
            barrier_storage=barriers,
            num_stages=STAGES * KEY_LINES,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
            defer_sync=True,
        )

    # Loading.

    @cute.jit
    def load_pieces(self, run, loaded, loaded_q, load_q, q_tiles, queries, load_k, k_tiles, keys, cache, pages):
        """One warp: bring the queries of each piece of the run, then its tiles."""
        to_q, from_q = self.query_copies(load_q, q_tiles, queries)
        box = (self.box, LINE)
        k_tiles = cute.local_tile(k_tiles, box, (None, None, None))
        keys = cute.local_tile(self.narrow_lines(keys, cache.element_type), box, (None, 0, None))
        to_k, from_k = cpasync.tma_partition(
            load_k, 0, cute.make_layout(1), cute.group_modes(keys, 0, 2), cute.group_modes(k_tiles, 0, 2)
        )
        q_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
        count = Int32(0)
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            q_state = self.load_queries(loaded_q, load_q, to_q, from_q, q_state, run, piece)
            for index in cutlass.range(piece.start, piece.stop):
                boxes = self.boxes(cache, pages, piece, index)
                for line in cutlass.range_constexpr(KEY_LINES):
                    state = self.free(count, line)
                    loaded.producer_acquire(state)
                    barrier = loaded.producer_get_barrier(state)
                    for i in cutlass.range_constexpr(TOKENS // self.box):
                        source = from_k[None, boxes[i][1], line, boxes[i][0]]
                        cute.copy(load_k, source, to_k[None, i, state.index], tma_bar_ptr=barrier)
                count += 1
            tile += piece.stop - piece.start
        self.drain(loaded, count)

    def boxes(self, cache, pages, piece, index) -> list[tuple[Int32, Int32]]:
        """Where the boxes of a tile are: page, and place there. Past the end, the last token's box is brought once more."""
        places = []
        for i in range(TOKENS // self.box):
            token = cutlass.min(index * TOKENS + i * self.box, piece.length - 1)
            page = piece.sequence
            if self.paged:
                page, token = pages[piece.sequence, token // cache.shape[1]], token % cache.shape[1]
            places.append((page, token // self.box))
        return places

    @cute.jit
    def drain(self, loaded, count):
        """Blocks of a cluster stay until all have been told that memory is free."""
        for back in cutlass.range_constexpr(STAGES):
            if count > back:
                for line in cutlass.range_constexpr(KEY_LINES):
                    state = self.place(count - 1 - back, line)
                    loaded.sync_object_empty.wait(state.index, state.phase)

    def place(self, count: Int32, line) -> pipeline.PipelineState:
        """Where a line of a tile is in the ring, and in which turn of it."""
        return pipeline.PipelineState(
            STAGES * KEY_LINES, Int32(0), count % STAGES * KEY_LINES + line, count // STAGES % 2
        )

    def free(self, count: Int32, line) -> pipeline.PipelineState:
        """The same, for those who load: they wait for the end of the turn before."""
        place = self.place(count, line)
        return pipeline.PipelineState(place.stages, place.count, place.index, place.phase ^ 1)

    def narrow_lines(self, keys: cute.Tensor, dtype) -> cute.Tensor:
        """Where lines of a narrow cache arrive: in the second half of the memory that they will have when converted."""
        memory = cute.recast_ptr(keys.iterator, dtype=dtype) + LINE_BYTES // 2  # without the swizzle of the layout
        shape, stride = (TOKENS, LINE, STAGES * KEY_LINES), (LINE, 1, LINE_BYTES)
        return cute.make_tensor(memory.align(ALIGNMENT), cute.make_layout(shape, stride=stride))

    @cute.jit
    def convert_pieces(self, run, arrived, loaded, keys, converter):
        """A warp: every third line of each tile, from elements of 8 bits to elements of 16 bits in the same place."""
        count = Int32(0)
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            for _ in cutlass.range(piece.start, piece.stop):
                for i in cutlass.range_constexpr(KEY_LINES // CONVERTERS):
                    state = self.place(count, i * CONVERTERS + converter)
                    arrived.consumer_wait(state)
                    self.convert_line(keys, state.index)
                    cute.arch.fence_proxy("async.shared", space="cta")
                    cute.arch.sync_warp()
                    if cute.arch.lane_idx() == 0:
                        loaded.producer_commit(state)
                count += 1
            tile += piece.stop - piece.start

    @cute.jit
    def convert_line(self, keys, line):
        """Write chunks to where TMA would have brought them: the eight of a line of 128 bytes are swizzled by its row."""
        lane = cute.arch.lane_idx()
        memory = cute.recast_ptr(keys.iterator, dtype=self.dtype)  # without the swizzle of the layout
        narrow = self.narrow_lines(keys, Float8E4M3FN)[None, None, line]
        rows = cute.arch.WARP_SIZE // LINE_CHUNKS  # that a warp has a chunk of at a time
        held = [cute.make_rmem_tensor(CHUNK, Float8E4M3FN) for _ in range(TOKENS // rows)]
        for i in cutlass.range_constexpr(TOKENS // rows):
            row = narrow[i * rows + lane // LINE_CHUNKS, None]
            cute.autovec_copy(cute.local_tile(row, (CHUNK,), (lane % LINE_CHUNKS,)), held[i])
        cute.arch.sync_warp()
        wide = cute.make_rmem_tensor(CHUNK, self.dtype)
        halves = cute.make_tensor(wide.iterator, cute.make_layout((CHUNK // 2, 2)))
        for i in cutlass.range_constexpr(TOKENS // rows):
            row = i * rows + lane // LINE_CHUNKS
            wide.store(held[i].load().to(Float32).to(self.dtype))
            for half in cutlass.range_constexpr(2):
                within = (lane % LINE_CHUNKS * 2 + half) ^ (row % 8)
                place = memory + (line * TOKENS + row) * LINE + within * (CHUNK // 2)
                target = cute.make_tensor(place.align(CHUNK), cute.make_layout(CHUNK // 2))
                cute.autovec_copy(halves[None, half], target)

    # Multiplying.

    @cute.jit
    def attend_pieces(
        self, run, pipelines, loaded_q, score_mmas, sum_mma, from_registers, queries, keys, weights, handed, totals, scale,
        v_scale, out, slots, half: cutlass.Constexpr,
    ):  # fmt: skip
        """A warp group: its half of the result of each piece, and the scores of every other tile."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        mma = score_mmas[1]
        a = mma.make_fragment_A(mma.get_slice(0).partition_A(queries))
        b = mma.make_fragment_B(mma.get_slice(0).partition_B(keys))
        scores = cute.make_rmem_tensor(mma.partition_shape_C((ROWS, TOKENS)), Float32)
        places = mma.get_slice(thread).partition_C(cute.make_identity_tensor((ROWS, TOKENS)))
        sums = cute.make_rmem_tensor(sum_mma.partition_shape_C((ROWS, OWN)), Float32)
        largest, total = (cute.make_rmem_tensor(2, Float32) for _ in range(2))
        scoring = (score_mmas, a, b, scores)
        weighing = (sum_mma, from_registers, sums, weights, keys, handed)
        softmax = (places, largest, total, scale)
        q_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
        counted = Int32(0)  # tiles of earlier pieces
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            tiles = piece.stop - piece.start
            sums.fill(0.0)
            largest.fill(MINUS_INFINITY)
            total.fill(0.0)
            loaded_q.consumer_wait(q_state)
            if cutlass.const_expr(half == 0):
                self.score_even(pipelines, scoring, weighing, softmax, run, piece, counted)
            else:
                self.score_odd(pipelines, scoring, weighing, softmax, run, piece, counted)
            loaded_q.consumer_release(q_state)
            q_state.advance()
            for i in cutlass.range_constexpr(2):
                all_weights = cute.arch.warp_reduction(total[i], add, threads_in_group=4)
                if thread % 4 == 0:
                    totals[places[2 * i][0], half] = all_weights
            self.both().arrive_and_wait()
            self.write(sum_mma, sums, largest, totals, v_scale, out, slots, run, piece, tile, half)
            self.both().arrive_and_wait()  # the memory of weights and totals is free again
            counted += tiles
            tile += tiles

    @cute.jit
    def score_even(self, pipelines, scoring, weighing, softmax, run, piece, counted):
        """The first group scores tiles 0, 2, 4, ... of a piece."""
        count, at = piece.stop - piece.start, Int32(0)
        self.start_scores(pipelines, scoring, counted, 0)
        for _ in cutlass.range((count - 1) // 2):
            self.weigh_own(pipelines, scoring, weighing, softmax, run, piece, counted, at, 0)
            self.start_other(pipelines, weighing, softmax, piece, counted, at + 1, 0)
            self.finish_other(pipelines, counted + at + 1, 0)
            self.start_scores(pipelines, scoring, counted + at + 2, 0)
            at += 2
        self.weigh_own(pipelines, scoring, weighing, softmax, run, piece, counted, at, 0)
        if at + 1 < count:
            self.start_other(pipelines, weighing, softmax, piece, counted, at + 1, 0)
            self.finish_other(pipelines, counted + at + 1, 0)

    @cute.jit
    def score_odd(self, pipelines, scoring, weighing, softmax, run, piece, counted):
        """The second group scores tiles 1, 3, 5, ... of a piece, each beside the sums of the tile before."""
        count, at = piece.stop - piece.start, Int32(0)
        if count > 1:
            self.start_scores(pipelines, scoring, counted + 1, 1)
            for _ in cutlass.range(count // 2 - 1):
                self.weigh_own(pipelines, scoring, weighing, softmax, run, piece, counted, at + 1, 1)
                self.start_scores(pipelines, scoring, counted + at + 3, 1)
                at += 2
            self.weigh_own(pipelines, scoring, weighing, softmax, run, piece, counted, at + 1, 1)
            at += 2
        if at < count:
            self.start_other(pipelines, weighing, softmax, piece, counted, at, 1)
            self.finish_other(pipelines, counted + at, 1)

    @cute.jit
    def start_scores(self, pipelines, scoring, count, half: cutlass.Constexpr):
        """Multiply the queries with each line of a tile, when it has arrived."""
        (first_mma, mma), a, b, scores = scoring
        for line in cutlass.range_constexpr(KEY_LINES):
            pipelines[0].consumer_wait(self.place(count, line))
            warpgroup.fence()
            for k in cutlass.range_constexpr(cute.size(a, mode=[2])):
                opening = line == 0 and k == 0  # overwrites the old scores
                other = b[None, None, k, count % STAGES * KEY_LINES + line]
                cute.gemm(first_mma if opening else mma, scores, a[None, None, k, line], other, scores)
        warpgroup.commit_group()

    @cute.jit
    def weigh_own(self, pipelines, scoring, weighing, softmax, run, piece, counted, at, half: cutlass.Constexpr):
        """From the scores of a tile of this group's own to the sums. The second group adds the tile before on the way."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        score_mmas, _, _, scores = scoring
        _, mma, sums, weights, keys, handed = weighing
        places, largest, total, scale = softmax
        count, index = counted + at, piece.start + at
        factor = cute.make_rmem_tensor(2, Float32)
        warpgroup.wait_group(0)
        if cutlass.const_expr(half == 1):
            self.start_other(pipelines, weighing, softmax, piece, counted, at - 1, half)
        mask(scores, places, scale, index * TOKENS, TOKENS, run.lane * ROWS, run, piece)
        soften(scores, largest, total, factor)
        rounded = cute.make_rmem_tensor_like(scores, self.dtype)
        rounded.store(scores.load().to(self.dtype))
        self.hand(score_mmas[1], rounded, factor, softmax, weights, handed, count, thread, half)
        if cutlass.const_expr(half == 1):
            self.finish_other(pipelines, count - 1, half)
        self.start_own(mma, sums, rounded, factor, keys, piece, index, count, half)
        warpgroup.wait_group(0)
        self.release(pipelines, count, half)

    @cute.jit
    def hand(self, mma, rounded, factor, softmax, weights, handed, count, thread, half: cutlass.Constexpr):
        places, largest, _, _ = softmax
        self.together(half).arrive_and_wait()  # no warp of this group reads the line any longer that weights replace
        self.hand_over(mma, rounded, weights, count % STAGES, thread)
        if thread % 4 == 0:
            for i in cutlass.range_constexpr(2):
                handed[places[2 * i][0], 0, half] = factor[i]
                handed[places[2 * i][0], 1, half] = largest[i]
        cute.arch.fence_proxy("async.shared", space="cta")
        self.ready(half).arrive()

    @cute.jit
    def start_own(self, mma, sums, rounded, factor, keys, piece, index, count, half: cutlass.Constexpr):
        rescale(sums, factor)
        self.clear_tail(keys, piece, index, count, half)
        # Accumulators, reordered: two columns, two rows, two blocks of eight columns; then along the tokens.
        order = cute.make_layout(((2, 2, 2), 1, TOKENS // 16), stride=((1, 2, 4), 0, 8))
        own = cute.make_tensor(rounded.iterator, order)
        values = mma.make_fragment_B(mma.get_slice(0).partition_B(self.values(keys)))
        warpgroup.fence()
        for k in cutlass.range_constexpr(TOKENS // 16):
            cute.gemm(mma, sums, own[None, None, k], values[None, None, k, (half, count % STAGES)], sums)
        warpgroup.commit_group()

    @cute.jit
    def start_other(self, pipelines, weighing, softmax, piece, counted, at, half: cutlass.Constexpr):
        """Start to add the values of a tile whose weights come from the other group."""
        mma, _, sums, weights, keys, handed = weighing
        places, largest, total, _ = softmax
        count, index = counted + at, piece.start + at
        factor = cute.make_rmem_tensor(2, Float32)
        for line in cutlass.range_constexpr(OWN_LINES):
            pipelines[0].consumer_wait(self.place(count, half * OWN_LINES + line))
        self.ready(1 - half).arrive_and_wait()
        for i in cutlass.range_constexpr(2):
            factor[i] = handed[places[2 * i][0], 0, 1 - half]
            largest[i] = handed[places[2 * i][0], 1, 1 - half]
            total[i] = total[i] * factor[i]
        rescale(sums, factor)
        self.clear_tail(keys, piece, index, count, half)
        own = mma.get_slice(0)
        a, b = mma.make_fragment_A(own.partition_A(weights)), mma.make_fragment_B(own.partition_B(self.values(keys)))
        warpgroup.fence()
        for k in cutlass.range_constexpr(cute.size(a, mode=[2])):
            cute.gemm(mma, sums, a[None, None, k, count % STAGES], b[None, None, k, (half, count % STAGES)], sums)
        warpgroup.commit_group()

    @cute.jit
    def finish_other(self, pipelines, count, half: cutlass.Constexpr):
        """Wait for :meth:`start_other`. The line that had the weights is free, too."""
        _, arrived = pipelines
        warpgroup.wait_group(0)
        self.release(pipelines, count, half)
        arrived.consumer_release(self.place(count, KEY_LINES - 1))

    @cute.jit
    def release(self, pipelines, count, half: cutlass.Constexpr):
        """This half of the values of a tile is no longer needed. Its scores have been computed before."""
        _, arrived = pipelines
        for line in cutlass.range_constexpr(OWN_LINES):
            arrived.consumer_release(self.place(count, half * OWN_LINES + line))

    @cute.jit
    def hand_over(self, mma, rounded, weights, stage, thread):
        """Weights into shared memory."""
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), self.dtype)
        copy = cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, mma))
        mine = copy.get_slice(thread)
        source = cute.make_rmem_tensor(cute.shape(mine.partition_S(weights))[:3], self.dtype)
        ordered = copy.retile(rounded)
        for v in cutlass.range_constexpr(cute.size(source)):
            source[v] = ordered[v]
        cute.copy(copy, source, mine.partition_D(weights)[None, None, None, stage])

    def ready(self, half: int) -> pipeline.NamedBarrier:
        """The weights of a tile whose scores this group had are in shared memory."""
        return pipeline.NamedBarrier(barrier_id=1 + half, num_threads=BOTH)

    def both(self) -> pipeline.NamedBarrier:
        return pipeline.NamedBarrier(barrier_id=5, num_threads=BOTH)

    @cute.jit
    def clear_tail(self, keys, piece, index, count, half: cutlass.Constexpr):
        valid = piece.length - index * TOKENS
        if valid < TOKENS:
            self.clear(keys, valid, count % STAGES, half)

    @cute.jit
    def write(self, mma, sums, largest, totals, v_scale, out, slots, run, piece, tile, half: cutlass.Constexpr):
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
            total = totals[within, 0] + totals[within, 1]
            if row < run.group:
                if piece.whole:
                    factor = inverse(total) * v_scale
                    target = out[piece.sequence, row // heads, row % heads, None]
                    write_row(by_row, i, factor, target, first)
                else:
                    write_row(by_row, i, Float32(1), part_sums[slot, within, None], first)
                    if cutlass.const_expr(half == 0):  # noqa: SIM102  decided when compiling
                        if thread % 4 == 0:
                            part_scalars[slot, within, 0] = largest[i]
                            part_scalars[slot, within, 1] = total
