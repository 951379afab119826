"""Attention for sm_90a: TMA loads queries, keys and values into shared memory, wgmma multiplies them from there.

A tile of the output is ``rows`` queries of one head. A block has a producer warp group, and two or three consumer warp
groups. Each of those has 64 rows of the tile. It goes over the keys in blocks of ``tokens``, from the last block that its
rows see to the first that its tile sees: see ``_mainloop_sm90``.

Blocks are persistent. A producer warp draws tiles, longest first, and is ahead of the consumers: it loads the first keys
of the next tile while they still write this one. It finds out what the tile is, and tells them together with its queries:
see ``_producer_sm90``.

Masks are bounds: a row sees the tokens from one place to another. Only blocks at a border of what the rows of a tile see
are compared with these bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, pipeline
from cutlass.cute.nvgpu import cpasync
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from ..._device import WARP, await_previous, store
from ..._versions import SmemAllocator
from ...sm90.hardware import ALIGNMENT, BARRIER_BYTES, GROUP_WARPS, WARP_GROUP, WGMMA_ROWS, Barriers, accumulator_row
from ...sm90.pipeline import consumer_state, init_barriers, tma_pipeline
from ...sm90.softmax import score_product, value_product
from .._softmax import MINUS_INFINITY
from . import _attention
from . import _producer_sm90 as tma
from ._attention import ELEMENT_BYTES, Problem, Tile, View
from ._mainloop_sm90 import make_consumer
from ._store_sm90 import Place, store_rows

CHUNK = 8  # elements of 16 bytes
# Registers per thread of the producer and of consumers, by the number of consumer warp groups. The sum is what threads start
# with, 168 in each of three warp groups or 128 in each of four: see ``hardware``.
REGISTERS = {2: (40, 232), 3: (32, 160)}


@dataclass(frozen=True)
class Tiling(_attention.Tiling):
    """``rows`` queries, 64 for each consumer warp group, against ``tokens`` keys at a time."""

    @property
    def groups(self) -> int:
        """Consumer warp groups."""
        return self.rows // WGMMA_ROWS

    @property
    def threads(self) -> int:
        return (1 + self.groups) * WARP_GROUP

    @property
    def slice_columns(self) -> int:
        """Columns of the output that one store writes."""
        return tma.line_of(self.value_dim)

    @property
    def slices(self) -> int:
        return self.value_dim // self.slice_columns

    @property
    def large_boxes(self) -> bool:
        """Whether a block of tokens consists of large boxes."""
        return self.tokens % tma.LARGE_BOX == 0

    @property
    def out_bytes(self) -> int:
        return self.rows * self.value_dim * ELEMENT_BYTES

    def room(self, target: aot.Target) -> int:
        return target.shared_memory - ALIGNMENT - 32 * BARRIER_BYTES - self.query_bytes

    def own_output(self, target: aot.Target) -> bool:
        """Whether the output has memory of its own. Else it takes that of the queries, and the next ones wait for it."""
        return self.room(target) - self.out_bytes >= 2 * (self.key_bytes + self.value_bytes)

    def stages(self, target: aot.Target) -> int:
        """Blocks of keys, and of values, that fit into shared memory."""
        room = self.room(target) - (self.out_bytes if self.own_output(target) else 0)
        return min(4, room // (self.key_bytes + self.value_bytes))

    def validate(self, target: aot.Target) -> None:
        if self.groups not in REGISTERS or self.rows % WGMMA_ROWS or self.tokens % tma.BOX:
            raise aot.DeclarationError(
                f"a tile of {self.rows} rows and {self.tokens} tokens",
                hint=f"rows are 128 or 192, tokens a multiple of {tma.BOX}",
            )
        if self.stages(target) < 2:
            raise aot.DeclarationError(
                f"two stages of {self.key_bytes + self.value_bytes} bytes beside {self.query_bytes} of queries; "
                f"a block of {target.arch} has {target.shared_memory}"
            )


class Attention(_attention.Attention):
    def __init__(self, tiling: Tiling, target: aot.Target, layout: str) -> None:
        super().__init__(tiling, target, layout)
        self.stages = tiling.stages(target)
        self.own_output = tiling.own_output(target)
        self.producer_warps = GROUP_WARPS if self.paged else 1
        self.barriers = Barriers(tiling.groups)

    @cute.jit
    def __call__(
        self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, scale: Float32, left: Int32, right: Int32,
        q_starts, k_starts, lse, soft_cap: Float32, sinks, pages, lengths, tickets: cute.Tensor, multiprocessors: Int32,
        stream: CUstream,
    ):  # fmt: skip
        self.dtype = q.element_type
        problem, count = self.problem(q, k, q_starts, k_starts, pages, lengths, left, right)
        scale, inner = self.scales(scale, soft_cap)
        if count > 0:  # CUDA refuses an empty grid, and TMA refuses empty tensors
            if self.any_key(k, pages):
                blocks = cutlass.min(count, multiprocessors)
                self.launch(q, k, v, out, scale, inner, lse, sinks, pages, problem, tickets, blocks, stream)
            else:
                rows = q.shape[0] if self.ragged else q.shape[0] * q.shape[1]
                self.blank(out, lse, sinks).launch(
                    grid=[rows, q.shape[-2], 1], block=[WARP, 1, 1], use_pdl=self.early, stream=stream
                )

    @cute.jit
    def any_key(self, k: cute.Tensor, pages) -> cutlass.Boolean:
        """Whether there is memory for a key at all."""
        fewest = k.shape[0] if self.ragged else k.shape[1]
        if cutlass.const_expr(self.paged):
            fewest = cutlass.min(cutlass.min(fewest, k.shape[1]), pages.shape[1])
        return fewest > 0

    @cute.kernel
    def blank(self, out: cute.Tensor, lse, sinks):
        """The output if there is no key: zeros, and of the sum of weights what a sink adds. A warp has one query and head."""
        query, head, _ = cute.arch.block_idx()
        lane = cute.arch.lane_idx()
        row = (query, head) if self.ragged else (query // out.shape[1], query % out.shape[1], head)
        await_previous(self.early)
        store(cute.full(CHUNK, 0.0, Float32), out[(*row, None)], lane, self.tiling.value_dim // CHUNK, CHUNK)
        if cutlass.const_expr(lse is not None):
            logarithm = Float32(MINUS_INFINITY) if cutlass.const_expr(sinks is None) else sinks[head]
            if lane == 0:
                lse[row] = logarithm

    def launch(self, q, k, v, out, scale, inner, lse, sinks, pages, problem, tickets, blocks, stream) -> None:
        tiling = self.tiling
        table = self.table(pages, k, v)
        q, k, v, out = self.by_token(q), self.by_token(k, self.paged), self.by_token(v, self.paged), self.by_token(out)
        mmas = score_product(self.dtype, tiling.tokens), value_product(self.dtype, tiling.value_dim)
        rows, columns = LayoutEnum.ROW_MAJOR, LayoutEnum.COL_MAJOR
        scored = (tiling.rows, tiling.tokens, tiling.dim)
        summed = (tiling.rows, tiling.value_dim, tiling.tokens)
        q_staged = hopper_helpers.make_smem_layout_a(rows, scored, self.dtype, 1)
        k_staged = hopper_helpers.make_smem_layout_b(rows, scored, self.dtype, self.stages)
        v_staged = hopper_helpers.make_smem_layout_b(columns, summed, self.dtype, self.stages)
        out_tile = (WGMMA_ROWS, tiling.slice_columns)
        out_staged = hopper_helpers.make_smem_layout_epi(self.dtype, rows, out_tile, tiling.slices * tiling.groups)
        queries, large = tma.load_operand(q, q_staged, (tiling.rows, tiling.dim)), (None, None)
        if self.paged:
            cached = (k, self.dtype, tiling.dim, k_staged), (v, self.dtype, tiling.value_dim, v_staged)
            keys, values = (tma.box_operand(*x, tma.BOX) for x in cached)
            if tiling.large_boxes:
                large = tuple(tma.box_operand(*x, tma.LARGE_BOX) for x in cached)
        else:
            v = cute.make_tensor(v.iterator, cute.select(v.layout, mode=[1, 0, *range(2, cute.rank(v))]))
            keys = tma.load_operand(k, k_staged, (tiling.tokens, tiling.dim))
            values = tma.load_operand(v, v_staged, (tiling.value_dim, tiling.tokens))
        stored = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), out, cute.select(out_staged, mode=[0, 1]), out_tile
        )
        operands = (queries, keys, values, tma.Operand(*stored, out_staged))
        self.kernel(mmas, operands, large, lse, sinks, scale, inner, problem, table, tickets).launch(
            grid=[blocks, 1, 1], block=[tiling.threads, 1, 1], min_blocks_per_mp=1, use_pdl=self.early, stream=stream
        )

    def by_token(self, x: cute.Tensor, in_pages: bool = False) -> cute.Tensor:
        """A tensor as tokens x columns x heads x what tells sequences apart. Of pages, each box is a sequence of its own."""
        modes = [1, 3, 2] if in_pages else [0, 2, 1] if self.ragged else [1, 3, 2, 0]
        view = cute.make_tensor(x.iterator, cute.select(x.layout, mode=modes))
        return tma.ragged_view(view) if self.ragged else view

    def table(self, pages, k: cute.Tensor, v: cute.Tensor):
        """How to find pages, or None. Pages lie a whole number of tokens apart, which a guard of the declaration checks."""
        if pages is None:
            return None
        return tma.Table(pages, k.shape[1], *(Int32(x.stride[0] // x.stride[1]) for x in (k, v)))

    @cute.kernel
    def kernel(self, mmas, operands, large, lse, sinks, scale, inner, problem: Problem, table, tickets):
        tiling, stages = self.tiling, self.stages
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // WARP)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:
            for operand in (*operands, *large):
                if cutlass.const_expr(operand is not None):
                    cpasync.prefetch_descriptor(operand.atom)

        shared = SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, 2 + 4 * stages)
        notes = cute.make_tensor(shared.allocate_array(Int32, tma.NOTES), cute.make_layout(tma.NOTES))
        loaded = [
            shared.allocate_tensor(self.dtype, operand.staged.outer, ALIGNMENT, swizzle=operand.staged.inner)
            for operand in operands[:3]
        ]
        out = operands[3]
        if cutlass.const_expr(self.own_output):
            shared_out = shared.allocate_tensor(self.dtype, out.staged.outer, ALIGNMENT, swizzle=out.staged.inner)
        else:
            # Slice by slice, the rows of a warp group lie where its queries were.
            shared_out = cute.make_tensor(loaded[0].iterator, out.staged.outer)
        warps = tiling.groups * GROUP_WARPS  # each reports when a stage is empty again
        queries = tma_pipeline(barriers, 1, tiling.query_bytes, warps)
        keys = tma_pipeline(barriers + 2, stages, tiling.key_bytes, warps)
        values = tma_pipeline(barriers + 2 + 2 * stages, stages, tiling.value_bytes, warps)
        init_barriers()

        await_previous(self.early)
        producer_registers, consumer_registers = REGISTERS[tiling.groups]
        if group == 0:
            cute.arch.setmaxregister_decrease(producer_registers)
            if warp < self.producer_warps:
                together = pipeline.NamedBarrier(barrier_id=self.barriers.free, num_threads=self.producer_warps * WARP)
                tma.Producer(
                    tiling, self.producer_warps, queries, keys, values, operands[:3], loaded, large, problem, table, notes,
                    tickets, together, warp,
                ).load_tiles(stages)  # fmt: skip
        else:
            cute.arch.setmaxregister_increase(consumer_registers)
            own_q = cute.local_tile(loaded[0], (WGMMA_ROWS, tiling.dim), (group - 1, 0, 0))
            consumer = make_consumer(keys, values, mmas, own_q, *loaded[1:], self.barriers, group - 1)
            self.attend_tiles(consumer, queries, shared_out, out, lse, sinks, scale, inner, problem, notes)

    @cute.jit
    def attend_tiles(self, consumer, queries, shared_out, out, lse, sinks, scale, inner, problem, notes):
        """A consumer warp group: 64 rows of every tile of the block."""
        thread, group = cute.arch.thread_idx()[0] % WARP_GROUP, consumer.group
        row = group * WGMMA_ROWS + accumulator_row(thread)
        softmax = self.softmax(scale, inner)
        q_state, k_state, v_state = consumer_state(1), consumer_state(self.stages), consumer_state(self.stages)
        if group == self.tiling.groups - 1:
            consumer.pass_turn()  # the first group has the first turn
        queries.consumer_wait(q_state)
        (index,) = tma.noted(notes, 0, 1)
        while index != tma.END:
            tile = self.announced(notes)
            bounds = problem.bounds(tile, self.tiling)
            view = View(problem, tile, bounds, row, self.tiling)
            consumer.sums.fill(0.0)
            softmax.reset()
            block = self.last_block(problem, tile, bounds, group)
            # All warp groups must take all stages and all turns: the others count on that.
            for _ in cutlass.range(bounds.end - 1 - block, unroll=1):
                k_state, v_state = consumer.skip(k_state, v_state)
            k_state = consumer.first(view, softmax, block, k_state)
            # Blocks at the upper border of what the rows see, blocks that all rows see, blocks at the lower border.
            clean_end = cutlass.min(bounds.clean_end, block)
            clean_end = cutlass.max(clean_end, bounds.begin)
            clean_begin = cutlass.min(cutlass.max(bounds.clean_begin, bounds.begin), clean_end)
            ends = (block, clean_end, clean_begin, bounds.begin)
            for part, border in enumerate(("upper", "none", "lower")):
                for i in cutlass.range(ends[part] - ends[part + 1], unroll=1):
                    k_state, v_state = consumer.step(view, softmax, ends[part] - 1 - i, k_state, v_state, border)
            if cutlass.const_expr(self.own_output):
                queries.consumer_release(q_state)  # with the notes, which ``announced`` has read
            v_state = consumer.last(v_state)
            self.finish(consumer.sums, softmax, lse, sinks, tile, row)
            self.store_tile(consumer, shared_out, out, tile, thread)
            if cutlass.const_expr(not self.own_output):
                # The next queries overwrite the output. The warp that stores releases them when TMA has read it.
                if cute.arch.make_warp_uniform(thread // WARP) == 0:
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
                cute.arch.sync_warp()
                queries.consumer_release(q_state)
            q_state.advance()
            queries.consumer_wait(q_state)
            (index,) = tma.noted(notes, 0, 1)
        # Shared memory must outlive the stores that read it.
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    def announced(self, notes: cute.Tensor) -> Tile:
        """The tile that the producer has announced."""
        *facts, first_query = tma.noted(notes, 1, tma.NEXT)
        return Tile(*facts, first_query if self.ragged else None)

    @cute.jit
    def last_block(self, problem, tile, bounds, group):
        """The last block of which a row of this warp group sees a token. Without one, the first block of the tile."""
        first = tile.index * self.tiling.rows + group * WGMMA_ROWS
        _, high = problem.seen(tile, cutlass.min(first + WGMMA_ROWS, tile.queries) - 1)
        last = cutlass.max(high // self.tiling.tokens, bounds.begin)
        return last if first < tile.queries else bounds.begin

    @cute.jit
    def store_tile(self, consumer, shared_out, out, tile, thread):
        """The epilogue, when the memory for the output is free."""
        group = consumer.group
        if cutlass.const_expr(self.own_output):
            # The stores of the previous tile have read their memory.
            if cute.arch.make_warp_uniform(thread // WARP) == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            self.barriers.together(group).arrive_and_wait()  # the whole warp group may write there
        place = Place(group, thread, group, 0, self.tiling.groups)
        head = (tile.sequence, tile.first_query, tile.queries, tile.head)
        store_rows(place, self.barriers, consumer.sums, consumer.sum_mma, shared_out, out, head, tile.index)
