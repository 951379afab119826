"""Attention of a few new tokens whose many heads share one head of the cache, for sm_90a: TMA and wgmma.

With more than 64 query rows for each token of the cache, ``_decode`` is limited by what its warps load from shared memory.
wgmma multiplies from there directly.

* **Rows.** A block has 128 query rows, 64 for each of two consumer warp groups. Their mainloop is that of attention of whole
  sequences: see ``_mainloop_sm90``.
* **L2 cache.** If a sequence is split, the cache is asked to replace its keys and values first, so that it keeps the parts
  until they are merged. Whole sequences leave no parts, and are faster without that. With more than 128 rows several blocks
  read the same tokens, and the cache should keep those.
* **Splits**: see ``_schedule`` and ``_merge``. To merge 128 rows takes long, so blocks take whole sequences if these have
  the same length and if almost as many blocks are busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64, pipeline
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from ..._device import EVICT_FIRST, EVICT_NORMAL, fetch
from ...sm90.hardware import ALIGNMENT, CONSUMERS, GROUP_WARPS, WARP_GROUP, WGMMA_ROWS, accumulator_row
from ...sm90.pipeline import consumer_state, producer_state, tma_pipeline
from ...sm90.softmax import score_product, value_product
from .._softmax import LOG2_E, make_softmax
from ..prompts._mainloop_sm90 import make_consumer
from ..prompts._producer_sm90 import Operand, box_layout, box_operand, partition
from ._cache_sm90 import CHUNK, ELEMENT_BYTES, LINE, CacheDecode, clear_tokens
from ._merge import Call, Output, Piece, Run

ROWS = CONSUMERS * WGMMA_ROWS
TOKENS = 128  # of a tile
BOXES = (64, 16)  # tokens that one copy loads from a page, whose size is a multiple
SMALLEST = 2.0**-100  # scale of the scores: their differences vanish


@dataclass(frozen=True)
class Work:
    """Shared memory and pipelines."""

    queries: cute.Tensor
    shared: tuple[cute.Tensor, cute.Tensor]  # stages of keys and of values
    pipelines: tuple[pipeline.PipelineTmaAsync, pipeline.PipelineTmaAsync]


@dataclass(frozen=True)
class View:
    """What a thread's two rows see of a piece."""

    run: Run
    piece: Piece
    row: Int32

    def mask(self, scores, softmax, block: Int32, border: str) -> None:
        self.run.mask(scores, self.piece, block * TOKENS, TOKENS, self.row)


class WideDecode(CacheDecode):
    """``dim`` is the width of a head."""

    slack = 12

    def __init__(self, target: aot.Target, dim: int, box: int) -> None:
        super().__init__(target, dim, ROWS, TOKENS, box)
        self.stage_bytes = TOKENS * dim * ELEMENT_BYTES  # of keys, or of values
        room = target.shared_memory - ROWS * dim * ELEMENT_BYTES - ALIGNMENT
        self.stages = room // self.stage_bytes // 2

    @cute.jit
    def __call__(
        self, q: cute.Tensor, k_cache: cute.Tensor, v_cache: cute.Tensor, lengths: cute.Tensor, out: cute.Tensor,
        scale: Float32, pages, k_scale, v_scale, parts: cute.Tensor, multiprocessors: Int32, stream: CUstream,
    ):  # fmt: skip
        self.dtype = q.element_type
        batch, tokens, heads, _ = q.shape
        call = Call(k_cache, lengths, out, pages, None, parts)
        if batch * tokens * heads > 0:  # CUDA refuses an empty grid
            blocks = self.blocks(call, multiprocessors)
            if cutlass.min(k_cache.shape[0], k_cache.shape[1]) > 0:  # TMA refuses an empty cache
                mmas = score_product(self.dtype, TOKENS), value_product(self.dtype, self.dim)
                operands = self.operands(k_cache, v_cache)
                self.launch(mmas, operands, q, scale * LOG2_E, call, blocks, stream)
            self.launch_merge(call, blocks, stream)

    def operands(self, k_cache: cute.Tensor, v_cache: cute.Tensor) -> list[Operand]:
        rows, columns = LayoutEnum.ROW_MAJOR, LayoutEnum.COL_MAJOR
        k_staged = hopper_helpers.make_smem_layout_b(rows, (ROWS, TOKENS, self.dim), self.dtype, self.stages)
        v_staged = hopper_helpers.make_smem_layout_b(columns, (ROWS, self.dim, TOKENS), self.dtype, self.stages)
        made = []
        for cache, staged in ((k_cache, k_staged), (v_cache, v_staged)):
            tokens = cute.make_tensor(cache.iterator, cute.select(cache.layout, mode=[1, 3, 2, 0]))
            made.append(box_operand(tokens, self.dtype, self.dim, staged, self.box))
        return made

    def allocate(self, shared, operands) -> Work:
        rows = hopper_helpers.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (ROWS, TOKENS, self.dim), self.dtype, 1)
        queries, *stages = [
            shared.allocate_tensor(self.dtype, layout.outer, ALIGNMENT, swizzle=layout.inner)
            for layout in (rows, *(operand.staged for operand in operands))
        ]
        barriers = shared.allocate_array(Int64, 4 * self.stages)
        pipelines = [
            tma_pipeline(barriers + i * 2 * self.stages, self.stages, self.stage_bytes, CONSUMERS * GROUP_WARPS)
            for i in range(2)
        ]
        return Work(queries, tuple(stages), tuple(pipelines))

    @cute.jit
    def produce(self, run, work, operands, call, warp):
        """The producer warp: load keys and values of each tile in the order in which they are multiplied."""
        if warp == 0:
            copies = [self.copies(operand, shared) for operand, shared in zip(operands, work.shared, strict=True)]
            keys, values = work.pipelines
            k_state, v_state = producer_state(self.stages), producer_state(self.stages)
            tile = run.first
            while tile < run.end:
                piece = run.piece(tile)
                policy = Int64(EVICT_NORMAL) if piece.whole or run.group > ROWS else Int64(EVICT_FIRST)
                for index in cutlass.range(piece.start, piece.stop):
                    k_state = self.load_tile(keys, copies[0], policy, call, piece, index, k_state)
                    if index > piece.start:
                        v_state = self.load_tile(values, copies[1], policy, call, piece, index - 1, v_state)
                v_state = self.load_tile(values, copies[1], policy, call, piece, piece.stop - 1, v_state)
                tile = piece.next
            values.producer_tail(v_state)  # returns when the last values were read

    def copies(self, operand: Operand, shared: cute.Tensor) -> tuple:
        """Boxes in shared memory (see ``box_layout``), and boxes of the cache."""
        count = self.stages * (self.dim // LINE) * (TOKENS // self.box)
        target = cute.make_tensor(shared.iterator, box_layout(self.dtype, self.dim, self.box, count).outer)
        source = cute.local_tile(operand.tensor, (self.box, LINE), (None, None, None, None))
        return operand.atom, *partition(operand.atom, target, source)

    @cute.jit
    def load_tile(self, stages, copies, policy, call, piece, index, state):
        """Keys, or values, of a tile, from one page for each box."""
        atom, target, source = copies
        boxes = self.boxes(call, piece, index)
        stages.producer_acquire(state)  # both warp groups have released the stage
        barrier = stages.producer_get_barrier(state)
        lines = self.dim // LINE
        for i, (page, place) in enumerate(boxes):
            for line in cutlass.range_constexpr(lines):
                box = target[None, (state.index * lines + line) * len(boxes) + i]
                loaded = source[None, place, line, piece.unit, page]
                cute.copy(atom, loaded, box, tma_bar_ptr=barrier, cache_policy=policy)
        state.advance()
        return state

    @cute.jit
    def consume(self, run, work, mmas, q, scale, call, parts, group):
        """64 rows of each piece."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        keys, values = work.pipelines
        own_q = cute.local_tile(work.queries, (WGMMA_ROWS, self.dim), (group, 0, 0))
        consumer = make_consumer(keys, values, mmas, own_q, *work.shared, self.barriers, group)
        # The softmax wants the largest score to stay the largest. So a sign goes to the queries, and 0 is almost 0.
        softmax = make_softmax(cute.arch.fmax(cute.arch.fmax(scale, -scale), SMALLEST))
        sign = Float32(1) if scale >= 0.0 else Float32(-1)
        k_state, v_state = consumer_state(self.stages), consumer_state(self.stages)
        top = run.lane * ROWS
        within = group * WGMMA_ROWS + accumulator_row(thread)
        if group == 1:
            consumer.pass_turn()  # the first group has the first turn
        tile = run.first
        while tile < run.end:
            piece = run.piece(tile)
            view = View(run, piece, top + within)
            self.copy_queries(q, own_q, sign, run, piece, top + group * WGMMA_ROWS, group)
            consumer.sums.fill(0.0)
            softmax.reset()
            k_state = consumer.first(view, softmax, piece.start, k_state)
            for index in cutlass.range(piece.start, piece.stop - 1):
                k_state, v_state = consumer.step(view, softmax, index + 1, k_state, v_state, "any")
            # Only the last tile of a sequence may have tokens past its end. Nothing is being multiplied now.
            values.consumer_wait(v_state)
            valid = piece.length - (piece.stop - 1) * TOKENS
            if valid < TOKENS:
                self.clear(work.shared[1], valid, v_state.index)
            v_state = consumer.last(v_state)
            output = Output(call.out, parts, run, piece, run.slot(tile), top, piece.unit, Float32(1))
            for r in cutlass.range_constexpr(2):
                total, first = softmax.total(r), thread % 4 == 0
                output.write_row(consumer.sums, r, within + 8 * r, 0, softmax.offsets[r], total, first)
            tile = piece.next

    @cute.jit
    def copy_queries(self, q, queries, sign, run, piece, top, group):
        """The rows of a warp group into shared memory. Rows that do not exist repeat the last one and are never written."""
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        heads = run.heads
        across = self.dim // CHUNK
        step = WARP_GROUP // across  # rows that the warp group copies at once
        places = [(thread // across + i * step, thread % across) for i in range(WGMMA_ROWS // step)]
        loaded = []
        for within, chunk in places:  # all at once, because the answer takes a while
            row = cutlass.min(top + within, run.group - 1)
            source = q[piece.sequence, row // heads, piece.unit * heads + row % heads, None]
            loaded.append(fetch(source, chunk, CHUNK))
        self.barriers.together(group).arrive_and_wait()  # the rows of the previous piece are no longer multiplied
        for (within, chunk), values in zip(places, loaded, strict=True):
            values.store((values.load().to(Float32) * sign).to(self.dtype))
            cute.autovec_copy(values, cute.local_tile(queries[within, None], (CHUNK,), (chunk,)))
        cute.arch.fence_proxy("async.shared", space="cta")  # wgmma reads what threads have written
        self.barriers.together(group).arrive_and_wait()  # all of the warp group have written

    @cute.jit
    def clear(self, values, valid, stage):
        """Zeros for the values of tokens past the end, by both warp groups."""
        both = CONSUMERS * WARP_GROUP
        thread = cute.arch.thread_idx()[0] % both
        clear_tokens(values, stage * TOKENS * self.dim, self.dim // LINE, TOKENS, valid, thread, both)
        # Both warp groups have written.
        pipeline.NamedBarrier(barrier_id=self.barriers.free, num_threads=both).arrive_and_wait()
