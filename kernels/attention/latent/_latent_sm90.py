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
  the tensor cores have products of the other to do. A third group is the producer.
* **Order.** What the groups do with two tiles, from left to right; ``:`` marks where weights are handed over::

      first    scores 0   softmax 0 : sums 0, left                     : sums 1, left    scores 2
      second              scores 1 .:.... sums 0, right + softmax 1    : sums 1, right             scores 3

  The dots: when the second group gets the weights of tile 0, its scores of tile 1 may not be complete. It first issues the
  sums of tile 0 behind them, and then waits for the scores alone. The first group issues its scores behind its sums in the
  same way. When they are almost complete, the second group may begin with its own. So the tensor cores go from one product
  to the next without a pause.

* **Queries.** Scores read both operands from shared memory, as many bytes as it delivers while the tensor cores multiply. TMA
  writes there, too. So consumers keep lines of the queries in registers, as many as they have room for.
* **Code.** The two groups and the producer run different code, which must share the instruction cache. So what happens
  rarely is written to be short: loops are not unrolled, and what a row may see is computed once for a piece.
* **Shared memory.** 72 KB of queries and two tiles of 64 tokens, 72 KB each, which leaves almost nothing. Tiles of the first
  group are always in the first stage, those of the second group in the second one, so all operands have fixed places. A tile is nine
  *lines* of 64 columns, and each is loaded as soon as the same line of the tile before the previous one is no longer needed.
  Of a tile of the first group that is the left half, of one of the second group the right half, so scores begin with
  these. The last line has no values: when the scores have been computed, the weights take its place.
* **f8e4m3.** See ``_latent_f8_sm90``.
* **Tails and splits.** See ``_cache_sm90``. Short sequences: see ``Merging.grid``.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64, pipeline
from cutlass.cute.nvgpu import warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from ..._device import EVICT_FIRST, WARP
from ..._versions import SmemAllocator
from ...sm80.tiles import left_fragment, load
from ...sm90.hardware import ALIGNMENT, CONSUMERS, GROUP_WARPS, WARP_GROUP, Barriers, accumulator_row
from ...sm90.pipeline import consumer_state, producer_state, thread_pipeline, tma_pipeline
from ...sm90.softmax import issue_product, left_operand, score_product, start_product, value_product
from .._schedule import Tiles
from .._softmax import LOG2_E, Softmax, make_softmax, mask_marked, mask_scores, scale_sums, softmax_step
from ..decoding._cache_sm90 import ELEMENT_BYTES, LINE, CacheDecode, clear_tokens
from ..decoding._meet import Meeting
from ..decoding._merge import Call, Output, Piece, Run, scale_of
from ..prompts._producer_sm90 import load_operand, partition

ROWS = 64  # of queries
TOKENS = 64  # of a tile
KEY, VALUE = 576, 512  # elements
KEY_LINES = KEY // LINE
VALUE_LINES = VALUE // LINE
OWN = VALUE // 2  # columns of the result that one warp group sums
OWN_LINES = OWN // LINE
LINE_BYTES = TOKENS * LINE * ELEMENT_BYTES  # of a tile
STAGES = 2
LAST_LINES = 2  # of scores of the first group: when only these are left, the second group may begin with its own


@cute.jit
def line_at(position, half):
    """Lines in the order in which they are loaded and scored: the half of the values first whose group has the scores."""
    return (position + half * OWN_LINES) % VALUE_LINES if position < VALUE_LINES else position


def line_state(stage, use: Int32, line) -> pipeline.PipelineState:
    """The memory of a line, for consumers that wait for use ``use`` of it. Producers wait for the end of use ``use - 1``."""
    return pipeline.PipelineState(STAGES * KEY_LINES, Int32(0), stage * KEY_LINES + line, use % 2)


def weights_state(stage: int, use: Int32) -> pipeline.PipelineState:
    return pipeline.PipelineState(STAGES, Int32(0), Int32(stage), use % 2)


@cute.jit
def use_of(uses, piece, index):
    """The stage of a tile, and how often it was used before. ``uses``: of each stage, by earlier pieces."""
    stage = (index - piece.start) % STAGES
    return stage, (index - piece.start) // STAGES + (uses[0] if stage == 0 else uses[1])


def uses_after(uses, piece: Piece):
    tiles = piece.stop - piece.start
    return uses[0] + (tiles + 1) // STAGES, uses[1] + tiles // STAGES


@dataclass(frozen=True)
class Work:
    """Shared memory and pipelines."""

    queries: cute.Tensor
    keys: cute.Tensor
    values: cute.Tensor  # the halves of the values of each stage, as columns x tokens: the same memory as the keys
    weights: cute.Tensor  # of a tile, in the place of its last line, which nobody but the scores needs
    # By row: the factor and the offset of a tile, by group that has its scores; sums of weights, by group and by turn. A group
    # writes new factors after the other group has read the old ones: it has waited for weights that the other group handed
    # over later, or both groups have met at the end of a piece. Sums of weights take turns at two places, so those of a
    # piece can be written while those of the piece before are still read.
    handed: cute.Tensor
    totals: cute.Tensor
    # Lines that TMA brings; the warps of the group that needs a line last release it.
    arrived: pipeline.PipelineTmaAsync
    ready: pipeline.PipelineAsync  # lines that can be multiplied
    weighed: pipeline.PipelineAsync  # weights; their memory is empty when ``arrived`` says so
    loaded_q: pipeline.PipelineTmaAsync  # all rows of a piece arrive together, and both groups read them
    # A bit for each token of a tile that exists, by stage, if producers know; they have cleared the others, then.
    marks: cute.Tensor | None = None
    query_scales: cute.Tensor | None = None  # of the scores, by row, if queries are not what TMA brings


class LatentDecode(CacheDecode):
    fragments = True
    start, slack, more = 2, 16, 2  # tiles
    merging, alone, sparing = Tiles(2, 4, 10, 1), Tiles(5, 4, 16), True
    meets = True  # see ``Merging``
    wide = OWN  # columns of the result that one instruction multiplies
    held = 2  # lines of queries that consumers have in registers
    registers = 24, 240  # the producer warp may spill: it waits most of the time

    def __init__(self, target: aot.Target, box: int = TOKENS) -> None:
        super().__init__(target, VALUE, ROWS, TOKENS, box)

    @cute.jit
    def __call__(
        self, q: cute.Tensor, cache: cute.Tensor, lengths: cute.Tensor, out: cute.Tensor, scale: Float32, pages,
        cache_scale, parts: cute.Tensor, multiprocessors: Int32, stream: CUstream,
    ):  # fmt: skip
        self.use_dtype(q.element_type)
        batch, tokens, heads, _ = q.shape
        rows = tokens * heads
        # (rows, columns, sequences). The rows of all tokens of a sequence are in line.
        first = cute.recast_ptr(q.iterator, dtype=self.dtype)  # the same bits: see ``prepare_queries``
        q_rows = cute.make_tensor(first, cute.make_layout((rows, KEY, batch), stride=(KEY, 1, q.stride[0])))
        operands = load_operand(q_rows, self.staged_queries(), (ROWS, LINE)), *self.cache_operands(cache)
        self.launch_both(operands, scale, Call(cache, lengths, out, pages, cache_scale, parts), multiprocessors, stream)

    @cute.jit
    def launch_both(self, operands, scale: Float32, call: Call, multiprocessors: Int32, stream: CUstream):
        """Attend, and merge what was cut."""
        own_mma, other_mma = [
            value_product(self.dtype, self.wide, source)
            for source in (warpgroup.OperandSource.RMEM, warpgroup.OperandSource.SMEM)
        ]
        scores, held_scores = [
            score_product(self.dtype, TOKENS, source)
            for source in (warpgroup.OperandSource.SMEM, warpgroup.OperandSource.RMEM)
        ]
        mmas = scores, own_mma, other_mma, held_scores
        if cute.size(call.lengths) * call.group > 0:  # CUDA refuses an empty grid
            blocks, whole = self.grid(call, multiprocessors)
            self.launch(mmas, operands, None, scale * LOG2_E, call, blocks, stream, whole)
            if not whole:
                self.launch_merge(call, blocks, stream)

    def cache_operands(self, cache: cute.Tensor) -> tuple:
        """What TMA brings of the cache: (tokens, columns, pages)."""
        tokens = cute.make_tensor(cache.iterator, cute.select(cache.layout, mode=[1, 2, 0]))
        return (load_operand(tokens, self.box_layout(), (self.box, LINE)),)

    def use_dtype(self, dtype: type[cutlass.Numeric]) -> None:
        """Both products have the dtype of the queries."""
        self.dtype = dtype

    def staged_queries(self):
        """Lines of queries in shared memory."""
        tile = ROWS, TOKENS, LINE
        return hopper_helpers.make_smem_layout_a(LayoutEnum.ROW_MAJOR, tile, self.dtype, KEY_LINES)

    def staged_keys(self):
        """Lines of all tiles of the cache in shared memory."""
        tile = ROWS, TOKENS, LINE
        return hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, tile, self.dtype, STAGES * KEY_LINES)

    def box_layout(self):
        """A line of a box in shared memory, as TMA swizzles it for wgmma."""
        return hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, (ROWS, self.box, LINE), self.dtype, 1)

    def allocate(self, shared: SmemAllocator, operands) -> Work:
        """72 KB of queries, and two tiles of as many bytes."""
        staged = self.staged_queries(), self.staged_keys()
        queries, keys = [
            shared.allocate_tensor(self.dtype, layout.outer, ALIGNMENT, swizzle=layout.inner) for layout in staged
        ]
        one_line = cute.select(staged[0].outer, mode=[0, 1])
        places = cute.make_layout(STAGES, stride=KEY * TOKENS)
        weights = cute.make_tensor(keys.iterator + VALUE * TOKENS, cute.append(one_line, places))
        half = hopper_helpers.make_smem_layout_b(LayoutEnum.COL_MAJOR, (ROWS, OWN, TOKENS), self.dtype, 1)
        places = cute.make_layout((2, STAGES), stride=(OWN * TOKENS, KEY * TOKENS))
        values = cute.make_tensor(keys.iterator, cute.append(cute.select(half.outer, mode=[0, 1]), places))
        handed, totals = (shared.allocate_tensor(Float32, cute.make_layout((ROWS, 2, 2)), 16) for _ in range(2))
        pipelines = self.pipelines(shared)
        q_bytes = KEY_LINES * ROWS * LINE * ELEMENT_BYTES
        loaded_q = tma_pipeline(shared.allocate_array(Int64, 2), 1, q_bytes, CONSUMERS * GROUP_WARPS)
        more = self.marks(shared), self.query_scales(shared)
        return Work(queries, keys, values, weights, handed, totals, *pipelines, loaded_q, *more)

    def marks(self, shared: SmemAllocator) -> cute.Tensor | None:
        """See :class:`Work`."""
        return None

    def query_scales(self, shared: SmemAllocator) -> cute.Tensor | None:
        """See :class:`Work`."""
        return None

    def pipelines(self, shared: SmemAllocator) -> tuple[pipeline.PipelineAsync, ...]:
        """Of lines that TMA brings, of lines that are ready to be multiplied, and of weights."""
        arrived = self.arriving(shared, LINE_BYTES)
        return arrived, arrived, self.handing(shared, STAGES, GROUP_WARPS)

    def handing(self, shared: SmemAllocator, stages: int, warps: int) -> pipeline.PipelineAsync:
        """What ``warps`` warps hand over. Nobody waits until it is empty: ``arrived`` says so."""
        return thread_pipeline(shared.allocate_array(Int64, 2 * stages), stages, warps, 1)

    def arriving(self, shared: SmemAllocator, line_bytes: int) -> pipeline.PipelineTmaAsync:
        lines = STAGES * KEY_LINES
        return tma_pipeline(shared.allocate_array(Int64, 2 * lines), lines, line_bytes, GROUP_WARPS)

    # The producer.

    @cute.jit
    def produce(self, run, work, operands, call, warp):
        if warp == 0:
            self.load_pieces(run, work, operands, call)
        else:
            self.beside_loading(run, work, warp - 1)

    @cute.jit
    def load_pieces(self, run, work, operands, call):
        """One warp: bring the queries of each piece of the run, then its tiles."""
        q_operand, (load_k, tokens, _) = operands
        box = (self.box, LINE)
        lines = cute.local_tile(self.lines(work.keys, call.cache.element_type), box, (None, 0, None))
        to_k, from_k = partition(load_k, lines, cute.local_tile(tokens, box, (None, None, None)))
        q_state = producer_state(1)
        uses = (Int32(0), Int32(0))
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            self.load_queries(run, piece, work, q_operand, q_state)
            q_state.advance()
            for index in cutlass.range(piece.start, piece.stop):
                boxes = self.boxes(call, piece, index)
                stage, use = use_of(uses, piece, index)
                for position in cutlass.range_constexpr(KEY_LINES):
                    line = line_at(position, stage)
                    state = line_state(stage, use + 1, line)
                    # Wait until the consumers have released the line, then tell its mbarrier how many bytes will arrive.
                    work.arrived.producer_acquire(state)
                    barrier = work.arrived.producer_get_barrier(state)
                    for i, (page, place) in enumerate(boxes):
                        # Nobody needs it again, or only the blocks side by side, which come at about the same time. So
                        # parts of sequences stay in the L2 cache until they are merged.
                        source, target = from_k[None, place, line, page], to_k[None, i, state.index]
                        cute.copy(load_k, source, target, tma_bar_ptr=barrier, cache_policy=Int64(EVICT_FIRST))
            uses = uses_after(uses, piece)
            tile = piece.next

    @cute.jit
    def load_queries(self, run, piece, work, operand, state):
        """The rows of a piece."""
        load, q_rows, _ = operand
        target, source = partition(load, work.queries, cute.local_tile(q_rows, (ROWS, LINE), (None, None, None)))
        work.loaded_q.producer_acquire(state)  # both groups have released the rows of the piece before
        barrier = work.loaded_q.producer_get_barrier(state)
        for line in cutlass.range_constexpr(KEY_LINES):
            cute.copy(load, source[None, run.lane, line, piece.sequence], target[None, line], tma_bar_ptr=barrier)

    def lines(self, keys: cute.Tensor, dtype: type[cutlass.Numeric]) -> cute.Tensor:
        """Where TMA brings lines of the cache."""
        return keys

    def beside_loading(self, run, work, warp) -> None:
        """What the other warps of the producer warp group do: nothing."""

    # Consumers.

    @cute.jit
    def consume(self, run, work, mmas, q, scale, call, parts, group):
        v_scale = scale_of(call.v_scale, 0)
        for half in cutlass.range_constexpr(2):
            if group == half:
                self.attend_pieces(run, work, mmas, scale * v_scale, v_scale, call, parts, half)

    def prepare_queries(self, work, scale, scales, half) -> None:
        """Make of what TMA brought what the products need: it is that already."""

    @cute.jit
    def attend_pieces(self, run, work, mmas, scale, v_scale, call, parts, half: cutlass.Constexpr):
        """A warp group: its half of the result of each piece, and the scores of every other tile."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        mma, within, totals = mmas[0], accumulator_row(thread), work.totals
        a = mma.make_fragment_A(mma.get_slice(0).partition_A(work.queries))
        b = mma.make_fragment_B(mma.get_slice(0).partition_B(work.keys))
        scores = cute.make_rmem_tensor(mma.partition_shape_C((ROWS, TOKENS)), Float32)
        sums = cute.make_rmem_tensor(mmas[1].partition_shape_C((ROWS, OWN)), Float32)
        softmax = make_softmax()
        held = [left_fragment(mmas[3], work.queries, False, thread) for _ in range(self.held)]
        lines = tuple(line.values for line in held)
        scales = cute.make_rmem_tensor(2, Float32)
        consumer = Consumer(run, work, mmas, a, lines, b, scores, sums, softmax, scale, scales, self.barriers, half)
        q_state = consumer_state(1)
        uses, turn = (Int32(0), Int32(0)), Int32(0)  # of stages, by earlier pieces; and how many pieces these are
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            sums.fill(0.0)
            softmax.reset()
            work.loaded_q.consumer_wait(q_state)
            self.prepare_queries(work, scale, scales, half)
            for i in cutlass.range_constexpr(self.held):
                for block in cutlass.range_constexpr(cute.size(lines[i], mode=[2])):
                    load(held[i], block, KEY_LINES - 1 - i)
            row = run.lane * ROWS + within
            seen = run.last_seen(piece, row), run.last_seen(piece, row + 8)
            if cutlass.const_expr(half == 0):
                consumer.score_even(piece, seen, uses, q_state)
            else:
                consumer.score_odd(piece, seen, uses, q_state)
            q_state.advance()
            for r in cutlass.range_constexpr(2):
                own_total = softmax.total(r)
                if thread % 4 == 0:
                    totals[within + 8 * r, half, turn % 2] = own_total
            # Both groups have written their sums of weights.
            pipeline.NamedBarrier(barrier_id=self.barriers.free, num_threads=CONSUMERS * WARP_GROUP).arrive_and_wait()
            total = cute.make_rmem_tensor(2, Float32)
            for r in cutlass.range_constexpr(2):
                total[r] = totals[within + 8 * r, 0, turn % 2] + totals[within + 8 * r, 1, turn % 2]
            if self.meeting(run, piece, tile, call, half).merge(sums, softmax.offsets, total):
                output = Output(call.out, parts, run, piece, Int32(0), run.lane * ROWS, Int32(0), v_scale)
                for r in cutlass.range_constexpr(2):
                    output.write_whole_row(sums, r, within + 8 * r, half, total[r])
            uses = uses_after(uses, piece)
            turn += 1
            tile = piece.next

    def meeting(self, run: Run, piece: Piece, tile: Int32, call: Call, half: int) -> Meeting:
        """How the sums of a piece are merged with those of another block."""
        blocks, _, _ = cute.arch.grid_dim()
        sums, scalars = self.parts_of(call.parts, blocks, run.group, half)
        words = self.words_of(call.parts, blocks, run.group)
        cut, rows = run.cut(piece, self.lanes(run.group)), run.group - run.lane * ROWS
        return Meeting(cut, sums, scalars, words, run.index, run.slot(tile), rows, half)


@dataclass(frozen=True)
class Consumer:
    """A consumer warp group. ``half`` is which one it is, and which half of the values is its own."""

    run: Run
    work: Work
    # Of scores; of own weights, from registers; of the other group's, from shared memory; of scores with held queries.
    mmas: tuple[cute.TiledMma, ...]
    query: cute.Tensor
    held: tuple[cute.Tensor, ...]  # the last lines of the queries, in registers, the very last one first
    key: cute.Tensor
    scores: cute.Tensor
    sums: cute.Tensor
    softmax: Softmax
    scale: Float32
    scales: cute.Tensor  # of this thread's rows, if queries have scales
    barriers: Barriers
    half: int

    @cute.jit
    def score_even(self, piece, seen, uses, q_state):
        """The first group scores tiles 0, 2, 4, ... of a piece. They are in the first stage."""
        tiles, index = piece.stop - piece.start, piece.start
        even, odd = uses
        self.issue_scores(even, 0, KEY_LINES)
        self.finish_scores(tiles > 1)
        for _ in cutlass.range((tiles - 1) // 2):
            self.weigh_own(piece, seen, index, even, odd, q_state, False)
            self.start_other(piece, index + 1, odd)
            index, even = index + 2, even + 1
            # The next scores follow these sums without a pause. Of their lines, half have arrived by now.
            self.issue_scores(even, 0, OWN_LINES)
            warpgroup.wait_group(1)  # for the sums
            self.release_other(odd)
            odd += 1
            self.issue_scores(even, OWN_LINES, KEY_LINES)
            self.finish_scores(index + 1 < piece.stop)
        self.weigh_own(piece, seen, index, even, odd, q_state, True)
        if index + 1 < piece.stop:
            self.start_other(piece, index + 1, odd)
            warpgroup.wait_group(0)  # for the sums: they have read the stage
            self.release_other(odd)

    @cute.jit
    def score_odd(self, piece, seen, uses, q_state):
        """The second group scores tiles 1, 3, 5, ... of a piece, each beside the sums of the tile before."""
        tiles, index = piece.stop - piece.start, piece.start
        even, odd = uses
        # Scores begin and end in the same turn of the loop, because sums are in flight beside them. If scores began at the end
        # of the turn before, ptxas would serialize every wgmma of the kernel (warning C7514).
        for _ in cutlass.range(tiles // 2):
            # The first group's scores are almost complete. Issued earlier, these would delay them.
            self.barriers.turn(1).arrive_and_wait()
            self.issue_scores(odd, 0, KEY_LINES)
            self.weigh_own(piece, seen, index + 1, odd, even, q_state, index + 3 >= piece.stop)
            index, even, odd = index + 2, even + 1, odd + 1
        if tiles == 1:  # no scores for this group
            self.work.loaded_q.consumer_release(q_state)
        if index < piece.stop:
            self.start_other(piece, index, even)
            warpgroup.wait_group(0)  # for the sums, as above
            self.release_other(even)

    @cute.jit
    def issue_scores(self, use, first: cutlass.Constexpr, end: cutlass.Constexpr):
        """Multiply the queries with lines of a tile, in the order of :func:`line_at`, each when it has arrived."""
        if cutlass.const_expr(first == 0):
            # The product overwrites them. But the compiler would keep the weights of the tile before, and compute them twice.
            self.scores.fill(0.0)
        for position in cutlass.range_constexpr(first, end):
            line = line_at(position, self.half)
            self.work.ready.consumer_wait(line_state(self.half, use, line))
            keys = self.key[None, None, None, self.half * KEY_LINES + line]
            behind = cutlass.const_expr(KEY_LINES - 1 - line)
            if cutlass.const_expr(behind < len(self.held)):
                issue_product(self.mmas[3], self.scores, self.held[behind], keys, fresh=False)
            else:
                issue_product(self.mmas[0], self.scores, self.query[None, None, None, line], keys, fresh=position == 0)
            if cutlass.const_expr(position == KEY_LINES - 1 - LAST_LINES or position == OWN_LINES - 1):
                warpgroup.commit_group()
        if cutlass.const_expr(end == KEY_LINES):
            warpgroup.commit_group()

    @cute.jit
    def finish_scores(self, followed):
        """The first group waits for its scores. If the second group has a tile too, it may begin when few lines are left."""
        warpgroup.wait_group(1)  # for all lines but the last ones: see ``issue_scores``
        if followed:
            self.barriers.turn(1).arrive()
        warpgroup.wait_group(0)  # the scores are complete

    @cute.jit
    def weigh_own(self, piece, seen, index, use, other_use, q_state, last):
        """From the scores of a tile of this group's own to the sums.

        The second group adds the tile before on the way: it issues these sums behind the scores, and computes the softmax
        beside them. After the ``last`` scores of the piece the queries are no longer needed. ``seen``: the last token that each of
        this thread's rows sees.
        """
        scores, thread = self.scores, cute.arch.thread_idx()[0] % WARP_GROUP
        if cutlass.const_expr(self.half == 1):
            self.start_other(piece, index - 1, other_use)
            warpgroup.wait_group(1)  # for the scores, not for the sums
        if last:
            self.work.loaded_q.consumer_release(q_state)
        if cutlass.const_expr(self.work.query_scales is not None):
            scale_sums(scores, [self.scales[r] for r in range(2)])
        else:
            scores.store(scores.load() * self.scale)
        self.mask(piece, seen, index)
        factors, grown = softmax_step(scores, self.softmax)
        rounded = cute.make_rmem_tensor_like(scores, self.work.keys.element_type)
        rounded.store(scores.load().to(rounded.element_type))
        self.hand_over(rounded, factors, use, thread)
        if cutlass.const_expr(self.half == 1):
            warpgroup.wait_group(0)  # for the sums of the tile before: they are scaled next
            self.release_other(other_use)
        if grown:
            scale_sums(self.sums, factors)
        self.clear_tail(piece, index, self.half)
        values = self.value_operand(self.mmas[1], self.half)
        start_product(self.mmas[1], self.sums, left_operand(rounded, TOKENS), values, False)
        warpgroup.wait_group(0)  # the sums have read the weights in registers, and the stage
        self.release(self.half, use)

    @cute.jit
    def mask(self, piece, seen, index):
        """Mask tokens that are not there, and tokens after a row's own."""
        marks = self.work.marks
        if cutlass.const_expr(marks is not None):
            low, high = marks[0, self.half], marks[1, self.half]
            if low & high != -1:
                mask_marked(self.scores, (low, high))
        else:
            if (index + 1) * TOKENS > piece.length - (self.run.tokens - 1):
                mask_scores(self.scores, index * TOKENS, seen.__getitem__, upper=True)

    def value_operand(self, mma: cute.TiledMma, stage: int) -> cute.Tensor:
        """This group's half of the values of a stage."""
        values = mma.make_fragment_B(mma.get_slice(0).partition_B(self.work.values))
        return values[None, None, None, (self.half, stage)]

    @cute.jit
    def hand_over(self, rounded, factors, use, thread):
        """Weights into shared memory, with what the other group needs to go on with the softmax."""
        work, dtype, handed = self.work, rounded.element_type, self.work.handed
        # No warp of this group reads the line any longer that weights replace.
        self.barriers.together(self.half).arrive_and_wait()
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), dtype)
        copy = cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, self.mmas[0]))
        mine = copy.get_slice(thread)
        source = cute.make_rmem_tensor(cute.shape(mine.partition_S(work.weights))[:3], dtype)
        ordered = copy.retile(rounded)
        for v in cutlass.range_constexpr(cute.size(source)):
            source[v] = ordered[v]
        cute.copy(copy, source, mine.partition_D(work.weights)[None, None, None, self.half])
        if thread % 4 == 0:
            for r in cutlass.range_constexpr(2):
                row = accumulator_row(thread) + 8 * r
                handed[row, 0, self.half] = factors[r]
                handed[row, 1, self.half] = self.softmax.offsets[r]
        cute.arch.fence_proxy("async.shared", space="cta")  # wgmma of the other group reads the weights
        # One lane arrives for its warp. `sync_warp` orders the writes of all lanes before that, so threads that wait for the
        # mbarrier see them. ptxas makes a NOP of it, because the lanes already run together. racecheck does not
        # know this order: `benchmarks/racecheck.cu` shows it.
        cute.arch.sync_warp()
        if thread % WARP == 0:
            work.weighed.producer_commit(weights_state(self.half, use))

    @cute.jit
    def start_other(self, piece, index, use):
        """Start to add the values of a tile whose weights come from the other group."""
        work, mma, softmax, stage = self.work, self.mmas[2], self.softmax, 1 - self.half
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        # The other group has waited for these lines to compute the weights. This one must see what arrived in them, too.
        for line in cutlass.range_constexpr(OWN_LINES):
            work.ready.consumer_wait(line_state(stage, use, self.half * OWN_LINES + line))
        work.weighed.consumer_wait(weights_state(stage, use))
        factors = []
        for r in cutlass.range_constexpr(2):
            row = accumulator_row(thread) + 8 * r
            factors.append(work.handed[row, 0, stage])
            softmax.offsets[r] = work.handed[row, 1, stage]
            softmax.totals[r] = softmax.totals[r] * factors[r]
        if cute.arch.vote_any_sync(factors[0] != 1.0 or factors[1] != 1.0):
            scale_sums(self.sums, factors)
        self.clear_tail(piece, index, stage)
        weights = mma.make_fragment_A(mma.get_slice(0).partition_A(work.weights))
        start_product(mma, self.sums, weights[None, None, None, stage], self.value_operand(mma, stage), False)

    @cute.jit
    def release_other(self, use):
        """The sums of :meth:`start_other` are complete. The line that had the weights is empty, too."""
        self.release(1 - self.half, use)
        self.work.arrived.consumer_release(line_state(1 - self.half, use, KEY_LINES - 1))

    @cute.jit
    def release(self, stage: cutlass.Constexpr, use):
        """This half of the values of a tile is no longer needed. Its scores have been computed before."""
        for line in cutlass.range_constexpr(OWN_LINES):
            self.work.arrived.consumer_release(line_state(stage, use, self.half * OWN_LINES + line))

    @cute.jit
    def clear_tail(self, piece, index, stage: cutlass.Constexpr):
        """Zeros for this half of the values of tokens past the end."""
        valid = piece.length - index * TOKENS
        if cutlass.const_expr(self.work.marks is None) and valid < TOKENS:
            thread = cute.arch.thread_idx()[0] % WARP_GROUP
            first = (stage * KEY_LINES + self.half * OWN_LINES) * TOKENS * LINE
            clear_tokens(self.work.keys, first, OWN_LINES, TOKENS, valid, thread, WARP_GROUP)
            self.barriers.together(self.half).arrive_and_wait()  # all of the warp group have written
