"""Attention of new tokens against a cache of latent vectors, for sm_90a: TMA and wgmma.

A token of such a cache is one vector of 576 elements for all heads. The whole vector is the key, its first 512 elements are
the value. So a tile of the cache is read once and used twice, by up to 64 query rows of a block.

* **Rows.** The heads of all new tokens of a sequence are rows of one matrix, 64 of them in a block. If there are more, as
  many blocks as it takes walk side by side along the same tokens, and all but the first find them in the L2 cache. (Blocks
  of a cluster that load for each other were not faster: each has to wait until the other has room.)
* **Warp groups.** The sums of 64 rows and 512 columns are 256 registers for each thread of a warp group, more than it may
  have. So two groups own half of the columns each. They take turns at the scores: the first computes those of tiles 0, 2,
  4 and so on, with their running softmax, the second those of the others. Each multiplies its weights with its own half of
  the values from registers, and leaves them in shared memory for the other half. So while one group computes a softmax,
  the tensor cores have products of the other to do. A third group loads.
* **Order.** What the groups do with two tiles, from left to right; ``:`` marks where weights are handed over::

      first    scores 0   softmax 0 : sums 0, left                     : sums 1, left    scores 2
      second   scores 1 ............:.... sums 0, right + softmax 1    : sums 1, right   scores 3

  The dots: when the second group gets the weights of tile 0, its scores of tile 1 may not be complete. It first issues the
  sums of tile 0 behind them, and then waits for the scores alone. So the tensor cores go from these scores to these sums
  without a pause.

* **Shared memory.** 72 KB of queries and two tiles of 64 tokens, 72 KB each, which leaves almost nothing. Tiles of the first
  group are always in the first stage, those of the second group in the second one, so all operands have fixed places. A tile is nine
  *lines* of 64 columns, and each is loaded as soon as the same line of the tile before the previous one is no longer needed.
  Of a tile of the first group that is the left half, of one of the second group the right half, so scores begin with
  these. The last line has no values: when the scores have been computed, the weights take its place.
* **Tails.** What lies past the end of a sequence is loaded with its last tile. Scores of such tokens become minus infinity,
  and their values are overwritten with zeros, because a weight of 0 does not remove a NaN.
* **f8e4m3.** See ``_latent_f8_sm90``.
* **Splits.** As for all caches: see ``_schedule`` and ``_merge``.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._device import EVICT_FIRST, launched_early
from .._versions import SmemAllocator
from ..rows._rows import add
from ._merge import LOG2_E, MINUS_INFINITY, Merging, inverse, scale_of
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

MAX_BLOCKS = 192  # more than the multiprocessors of any sm_90
ROWS = 64  # of queries
TOKENS = 64  # of a tile
KEY, VALUE = 576, 512  # elements
KEY_LINES = KEY // LINE
VALUE_LINES = VALUE // LINE
OWN = VALUE // 2  # columns of the result that one warp group sums
OWN_LINES = OWN // LINE
LINE_BYTES = TOKENS * LINE * ELEMENT_BYTES  # of a tile
STAGES = 2
SLACK = 16  # a run may be longer by one tile in so many if nothing has to be merged then
GROUP_WARPS = WARP_GROUP // cute.arch.WARP_SIZE


@cute.jit
def line_at(position, half):
    """Lines in the order in which they are loaded and scored: the half of the values first whose group has the scores."""
    return (position + half * OWN_LINES) % VALUE_LINES if position < VALUE_LINES else position


class LatentDecode(Merging):
    """``box`` tokens are copied at once: they lie in one page."""

    registers = 40, 232  # per thread that loads, and that multiplies
    equal_parts = True
    merge_shares = 4  # so that all blocks that merge fit on the device at once

    def __init__(self, target: aot.Target, paged: bool, box: int = TOKENS) -> None:
        super().__init__(VALUE, ROWS, TOKENS, MAX_BLOCKS, paged, launched_early(target), side_by_side=1, slack=SLACK)
        self.box = box

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
        load_q, q_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), q_rows, cute.select(q_staged, mode=[0, 1]), (ROWS, LINE)
        )
        load_k, k_tiles = self.copies_of_tokens(tokens_of)
        first_mma, score_mma = [
            hopper_helpers.make_trivial_tiled_mma(
                self.dtype, self.dtype, OperandMajorMode.K, OperandMajorMode.K, Float32, (1, 1, 1), (ROWS, TOKENS)
            )
            for _ in range(2)  # one starts the scores of a tile, the other adds to them
        ]
        own_mma, other_mma = [
            hopper_helpers.make_trivial_tiled_mma(
                self.dtype, self.dtype, OperandMajorMode.K, OperandMajorMode.MN, Float32, (1, 1, 1), (ROWS, OWN), source
            )
            for source in (warpgroup.OperandSource.RMEM, warpgroup.OperandSource.SMEM)
        ]
        if batch * rows > 0:  # CUDA refuses an empty grid
            lanes = self.lanes(rows)
            blocks = self.runs(multiprocessors, lanes) * lanes
            self.kernel(
                first_mma, score_mma, own_mma, other_mma, load_q, q_tiles, load_k, k_tiles, q_staged, k_staged,
                cache, lengths, out, scale * LOG2_E, pages, cache_scale, parts,
            ).launch(
                grid=[blocks, 1, 1],
                block=[THREADS, 1, 1],
                min_blocks_per_mp=1,
                use_pdl=self.early,
                stream=stream,
            )  # fmt: skip
            self.launch_merge(cache, lengths, out, pages, cache_scale, parts, blocks, stream)

    def copies_of_tokens(self, tokens_of: cute.Tensor) -> tuple[cute.CopyAtom, cute.Tensor]:
        """How a line of a box is copied, as TMA swizzles it for wgmma."""
        box = hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, (ROWS, self.box, LINE), self.dtype, 1)
        load = cpasync.CopyBulkTensorTileG2SOp()
        return cpasync.make_tiled_tma_atom(load, tokens_of, cute.select(box, mode=[0, 1]), (self.box, LINE))

    @cute.kernel
    def kernel(
        self,
        first_mma: cute.TiledMma,
        score_mma: cute.TiledMma,
        own_mma: cute.TiledMma,
        other_mma: cute.TiledMma,
        load_q: cute.CopyAtom,
        q_tiles: cute.Tensor,
        load_k: cute.CopyAtom,
        k_tiles: cute.Tensor,
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
        # The weights of a tile take the place of its last line, which nobody but the scores needs.
        one_line = cute.select(q_staged.outer, mode=[0, 1])
        weights = cute.make_tensor(
            keys.iterator + VALUE * TOKENS, cute.append(one_line, cute.make_layout(STAGES, stride=KEY * TOKENS))
        )
        # By row: the factor and the maximum of a tile, by group that has its scores; sums of weights, by group and by turn.
        # A group writes new factors after the other group has read the old ones: it has waited for weights that the other
        # group handed over later, or both groups have met at the end of a piece. Sums of weights take turns at two places,
        # so those of a piece can be written while those of the piece before are still read.
        handed = shared.allocate_tensor(Float32, cute.make_layout((ROWS, 2, 2)), 16)
        totals = shared.allocate_tensor(Float32, cute.make_layout((ROWS, 2, 2)), 16)
        pipelines = self.pipelines(shared)
        loaded_q = self.loading_queries(shared)
        pipeline.pipeline_init_arrive(cluster_shape_mn=(1, 1), is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=(1, 1))
        self.begin()
        run = self.run_of_block(cache, lengths, out, pages, cute.arch.grid_dim()[0])
        slots = self.parts_of(parts, cute.arch.grid_dim()[0], run.group)
        first_mma.set(warpgroup.Field.ACCUMULATE, False)
        score_mma.set(warpgroup.Field.ACCUMULATE, True)
        own_mma.set(warpgroup.Field.ACCUMULATE, True)
        other_mma.set(warpgroup.Field.ACCUMULATE, True)
        if group == 0:
            cute.arch.setmaxregister_decrease(self.registers[0])
            if warp == 0:
                self.load_pieces(
                    run, pipelines[0], loaded_q, load_q, q_tiles, queries, load_k, k_tiles, keys, cache, pages
                )
            else:
                self.beside_loading(run, pipelines, keys, warp - 1)
        else:
            cute.arch.setmaxregister_increase(self.registers[1])
            v_scale = scale_of(cache_scale, 0)
            for half in cutlass.range_constexpr(2):
                if group == 1 + half:
                    self.attend_pieces(
                        run, pipelines, loaded_q, (first_mma, score_mma), own_mma, other_mma, queries, keys, weights, handed,
                        totals, scale * v_scale, v_scale, out, slots, half,
                    )  # fmt: skip

    def pipelines(self, shared: SmemAllocator) -> tuple[pipeline.PipelineAsync, ...]:
        """Of lines that TMA brings, of lines that are ready to be multiplied, and of weights."""
        arrived = self.arriving(shared, LINE_BYTES)
        return arrived, arrived, self.handing(shared, STAGES, GROUP_WARPS)

    def handing(self, shared: SmemAllocator, stages: int, warps: int) -> pipeline.PipelineAsync:
        """What so many warps hand over. Its memory is free when :meth:`arriving` says so."""
        return pipeline.PipelineAsync.create(
            barrier_storage=shared.allocate_array(cutlass.Int64, 2 * stages),
            num_stages=stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, warps),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
            defer_sync=True,
        )

    def arriving(self, shared: SmemAllocator, line_bytes: int) -> pipeline.PipelineTmaAsync:
        # Each warp of the group that needs a line last reports when its memory is free.
        return pipeline.PipelineTmaAsync.create(
            barrier_storage=shared.allocate_array(cutlass.Int64, 2 * STAGES * KEY_LINES),
            num_stages=STAGES * KEY_LINES,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, GROUP_WARPS),
            tx_count=line_bytes,
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
            defer_sync=True,
        )

    def loading_queries(self, shared: SmemAllocator) -> pipeline.PipelineTmaAsync:
        """All rows of a piece arrive together, and both groups read them."""
        return pipeline.PipelineTmaAsync.create(
            barrier_storage=shared.allocate_array(cutlass.Int64, 2),
            num_stages=1,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * GROUP_WARPS),
            tx_count=KEY_LINES * ROWS * LINE * ELEMENT_BYTES,
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
            defer_sync=True,
        )

    # Loading.

    @cute.jit
    def load_pieces(self, run, arrived, loaded_q, load_q, q_tiles, queries, load_k, k_tiles, keys, cache, pages):
        """One warp: bring the queries of each piece of the run, then its tiles."""
        to_q, from_q = cpasync.tma_partition(
            load_q,
            0,
            cute.make_layout(1),
            cute.group_modes(queries, 0, 2),
            cute.group_modes(cute.local_tile(q_tiles, (ROWS, LINE), (None, None, None)), 0, 2),
        )
        shape = (self.box, LINE)
        to_k, from_k = cpasync.tma_partition(
            load_k,
            0,
            cute.make_layout(1),
            cute.group_modes(cute.local_tile(self.lines(keys, cache.element_type), shape, (None, 0, None)), 0, 2),
            cute.group_modes(cute.local_tile(k_tiles, shape, (None, None, None)), 0, 2),
        )
        q_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
        uses = (Int32(0), Int32(0))  # of each stage so far
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            loaded_q.producer_acquire(q_state)
            barrier = loaded_q.producer_get_barrier(q_state)
            for line in cutlass.range_constexpr(KEY_LINES):
                cute.copy(load_q, from_q[None, run.lane, line, piece.sequence], to_q[None, line], tma_bar_ptr=barrier)
            q_state.advance()
            for index in cutlass.range(piece.start, piece.stop):
                boxes = self.boxes(cache, pages, piece, index)
                stage, use = self.use(uses, piece, index)
                for position in cutlass.range_constexpr(KEY_LINES):
                    line = line_at(position, stage)
                    state = self.free(stage, use, line)
                    arrived.producer_acquire(state)
                    barrier = arrived.producer_get_barrier(state)
                    for box, (page, place) in enumerate(boxes):
                        target = to_k[None, box, state.index]
                        source = from_k[None, place, line, page]
                        # Nobody needs it again, or only the blocks side by side, which come at about the same time. So
                        # parts of sequences stay in the L2 cache until they are merged.
                        cute.copy(load_k, source, target, tma_bar_ptr=barrier, cache_policy=cutlass.Int64(EVICT_FIRST))
            uses = self.used(uses, piece)
            tile += piece.stop - piece.start

    def lines(self, keys: cute.Tensor, dtype: type[cutlass.Numeric]) -> cute.Tensor:
        """Where TMA brings lines of the cache."""
        return keys

    def beside_loading(self, run, pipelines, keys, warp) -> None:
        """What the other warps of the loading group do: nothing."""

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
    def use(self, uses, piece, index):
        """The stage of a tile, and how often it was used before."""
        stage = (index - piece.start) % STAGES
        return stage, (index - piece.start) // STAGES + (uses[0] if stage == 0 else uses[1])

    def used(self, uses, piece):
        tiles = piece.stop - piece.start
        return uses[0] + (tiles + 1) // STAGES, uses[1] + tiles // STAGES

    def place(self, stage, use: Int32, line) -> pipeline.PipelineState:
        """The memory of a line, and in which turn of it."""
        return pipeline.PipelineState(STAGES * KEY_LINES, Int32(0), stage * KEY_LINES + line, use % 2)

    def free(self, stage, use: Int32, line) -> pipeline.PipelineState:
        """The same, for those who load: they wait for the end of the turn before."""
        place = self.place(stage, use, line)
        return pipeline.PipelineState(place.stages, place.count, place.index, place.phase ^ 1)

    # Multiplying.

    @cute.jit
    def attend_pieces(
        self, run, pipelines, loaded_q, score_mmas, own_mma, other_mma, queries, keys, weights, handed, totals, scale,
        v_scale, out, slots, half: cutlass.Constexpr,
    ):  # fmt: skip
        """A warp group: its half of the result of each piece, and the scores of every other tile."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        mma = score_mmas[1]
        a = mma.make_fragment_A(mma.get_slice(0).partition_A(queries))
        b = mma.make_fragment_B(mma.get_slice(0).partition_B(keys))
        scores = cute.make_rmem_tensor(mma.partition_shape_C((ROWS, TOKENS)), Float32)
        places = mma.get_slice(thread).partition_C(cute.make_identity_tensor((ROWS, TOKENS)))
        sums = cute.make_rmem_tensor(own_mma.partition_shape_C((ROWS, OWN)), Float32)
        largest, total = (cute.make_rmem_tensor(2, Float32) for _ in range(2))
        q_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
        scoring = (score_mmas, a, b, scores, loaded_q)
        weighing = (own_mma, other_mma, sums, weights, keys, handed)
        softmax = (places, largest, total, scale)
        uses, turn = (Int32(0), Int32(0)), Int32(0)  # of stages, by earlier pieces; and how many pieces these are
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            sums.fill(0.0)
            largest.fill(MINUS_INFINITY)
            total.fill(0.0)
            loaded_q.consumer_wait(q_state)
            if cutlass.const_expr(half == 0):
                self.score_even(pipelines, scoring, weighing, softmax, run, piece, uses, q_state)
            else:
                self.score_odd(pipelines, scoring, weighing, softmax, run, piece, uses, q_state)
            q_state.advance()
            for i in cutlass.range_constexpr(2):
                all_weights = cute.arch.warp_reduction(total[i], add, threads_in_group=4)
                if thread % 4 == 0:
                    totals[places[2 * i][0], half, turn % 2] = all_weights
            self.both().arrive_and_wait()
            self.write(
                own_mma, sums, largest, totals[None, None, turn % 2], v_scale, out, slots, run, piece, tile, half
            )
            uses = self.used(uses, piece)
            turn += 1
            tile += piece.stop - piece.start

    @cute.jit
    def score_even(self, pipelines, scoring, weighing, softmax, run, piece, uses, q_state):
        """The first group scores tiles 0, 2, 4, ... of a piece. They are in the first stage."""
        tiles, index = piece.stop - piece.start, piece.start
        even, odd = uses
        self.start_scores(pipelines, scoring, even, 0)
        for _ in cutlass.range((tiles - 1) // 2):
            self.weigh_own(pipelines, scoring, weighing, softmax, run, piece, index, even, odd, q_state, False, 0)
            self.start_other(pipelines, weighing, softmax, piece, index + 1, odd, 0)
            self.finish_other(pipelines, odd, 0)
            index, even, odd = index + 2, even + 1, odd + 1
            self.start_scores(pipelines, scoring, even, 0)
        self.weigh_own(pipelines, scoring, weighing, softmax, run, piece, index, even, odd, q_state, True, 0)
        if index + 1 < piece.stop:
            self.start_other(pipelines, weighing, softmax, piece, index + 1, odd, 0)
            self.finish_other(pipelines, odd, 0)

    @cute.jit
    def score_odd(self, pipelines, scoring, weighing, softmax, run, piece, uses, q_state):
        """The second group scores tiles 1, 3, 5, ... of a piece, each beside the sums of the tile before."""
        tiles, index = piece.stop - piece.start, piece.start
        even, odd = uses
        # Scores begin and end in the same turn of the loop, because sums are in flight beside them. If scores began at the end
        # of the turn before, ptxas would serialize every wgmma of the kernel (warning C7514).
        for _ in cutlass.range(tiles // 2):
            self.start_scores(pipelines, scoring, odd, 1)
            last = index + 3 >= piece.stop
            self.weigh_own(pipelines, scoring, weighing, softmax, run, piece, index + 1, odd, even, q_state, last, 1)
            index, even, odd = index + 2, even + 1, odd + 1
        if tiles == 1:  # no scores for this group
            scoring[4].consumer_release(q_state)
        if index < piece.stop:
            self.start_other(pipelines, weighing, softmax, piece, index, even, 1)
            self.finish_other(pipelines, even, 1)

    @cute.jit
    def start_scores(self, pipelines, scoring, use, half: cutlass.Constexpr):
        """Multiply the queries with each line of a tile, when it has arrived."""
        (first_mma, mma), a, b, scores, _ = scoring
        for position in cutlass.range_constexpr(KEY_LINES):
            line = line_at(position, half)
            pipelines[1].consumer_wait(self.place(half, use, line))
            warpgroup.fence()
            for k in cutlass.range_constexpr(cute.size(a, mode=[2])):
                opening = position == 0 and k == 0  # overwrites the old scores
                other = b[None, None, k, half * KEY_LINES + line]
                cute.gemm(first_mma if opening else mma, scores, a[None, None, k, line], other, scores)
        warpgroup.commit_group()

    @cute.jit
    def weigh_own(
        self, pipelines, scoring, weighing, softmax, run, piece, index, use, other_use, q_state, last,
        half: cutlass.Constexpr,
    ):  # fmt: skip
        """From the scores of a tile of this group's own to the sums.

        The second group adds the tile before on the way: it issues these sums behind the scores, and computes the softmax
        beside them. After the ``last`` scores of the piece the queries are no longer needed.
        """
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        score_mmas, _, _, scores, loaded_q = scoring
        mma, _, sums, weights, keys, handed = weighing
        places, largest, total, scale = softmax
        factor = cute.make_rmem_tensor(2, Float32)
        if cutlass.const_expr(half == 0):
            warpgroup.wait_group(0)
        else:
            self.start_other(pipelines, weighing, softmax, piece, index - 1, other_use, half)
            warpgroup.wait_group(1)  # for the scores, not for the sums
        if last:
            loaded_q.consumer_release(q_state)
        mask(scores, places, scale, index * TOKENS, TOKENS, run.lane * ROWS, run, piece)
        soften(scores, largest, total, factor)
        rounded = cute.make_rmem_tensor_like(scores, self.dtype)
        rounded.store(scores.load().to(self.dtype))
        self.hand_over(pipelines, score_mmas[1], rounded, factor, softmax, weights, handed, use, thread, half)
        if cutlass.const_expr(half == 1):
            self.finish_other(pipelines, other_use, half)
        self.start_own(mma, sums, rounded, factor, keys, piece, index, half)
        warpgroup.wait_group(0)
        self.release(pipelines, half, use, half)

    @cute.jit
    def hand_over(
        self, pipelines, mma, rounded, factor, softmax, weights, handed, use, thread, half: cutlass.Constexpr
    ):
        """Weights into shared memory, with what the other group needs to go on with the softmax."""
        places, largest, _, _ = softmax
        self.together(half).arrive_and_wait()  # no warp of this group reads the line any longer that weights replace
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), self.dtype)
        copy = cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, mma))
        mine = copy.get_slice(thread)
        source = cute.make_rmem_tensor(cute.shape(mine.partition_S(weights))[:3], self.dtype)
        ordered = copy.retile(rounded)
        for v in cutlass.range_constexpr(cute.size(source)):
            source[v] = ordered[v]
        cute.copy(copy, source, mine.partition_D(weights)[None, None, None, half])
        if thread % 4 == 0:
            for i in cutlass.range_constexpr(2):
                handed[places[2 * i][0], 0, half] = factor[i]
                handed[places[2 * i][0], 1, half] = largest[i]
        cute.arch.fence_proxy("async.shared", space="cta")
        # One lane arrives for its warp. `sync_warp` orders the writes of all lanes before that, so threads that wait for the
        # mbarrier see them. ptxas makes a NOP of it, because the lanes already run together. racecheck 2025.3.1 reports
        # these writes anyway.
        cute.arch.sync_warp()
        if thread % cute.arch.WARP_SIZE == 0:
            pipelines[2].producer_commit(self.weights_of(half, use))

    def weights_of(self, stage: int, use: Int32) -> pipeline.PipelineState:
        return pipeline.PipelineState(STAGES, Int32(0), Int32(stage), use % 2)

    @cute.jit
    def start_own(self, mma, sums, rounded, factor, keys, piece, index, half: cutlass.Constexpr):
        rescale(sums, factor)
        self.clear_tail(keys, piece, index, half, half)
        # Accumulators, reordered: two columns, two rows, two blocks of eight columns; then along the tokens.
        order = cute.make_layout(((2, 2, 2), 1, TOKENS // 16), stride=((1, 2, 4), 0, 8))
        own = cute.make_tensor(rounded.iterator, order)
        values = mma.make_fragment_B(mma.get_slice(0).partition_B(self.values(keys)))
        warpgroup.fence()
        for k in cutlass.range_constexpr(TOKENS // 16):
            cute.gemm(mma, sums, own[None, None, k], values[None, None, k, (half, half)], sums)
        warpgroup.commit_group()

    @cute.jit
    def start_other(self, pipelines, weighing, softmax, piece, index, use, half: cutlass.Constexpr):
        """Start to add the values of a tile whose weights come from the other group."""
        _, mma, sums, weights, keys, handed = weighing
        places, largest, total, _ = softmax
        stage = 1 - half
        factor = cute.make_rmem_tensor(2, Float32)
        for line in cutlass.range_constexpr(OWN_LINES):
            pipelines[1].consumer_wait(self.place(stage, use, half * OWN_LINES + line))
        pipelines[2].consumer_wait(self.weights_of(stage, use))
        for i in cutlass.range_constexpr(2):
            factor[i] = handed[places[2 * i][0], 0, stage]
            largest[i] = handed[places[2 * i][0], 1, stage]
            total[i] = total[i] * factor[i]
        rescale(sums, factor)
        self.clear_tail(keys, piece, index, stage, half)
        own = mma.get_slice(0)
        a, b = mma.make_fragment_A(own.partition_A(weights)), mma.make_fragment_B(own.partition_B(self.values(keys)))
        warpgroup.fence()
        for k in cutlass.range_constexpr(cute.size(a, mode=[2])):
            cute.gemm(mma, sums, a[None, None, k, stage], b[None, None, k, (half, stage)], sums)
        warpgroup.commit_group()

    @cute.jit
    def finish_other(self, pipelines, use, half: cutlass.Constexpr):
        """Wait for :meth:`start_other`. The line that had the weights is free, too."""
        warpgroup.wait_group(0)
        self.release(pipelines, 1 - half, use, half)
        pipelines[0].consumer_release(self.place(1 - half, use, KEY_LINES - 1))

    @cute.jit
    def release(self, pipelines, stage: cutlass.Constexpr, use, half: cutlass.Constexpr):
        """This half of the values of a tile is no longer needed. Its scores have been computed before."""
        for line in cutlass.range_constexpr(OWN_LINES):
            pipelines[0].consumer_release(self.place(stage, use, half * OWN_LINES + line))

    def together(self, half: int) -> pipeline.NamedBarrier:
        """All warps of a group."""
        return pipeline.NamedBarrier(barrier_id=3 + half, num_threads=WARP_GROUP)

    def both(self) -> pipeline.NamedBarrier:
        return pipeline.NamedBarrier(barrier_id=5, num_threads=BOTH)

    def values(self, keys: cute.Tensor) -> cute.Tensor:
        """The halves of the values of each stage, as columns x tokens: the same memory as the keys."""
        one = hopper_helpers.make_smem_layout_b(LayoutEnum.COL_MAJOR, (ROWS, OWN, TOKENS), self.dtype, 1)
        where = cute.make_layout((2, STAGES), stride=(OWN * TOKENS, KEY * TOKENS))
        return cute.make_tensor(keys.iterator, cute.append(cute.select(one.outer, mode=[0, 1]), where))

    @cute.jit
    def clear_tail(self, keys, piece, index, stage: cutlass.Constexpr, half: cutlass.Constexpr):
        valid = piece.length - index * TOKENS
        if valid < TOKENS:
            self.clear(keys, valid, stage, half)

    @cute.jit
    def clear(self, keys, valid, stage: cutlass.Constexpr, half: cutlass.Constexpr):
        """Zeros for this half of the values of tokens past the end."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        for index in cutlass.range(thread, (TOKENS - valid) * OWN, WARP_GROUP):
            column = index % OWN
            line = stage * KEY_LINES + half * (OWN // LINE) + column // LINE
            keys[valid + index // OWN, column % LINE, line] = self.dtype(0)
        cute.arch.fence_proxy("async.shared", space="cta")
        self.together(half).arrive_and_wait()

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
