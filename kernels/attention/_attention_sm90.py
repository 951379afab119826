"""Attention for sm_90a: TMA brings queries, keys and values into shared memory, wgmma multiplies them from there.

A tile of the output is ``rows`` queries of one head. A block has one warp group that only loads, and two or three that
multiply. Each of those has 64 rows of the tile and needs nothing from the others. It goes over the keys in blocks of
``tokens``, from the last block that its rows see to the first that its tile sees:

* ``scores = queries @ keys.T`` is the first product. Its sums stay in registers.
* The running softmax turns scores into weights: see ``_attention``.
* ``sums += weights @ values`` is the second product. Weights are its left operand, straight from registers.

The tensor cores are the limit, so they must not wait for the softmax. Two things see to that:

* **Within a warp group**, the first product of the next block starts before the second product of this one. While the
  second runs, the softmax of the next block is computed: see ``advance``.
* **Between warp groups**, products are started in turns. While one warp group is at its softmax, the products of the
  others run: see ``turn``.

Blocks are persistent. The loading warp draws tiles, longest first, and is ahead of the others: it brings the first keys
of the next tile while they still write this one. It finds out what the tile is, and tells them together with its queries:
see ``announce``.

Masks are bounds: a row sees the tokens from one place to another. Only blocks at a border of what the rows of a tile see
are compared with these bounds. Tokens past the end of a sequence arrive as zeros, whatever the memory there contains,
because TMA fills in zeros outside of a tensor (see ``ragged_view`` for sequences that lie side by side).

Keys and values may be in pages. Then a block of them is brought by many small copies, each from one page, and each with
an end of its own: see ``load_boxes``. To start a copy takes a warp hundreds of cycles, so four warps share them. Multiplying
warps notice nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._device import WARP, await_previous, store
from .._versions import SmemAllocator
from ..sm90.hardware import ALIGNMENT, BARRIER_BYTES, WARP_GROUP, WGMMA_ROWS
from . import _attention
from ._attention import MINUS_INFINITY, Problem, Tile, narrow, scale_sums, soften, thread_row

ELEMENT_BYTES = 2
SLICES = (64, 32, 16)  # columns that one swizzled TMA store can write: 128, 64 or 32 bytes
END = -1  # in place of a tile: there is none left
CHUNK = 8  # elements of 16 bytes
BOX = 16  # tokens that one copy brings from a page: the size of a page is a multiple of this
LARGE_BOX = 64  # the same, if the size of a page is a multiple of this
# What loading warps write down: whether there is a tile, six facts of it (see ``announce``), and the next tile, in turns.
NOTES, NEXT = 9, 7
# See ``ragged_view``: the place of the end of every sequence, and elements that are nothing to an address, so many times.
SEQUENCE_END, NOTHING = 2**30, 2**64 // 2**30 // ELEMENT_BYTES
MOST = 2**31 - 1
# Registers per thread of the loading warp group and of the others, by the number of the others.
REGISTERS = {2: (40, 232), 3: (32, 160)}


@dataclass(frozen=True)
class Tiling:
    """``rows`` queries, 64 for each multiplying warp group, against ``tokens`` keys at a time."""

    rows: int
    tokens: int
    dim: int
    value_dim: int

    @property
    def label(self) -> str:
        return f"tile{self.rows}x{self.tokens}"

    @property
    def groups(self) -> int:
        """Warp groups that multiply."""
        return self.rows // WGMMA_ROWS

    @property
    def threads(self) -> int:
        return (1 + self.groups) * WARP_GROUP

    @property
    def slice_columns(self) -> int:
        """Columns of the output that one store writes."""
        return line_of(self.value_dim)

    @property
    def slices(self) -> int:
        return self.value_dim // self.slice_columns

    @property
    def large_boxes(self) -> bool:
        """Whether a block of tokens consists of large boxes."""
        return self.tokens % LARGE_BOX == 0

    @property
    def query_bytes(self) -> int:
        return self.rows * self.dim * ELEMENT_BYTES

    @property
    def out_bytes(self) -> int:
        return self.rows * self.value_dim * ELEMENT_BYTES

    @property
    def key_bytes(self) -> int:
        return self.tokens * self.dim * ELEMENT_BYTES

    @property
    def value_bytes(self) -> int:
        return self.tokens * self.value_dim * ELEMENT_BYTES

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
        if self.groups not in REGISTERS or self.rows % WGMMA_ROWS or self.tokens % BOX:
            raise aot.DeclarationError(
                f"a tile of {self.rows} rows and {self.tokens} tokens",
                hint=f"rows are 128 or 192, tokens a multiple of {BOX}",
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
        self.loaders = WARP_GROUP // WARP if self.paged else 1  # warps that load

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        out: cute.Tensor,
        scale: Float32,
        left: Int32,
        right: Int32,
        q_starts,
        k_starts,
        lse,
        soft_cap: Float32,
        sinks,
        pages,
        lengths,
        tickets: cute.Tensor,
        multiprocessors: Int32,
        stream: CUstream,
    ):
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
        q, k, v, out = self.by_token(q), self.cached_by_token(k), self.cached_by_token(v), self.by_token(out)
        score_mma = self.mma(tiling.tokens, warpgroup.OperandMajorMode.K, warpgroup.OperandSource.SMEM)
        sum_mma = self.mma(tiling.value_dim, warpgroup.OperandMajorMode.MN, warpgroup.OperandSource.RMEM)

        rows, columns = LayoutEnum.ROW_MAJOR, LayoutEnum.COL_MAJOR
        scored = (tiling.rows, tiling.tokens, tiling.dim)
        summed = (tiling.rows, tiling.value_dim, tiling.tokens)
        q_staged = hopper_helpers.make_smem_layout_a(rows, scored, self.dtype, 1)
        k_staged = hopper_helpers.make_smem_layout_b(rows, scored, self.dtype, self.stages)
        v_staged = hopper_helpers.make_smem_layout_b(columns, summed, self.dtype, self.stages)
        out_tile = (WGMMA_ROWS, tiling.slice_columns)
        out_staged = hopper_helpers.make_smem_layout_epi(self.dtype, rows, out_tile, tiling.slices * tiling.groups)
        load_q, q_tiles = self.tma(q, q_staged, (tiling.rows, tiling.dim))
        large_k, large_k_tiles, large_v, large_v_tiles = None, None, None, None
        if self.paged:
            load_k, k_tiles = self.box_tma(k, tiling.dim, BOX)
            load_v, v_tiles = self.box_tma(v, tiling.value_dim, BOX)
            if tiling.large_boxes:
                large_k, large_k_tiles = self.box_tma(k, tiling.dim, LARGE_BOX)
                large_v, large_v_tiles = self.box_tma(v, tiling.value_dim, LARGE_BOX)
        else:
            v = cute.make_tensor(v.iterator, cute.select(v.layout, mode=[1, 0, *range(2, cute.rank(v))]))
            load_k, k_tiles = self.tma(k, k_staged, (tiling.tokens, tiling.dim))
            load_v, v_tiles = self.tma(v, v_staged, (tiling.value_dim, tiling.tokens))
        store_out, out_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), out, cute.select(out_staged, mode=[0, 1]), out_tile
        )
        self.kernel(
            score_mma, sum_mma, load_q, q_tiles, load_k, k_tiles, load_v, v_tiles, store_out, out_tiles,
            large_k, large_k_tiles, large_v, large_v_tiles, q_staged, k_staged, v_staged, out_staged, lse, sinks,
            scale, inner, problem, table, tickets,
        ).launch(
            grid=[blocks, 1, 1],
            block=[tiling.threads, 1, 1],
            min_blocks_per_mp=1,
            use_pdl=self.early,
            stream=stream,
        )  # fmt: skip

    def by_token(self, x: cute.Tensor) -> cute.Tensor:
        """A tensor as tokens x columns x heads x what tells sequences apart."""
        if self.ragged:
            return ragged_view(cute.make_tensor(x.iterator, cute.select(x.layout, mode=[0, 2, 1])))
        return cute.make_tensor(x.iterator, cute.select(x.layout, mode=[1, 3, 2, 0]))

    def cached_by_token(self, x: cute.Tensor) -> cute.Tensor:
        """The same for keys and values. The copies from pages take each box as a sequence of its own."""
        if self.paged:
            return ragged_view(cute.make_tensor(x.iterator, cute.select(x.layout, mode=[1, 3, 2])))
        return self.by_token(x)

    def table(self, pages, k: cute.Tensor, v: cute.Tensor):
        """How to find pages, or None. Pages lie a whole number of tokens apart, which a guard of the declaration checks."""
        if pages is None:
            return None
        return Table(pages, k.shape[1], *(Int32(x.stride[0] // x.stride[1]) for x in (k, v)))

    def box_layout(self, columns: int, size: int, count: int) -> cute.ComposedLayout:
        """Boxes of tokens, a line of columns wide, one after the other in shared memory.

        Keys and values of a block have the same order there: boxes of the first line, boxes of the second line, and so on.
        """
        box = (WGMMA_ROWS, size, line_of(columns))
        return hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, box, self.dtype, count)

    def box_tma(self, tensor: cute.Tensor, columns: int, size: int):
        return self.tma(tensor, self.box_layout(columns, size, 1), (size, line_of(columns)))

    def mma(self, columns: int, right_major, left_source) -> cute.TiledMma:
        """A product of one warp group."""
        return hopper_helpers.make_trivial_tiled_mma(
            self.dtype,
            self.dtype,
            warpgroup.OperandMajorMode.K,
            right_major,
            Float32,
            atom_layout_mnk=(1, 1, 1),
            tiler_mn=(WGMMA_ROWS, columns),
            a_source=left_source,
        )

    def tma(self, tensor: cute.Tensor, staged: cute.ComposedLayout, tile: tuple[int, int]):
        return cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), tensor, cute.select(staged, mode=[0, 1]), tile
        )

    @cute.kernel
    def kernel(
        self,
        score_mma: cute.TiledMma,
        sum_mma: cute.TiledMma,
        load_q: cute.CopyAtom,
        q: cute.Tensor,
        load_k: cute.CopyAtom,
        k: cute.Tensor,
        load_v: cute.CopyAtom,
        v: cute.Tensor,
        store_out: cute.CopyAtom,
        out: cute.Tensor,
        large_k,
        k_by_large_box,
        large_v,
        v_by_large_box,
        q_staged: cute.ComposedLayout,
        k_staged: cute.ComposedLayout,
        v_staged: cute.ComposedLayout,
        out_staged: cute.ComposedLayout,
        lse,
        sinks,
        scale: Float32,
        inner: Float32,
        problem: Problem,
        table,
        tickets: cute.Tensor,
    ):
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // WARP)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:
            for atom in (load_q, load_k, load_v, store_out, large_k, large_v):
                if cutlass.const_expr(atom is not None):
                    cpasync.prefetch_descriptor(atom)

        shared = SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, 2 + 4 * self.stages)
        notes = cute.make_tensor(shared.allocate_array(Int32, NOTES), cute.make_layout(NOTES))
        shared_q, shared_k, shared_v = [
            shared.allocate_tensor(self.dtype, staged.outer, ALIGNMENT, swizzle=staged.inner)
            for staged in (q_staged, k_staged, v_staged)
        ]
        if cutlass.const_expr(self.own_output):
            shared_out = shared.allocate_tensor(self.dtype, out_staged.outer, ALIGNMENT, swizzle=out_staged.inner)
        else:
            # Slice by slice, the rows of a warp group lie where its queries were.
            shared_out = cute.make_tensor(shared_q.iterator, out_staged.outer)
        queries = self.pipeline(barriers, 1, tiling.query_bytes)
        keys = self.pipeline(barriers + 2, self.stages, tiling.key_bytes)
        values = self.pipeline(barriers + 2 + 2 * self.stages, self.stages, tiling.value_bytes)
        pipeline.pipeline_init_arrive(cluster_shape_mn=(1, 1), is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=(1, 1))

        await_previous(self.early)
        loading, multiplying = REGISTERS[tiling.groups]
        if group == 0:
            cute.arch.setmaxregister_decrease(loading)
            if warp < self.loaders:
                self.load_tiles(
                    queries, keys, values, load_q, q, shared_q, load_k, k, shared_k, load_v, v, shared_v,
                    (large_k, k_by_large_box, large_v, v_by_large_box), problem, table, notes, tickets, warp,
                )  # fmt: skip
        else:
            cute.arch.setmaxregister_increase(multiplying)
            self.attend_tiles(
                queries, keys, values, score_mma, sum_mma, shared_q, shared_k, shared_v, shared_out, store_out, out,
                lse, sinks, scale, inner, problem, notes, group - 1,
            )  # fmt: skip

    def pipeline(self, barriers, stages: int, size: int) -> pipeline.PipelineTmaAsync:
        """Stages that TMA fills, and that every multiplying warp reports to be free again."""
        warps = self.tiling.groups * (WARP_GROUP // WARP)
        return pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, warps),
            tx_count=size,
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
            defer_sync=True,
        )

    @cute.jit
    def load_tiles(
        self, queries, keys, values, load_q, q, shared_q, load_k, k, shared_k, load_v, v, shared_v, large, problem, table,
        notes, tickets, warp,
    ):  # fmt: skip
        """A loading warp: bring queries, keys and values in the order in which they are used.

        The first warp chooses tiles and brings queries. If keys and values are in pages, others help it with those.
        """
        tiling = self.tiling
        count, index, turn = problem.order.count(), cute.arch.block_idx()[0], Int32(0)
        q_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
        k_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
        v_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
        while index < count:
            following = Int32(0)
            if warp == 0:
                following = self.next_tile(tickets)  # early, because the answer takes a while
            tile = problem.order.tile_at(index)
            bounds = problem.bounds(tile, tiling)
            key_head = tile.head // problem.heads_of_key
            last = bounds.end - 1
            page, next_page = Int32(0), Int32(0)
            if cutlass.const_expr(self.paged):
                lookup = Lookup(table, tile, problem.seen(tile, tile.index * tiling.rows)[0], warp)
                page, next_page = self.page_of(lookup, last), self.page_of(lookup, last - 1)
                large_k, large_v = large[:2], large[2:]
                own_k = self.in_pages(keys, (load_k, k), large_k, shared_k, key_head, lookup, table.key_step)
                own_v = self.in_pages(values, (load_v, v), large_v, shared_v, key_head, lookup, table.value_step)
            else:
                token = origin(tile.sequence, tile.first_token, tile.tokens)
                own_k = cute.domain_offset((token.row, 0), k[(None, None, key_head, *token.rest)])
                own_v = cute.domain_offset((0, token.row), v[(None, None, key_head, *token.rest)])
                own_k = cute.local_tile(own_k, (tiling.tokens, tiling.dim), (None, 0))
                own_v = cute.local_tile(own_v, (tiling.value_dim, tiling.tokens), (0, None))
                own_k = InLine(keys, load_k, *partition(load_k, shared_k, own_k))
                own_v = InLine(values, load_v, *partition(load_v, shared_v, own_v))
            k_state = self.load_block(own_k, last, page, k_state)
            if warp == 0:
                query = origin(tile.sequence, tile.first_query, tile.queries)
                own_q = cute.domain_offset((query.row, 0), q[(None, None, tile.head, *query.rest)])
                own_q = cute.local_tile(own_q, (tiling.rows, tiling.dim), (tile.index, None))
                to_q, from_q = partition(load_q, shared_q, own_q)
                announce(queries, q_state, notes, index, tile)
                queries.sync_object_full.arrive(q_state.index, None)
                barrier = queries.producer_get_barrier(q_state)
                cute.copy(load_q, from_q[None, 0], to_q[None, 0], tma_bar_ptr=barrier)
            q_state.advance()
            for i in cutlass.range(1, bounds.end - bounds.begin):
                previous, page = page, next_page
                if cutlass.const_expr(self.paged):
                    next_page = self.page_of(lookup, last - i - 1)  # a block ahead, because the answer takes a while
                k_state = self.load_block(own_k, last - i, page, k_state)
                v_state = self.load_block(own_v, last - i + 1, previous, v_state)
            v_state = self.load_block(own_v, bounds.begin, page, v_state)
            if cutlass.const_expr(self.paged):
                following = self.shared_tile(notes, following, turn, warp)
                turn = 1 - turn
            index = following
        if warp == 0:
            announce(queries, q_state, notes, Int32(END), None)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(queries.producer_get_barrier(q_state), 0)
            values.producer_tail(v_state)

    @cute.jit
    def next_tile(self, tickets):
        """Blocks draw tickets, because tiles take different times. The first tile of a block needs none."""
        ticket = Int32(0)
        if cute.arch.lane_idx() == 0:
            ticket = Int32(cute.arch.atomic_add(tickets.iterator, Int32(1), sem="relaxed", scope="gpu"))
        return cute.arch.grid_dim()[0] + cute.arch.shuffle_sync(ticket, 0)

    @cute.jit
    def shared_tile(self, notes, following, turn, warp):
        """The next tile, from the first loading warp to the others. Two places in turns: a slow warp may still read one."""
        if warp == 0 and cute.arch.lane_idx() == 0:
            notes[NEXT + turn] = following
        self.loading().arrive_and_wait()
        return cute.arch.make_warp_uniform(notes[NEXT + turn])

    def in_pages(self, stages, small, large, shared, head, lookup, step):
        """Keys, or values, of one head. ``small`` and ``large``: how to copy boxes of these sizes."""
        boxes = (self.in_boxes(BOX, *small, shared, head), self.in_boxes(LARGE_BOX, *large, shared, head))
        return Blocks(stages, *boxes, lookup, step)

    def in_boxes(self, size, atom, source, shared, head):
        """The stages seen as boxes: see ``box_layout``."""
        if atom is None:
            return None
        columns = cute.size(source, mode=[1])
        lines = columns // line_of(columns)
        boxes = self.box_layout(columns, size, self.stages * lines * (self.tiling.tokens // size))
        target = cute.make_tensor(shared.iterator, boxes.outer)
        return Boxes(atom, source[None, None, head, None, None], target)

    @cute.jit
    def load_block(self, own, block, page, state):
        """Wait until a stage is free, then start to fill it with a block of keys or of values."""
        if cutlass.const_expr(self.paged):
            self.load_boxes(own, block, page, state)
        else:
            own.stages.producer_acquire(state)
            barrier = own.stages.producer_get_barrier(state)
            cute.copy(own.atom, own.source[None, block], own.target[None, state.index], tma_bar_ptr=barrier)
        state.advance()
        return state

    def box_token(self, block):
        """The first token of the box that a lane looks after."""
        tokens = self.tiling.tokens
        return block * tokens + cutlass.min(cute.arch.lane_idx() * BOX, tokens - BOX)

    @cute.jit
    def page_of(self, lookup, block):
        """The page of a lane's box. Blocks and boxes that do not exist get any page of the table."""
        place = cutlass.max(self.box_token(block), 0) // lookup.table.size
        return lookup.table.pages[lookup.tile.sequence, cutlass.min(place, lookup.table.pages.shape[1] - 1)]

    @cute.jit
    def load_boxes(self, own, block, page, state):
        """Fill a stage from pages."""
        if own.lookup.warp == 0:
            own.stages.producer_acquire(state)  # which also says how many bytes will arrive, from all warps
        else:
            own.stages.sync_object_empty.wait(state.index, state.phase)
        if cutlass.const_expr(own.large is None):
            self.copy_boxes(own, own.small, block, page, state)
        else:
            if own.lookup.table.size % LARGE_BOX == 0:
                self.copy_boxes(own, own.large, block, page, state)
            else:
                self.copy_boxes(own, own.small, block, page, state)

    @cute.jit
    def copy_boxes(self, own, boxes, block, page, state):
        """Copy this warp's share of boxes.

        A box has as many tokens as its sequence has left there. The others arrive as zeros, whatever the rest of the page
        contains. A box that no query of the tile sees, behind the end or before a window, has none, and its page need not
        exist.
        """
        table, tile, first, warp = own.lookup
        size, line = (cute.size(boxes.target, mode=[i]) for i in range(2))
        count = self.tiling.tokens // size
        token = self.box_token(block)
        length = cutlass.max(cutlass.min(tile.tokens - token, size), 0)
        length = length if token + size > first else Int32(0)
        end = page * own.step + token % table.size + length
        end = end if length > 0 else Int32(0)
        barrier = own.stages.producer_get_barrier(state)
        for share in cutlass.range_constexpr(0, count, self.loaders):
            box = share + warp
            lane = cutlass.min(box, count - 1) * (size // BOX)
            row = SEQUENCE_END - cute.arch.shuffle_sync(length, lane)
            tokens = boxes.source[None, None, SEQUENCE_END, cute.arch.shuffle_sync(end, lane)]
            tokens = cute.local_tile(cute.domain_offset((row, 0), tokens), (size, line), (0, None))
            target, source = partition(boxes.atom, boxes.target, tokens)
            if box < count:
                lines = cute.size(source, mode=[1])
                for n in cutlass.range_constexpr(lines):
                    at = (state.index * lines + n) * count + box
                    cute.copy(boxes.atom, source[None, n], target[None, at], tma_bar_ptr=barrier)

    @cute.jit
    def attend_tiles(
        self, queries, keys, values, score_mma, sum_mma, shared_q, shared_k, shared_v, shared_out, store_out, out, lse,
        sinks, scale, inner, problem, notes, group,
    ):  # fmt: skip
        """A warp group: 64 rows of every tile of the block."""
        tiling = self.tiling
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        row = group * WGMMA_ROWS + thread_row(thread)
        whole_scores, whole_sums = score_mma.get_slice(0), sum_mma.get_slice(0)
        own_q = cute.local_tile(shared_q, (WGMMA_ROWS, tiling.dim), (group, 0, 0))
        query = score_mma.make_fragment_A(whole_scores.partition_A(own_q))
        key = score_mma.make_fragment_B(whole_scores.partition_B(shared_k))
        value = sum_mma.make_fragment_B(whole_sums.partition_B(shared_v))
        weights = cute.make_rmem_tensor(sum_mma.partition_shape_A((WGMMA_ROWS, tiling.tokens)), self.dtype)
        sums = cute.make_rmem_tensor(sum_mma.partition_shape_C((WGMMA_ROWS, tiling.value_dim)), Float32)
        softmax = self.softmax(scale, inner)
        work = Work(keys, values, score_mma, sum_mma, query, key, value, weights, sums, group, row)
        q_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
        k_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
        v_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
        if group == tiling.groups - 1:
            self.turn(0).arrive()  # which is the first
        queries.consumer_wait(q_state)
        (index,) = noted(notes, 0, 1)
        while index != END:
            tile = self.announced(notes)
            bounds = problem.bounds(tile, tiling)
            sums.fill(0.0)
            softmax.reset()
            block = self.last_block(problem, tile, bounds, group)
            for _ in cutlass.range(bounds.end - 1 - block, unroll=1):
                k_state, v_state = self.pass_over(work, k_state, v_state)
            # The first block has no second product of an earlier one to overlap with.
            scores = self.new_scores(score_mma)
            keys.consumer_wait(k_state)
            start_product(score_mma, scores, query, key[None, None, None, k_state.index], True)
            warpgroup.wait_group(0)
            keys.consumer_release(k_state)
            k_state.advance()
            self.cap(scores, softmax, often=False)
            if block >= bounds.clean_end:
                self.mask(scores, block, tile, problem, row, upper=True)
            if block < bounds.clean_begin:
                self.mask(scores, block, tile, problem, row, upper=False)
            soften(scores, softmax)
            narrow(scores, weights)
            # Blocks at the upper border of what the rows see, blocks that all rows see, blocks at the lower border.
            clean_end = cutlass.min(bounds.clean_end, block)
            clean_end = cutlass.max(clean_end, bounds.begin)
            clean_begin = cutlass.min(cutlass.max(bounds.clean_begin, bounds.begin), clean_end)
            for i in cutlass.range(block - clean_end, unroll=1):
                k_state, v_state = self.advance(
                    work, softmax, block - 1 - i, tile, bounds, problem, k_state, v_state, "upper"
                )
            for i in cutlass.range(clean_end - clean_begin, unroll=1):
                k_state, v_state = self.advance(
                    work, softmax, clean_end - 1 - i, tile, bounds, problem, k_state, v_state, "none"
                )
            for i in cutlass.range(clean_begin - bounds.begin, unroll=1):
                k_state, v_state = self.advance(
                    work, softmax, clean_begin - 1 - i, tile, bounds, problem, k_state, v_state, "lower"
                )
            if cutlass.const_expr(self.own_output):
                queries.consumer_release(q_state)
            values.consumer_wait(v_state)
            start_product(sum_mma, sums, weights, value[None, None, None, v_state.index], False)
            warpgroup.wait_group(0)
            values.consumer_release(v_state)
            v_state.advance()
            self.finish(sums, softmax, lse, sinks, tile, row)
            self.write(sum_mma, sums, shared_out, store_out, out, tile, thread, group)
            if cutlass.const_expr(not self.own_output):
                if cute.arch.make_warp_uniform(thread // WARP) == 0:
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
                cute.arch.sync_warp()
                queries.consumer_release(q_state)
            q_state.advance()
            queries.consumer_wait(q_state)
            (index,) = noted(notes, 0, 1)
        # Shared memory must outlive the stores that read it.
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    def announced(self, notes: cute.Tensor) -> Tile:
        """The tile that the loading warp has announced."""
        *facts, first_query = noted(notes, 1, NEXT)
        return Tile(*facts, first_query if self.ragged else None)

    def new_scores(self, mma: cute.TiledMma) -> cute.Tensor:
        return cute.make_rmem_tensor(mma.partition_shape_C((WGMMA_ROWS, self.tiling.tokens)), Float32)

    @cute.jit
    def last_block(self, problem, tile, bounds, group):
        """The last block of which a row of this warp group sees a token. Without one, the first block of the tile."""
        first = tile.index * self.tiling.rows + group * WGMMA_ROWS
        _, high = problem.seen(tile, cutlass.min(first + WGMMA_ROWS, tile.queries) - 1)
        last = cutlass.max(high // self.tiling.tokens, bounds.begin)
        return last if first < tile.queries else bounds.begin

    @cute.jit
    def pass_over(self, work, k_state, v_state):
        """Leave a block to the other warp groups, but not the turns: none of this one's rows sees it."""
        work.keys.consumer_wait(k_state)
        self.turn(work.group).arrive_and_wait()
        self.turn((work.group + 1) % self.tiling.groups).arrive()
        work.keys.consumer_release(k_state)
        k_state.advance()
        work.values.consumer_wait(v_state)
        work.values.consumer_release(v_state)
        v_state.advance()
        return k_state, v_state

    @cute.jit
    def advance(self, work, softmax, block, tile, bounds, problem, k_state, v_state, border: cutlass.Constexpr):
        """Add the values of the last block to the sums. Meanwhile, turn the scores of the next block into weights."""
        scores = self.new_scores(work.score_mma)
        work.keys.consumer_wait(k_state)
        self.turn(work.group).arrive_and_wait()
        start_product(work.score_mma, scores, work.query, work.key[None, None, None, k_state.index], True)
        work.values.consumer_wait(v_state)
        start_product(work.sum_mma, work.sums, work.weights, work.value[None, None, None, v_state.index], False)
        self.turn((work.group + 1) % self.tiling.groups).arrive()
        warpgroup.wait_group(1)
        work.keys.consumer_release(k_state)
        k_state.advance()
        self.cap(scores, softmax, often=border == "none")
        if cutlass.const_expr(border == "upper"):
            self.mask(scores, block, tile, problem, work.row, upper=True)
            if block < bounds.clean_begin:  # a narrow window has both borders in one block
                self.mask(scores, block, tile, problem, work.row, upper=False)
        elif cutlass.const_expr(border == "lower"):
            self.mask(scores, block, tile, problem, work.row, upper=False)
        factors, grown = soften(scores, softmax)
        # This is never true. Without it, the assembler waits for the second product before it computes most of the
        # weights. With it, all of them must be there first, because their sums are.
        if softmax.totals[0] + softmax.totals[1] < 0.0:
            cute.arch.sync_warp()
        warpgroup.wait_group(0)
        work.values.consumer_release(v_state)
        v_state.advance()
        narrow(scores, work.weights)
        if grown:
            scale_sums(work.sums, factors)
        return k_state, v_state

    @cute.jit
    def write(self, mma, sums, shared_out, store_out, out, tile, thread, group):
        """Round the sums, then through shared memory, so that stores write whole lines. TMA leaves out rows past the end."""
        tiling = self.tiling
        together = self.together(group)
        storing = cute.arch.make_warp_uniform(thread // WARP) == 0
        copy = self.copy_to_shared(mma)
        mine = copy.get_slice(thread)
        target = mine.partition_D(shared_out)
        shape = cute.shape(mine.partition_S(shared_out))[:3]
        rounded = cute.make_rmem_tensor(shape, self.dtype)
        size = cute.size(rounded)
        if cutlass.const_expr(self.own_output):
            if storing:  # the stores of the previous tile have read their memory
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            together.arrive_and_wait()
        for s in cutlass.range_constexpr(tiling.slices):
            part = cute.make_tensor(sums.iterator + s * size, cute.make_layout(size))
            narrow(part, rounded)
            cute.copy(copy, rounded, target[None, None, None, s * tiling.groups + group])
        cute.arch.fence_proxy("async.shared", space="cta")
        together.arrive_and_wait()
        if storing:
            begin = origin(tile.sequence, tile.first_query, tile.queries)
            own = cute.domain_offset((begin.row, 0), out[(None, None, tile.head, *begin.rest)])
            own = cute.local_tile(own, (WGMMA_ROWS, tiling.slice_columns), (None, None))
            stored, stored_to = partition(store_out, shared_out, own)
            for s in cutlass.range_constexpr(tiling.slices):
                cute.copy(
                    store_out,
                    stored[None, s * tiling.groups + group],
                    stored_to[None, tile.index * tiling.groups + group, s],
                )
            cute.arch.cp_async_bulk_commit_group()

    def together(self, group) -> pipeline.NamedBarrier:
        """The barrier at which the threads of a warp group wait for each other."""
        return pipeline.NamedBarrier(barrier_id=1 + group, num_threads=WARP_GROUP)

    def turn(self, group) -> pipeline.NamedBarrier:
        """The barrier at which a warp group waits until the one before it has started its products."""
        return pipeline.NamedBarrier(barrier_id=1 + self.tiling.groups + group, num_threads=2 * WARP_GROUP)

    def loading(self) -> pipeline.NamedBarrier:
        """The barrier of the loading warps."""
        return pipeline.NamedBarrier(barrier_id=1 + 2 * self.tiling.groups, num_threads=self.loaders * WARP)

    def copy_to_shared(self, mma: cute.TiledMma) -> cute.TiledCopy:
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), self.dtype)
        return cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, mma))


class Origin(NamedTuple):
    """Where a sequence begins in a tensor of tokens x columns x heads x what tells sequences apart."""

    row: Int32
    rest: tuple


class InLine(NamedTuple):
    """Blocks of keys, or of values, of a tile whose tokens follow each other in memory."""

    stages: pipeline.PipelineTmaAsync
    atom: cute.CopyAtom
    target: cute.Tensor
    source: cute.Tensor


class Table(NamedTuple):
    """Where pages are: sequences x pages of a sequence, tokens of a page, and how many tokens lie between two pages."""

    pages: cute.Tensor
    size: Int32
    key_step: Int32
    value_step: Int32


class Lookup(NamedTuple):
    """What a loading warp needs to find the boxes of a tile."""

    table: Table
    tile: Tile
    first: Int32  # token that a query of the tile sees
    warp: Int32


class Boxes(NamedTuple):
    """Keys, or values, of one head, and the boxes in shared memory to which they go."""

    atom: cute.CopyAtom
    source: cute.Tensor
    target: cute.Tensor


class Blocks(NamedTuple):
    """Blocks of keys, or of values, of a tile in pages."""

    stages: pipeline.PipelineTmaAsync
    small: Boxes
    large: Boxes | None
    lookup: Lookup
    step: Int32


class Work(NamedTuple):
    """What a warp group multiplies with."""

    keys: pipeline.PipelineTmaAsync
    values: pipeline.PipelineTmaAsync
    score_mma: cute.TiledMma
    sum_mma: cute.TiledMma
    query: cute.Tensor
    key: cute.Tensor
    value: cute.Tensor
    weights: cute.Tensor
    sums: cute.Tensor
    group: Int32
    row: Int32  # the first of this thread within the tile


def line_of(columns: int) -> int:
    """Columns of a line in shared memory: what one swizzled copy brings of a token."""
    return next(width for width in SLICES if columns % width == 0)


def origin(sequence: Int32, first: Int32 | None, length: Int32) -> Origin:
    """Where a sequence begins; ``first`` tells it if sequences lie side by side."""
    if first is None:
        return Origin(0, (sequence,))
    return Origin(SEQUENCE_END - length, (SEQUENCE_END, first + length))


def ragged_view(tensor: cute.Tensor) -> cute.Tensor:
    """Tokens x columns x heads of sequences side by side, so that TMA knows where each sequence ends.

    TMA compares each coordinate with an extent. So a sequence of n tokens has the last n places of a mode that is long
    enough for all: past its end, the mode ends too. Its first token is then ``SEQUENCE_END - n`` tokens too far. A further
    mode, always at place ``SEQUENCE_END``, goes back by as many tokens: its stride is that of tokens below ``NOTHING``, and
    ``SEQUENCE_END * NOTHING`` elements are 2**64 bytes, which leave an address as it is. The last mode, with the stride of
    tokens again, is at the end of the sequence. (With a lower base address in place of the mode that goes back, boxes
    that were outside as a whole made illegal accesses.)
    """
    _, columns, heads = tensor.shape
    stride = tensor.stride[0]
    shape = (SEQUENCE_END, columns, heads, MOST, MOST)
    return cute.make_tensor(tensor.iterator, cute.make_layout(shape, stride=(*tensor.stride, NOTHING - stride, stride)))


@cute.jit
def announce(queries: pipeline.PipelineTmaAsync, state, notes: cute.Tensor, index: Int32, tile):
    """Write down what the next tile is, once the queries of the previous one are no longer needed.

    The barrier of the queries makes it visible. To find a tile among sequences of different lengths takes a microsecond,
    which multiplying warps do not have.
    """
    queries.sync_object_empty.wait(state.index, state.phase)
    if cute.arch.lane_idx() == 0:
        notes[0] = index
        if cutlass.const_expr(tile is not None):
            facts = (tile.index, tile.head, tile.sequence, tile.queries, tile.tokens, tile.first_query)
            for i in cutlass.range_constexpr(len(facts)):
                if cutlass.const_expr(facts[i] is not None):
                    notes[1 + i] = facts[i]
    cute.arch.sync_warp()


@cute.jit
def noted(notes: cute.Tensor, begin: cutlass.Constexpr, end: cutlass.Constexpr):
    """Some of the notes. Only the lane that later releases them, together with the queries, reads them for its warp.

    So no other lane can still be reading when the loading warp writes the next notes.
    """
    values = cute.make_rmem_tensor(end - begin, Int32)
    values.fill(0)
    if cute.arch.lane_idx() == 0:
        for i in cutlass.range_constexpr(end - begin):
            values[i] = notes[begin + i]
    return [cute.arch.make_warp_uniform(cute.arch.shuffle_sync(values[i], 0)) for i in range(end - begin)]


def partition(atom: cute.CopyAtom, shared: cute.Tensor, tiles: cute.Tensor):
    return cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
    )


def start_product(mma: cute.TiledMma, sums: cute.Tensor, a: cute.Tensor, b: cute.Tensor, fresh: bool) -> None:
    """Start ``sums += a @ b.T``, or ``sums = a @ b.T`` if ``fresh``."""
    atom = cute.make_mma_atom(mma.op)
    atom.set(warpgroup.Field.ACCUMULATE, not fresh)
    warpgroup.fence()
    for i in range(cute.size(a, mode=[2])):
        cute.gemm(atom, sums, a[None, None, i], b[None, None, i], sums)
        atom.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()
