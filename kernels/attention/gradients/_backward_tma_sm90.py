"""What all codes for gradients of attention on sm_90a share: what is launched, and the kernel, apart from what it multiplies.

Tiles come and go by TMA, and statistics come with them. The producer warp group loads what the consumers multiply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import cpasync
from cutlass.pipeline import NamedBarrier
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from ..._device import WARP, await_previous, store
from ..._versions import SmemAllocator
from ...sm90.hardware import (
    ALIGNMENT,
    CONSUMERS,
    GROUP_WARPS,
    PRODUCER_REGISTERS,
    THREADS,
    WARP_GROUP,
    WGMMA_ROWS,
    Barriers,
)
from ...sm90.pipeline import init_barriers, producer_state, tma_pipeline
from .._softmax import round_to
from ..prompts import _producer_sm90 as tma
from ..prompts._attention import ELEMENT_BYTES, Problem, Tile
from ..prompts._producer_sm90 import Operand, of_head
from ..prompts._store_sm90 import Place, store_rows
from ._backward import CHUNK, INFINITY, AttentionBackward, Scoring, Side, Statistics

STAGES = 2  # of columns


class Pipelines(NamedTuple):
    """Of columns: what scores are made of, and what slopes are made of. The first stage of each comes with the same of the rows."""

    columns: Any  # with the statistics of queries, if columns are queries
    column_values: Any


class Shared(NamedTuple):
    """Rows and stages of columns in shared memory: of either, what scores are made of, and what slopes are made of."""

    rows: cute.Tensor  # rows x elements x 1
    row_values: cute.Tensor
    columns: cute.Tensor  # columns x elements x stages
    column_values: cute.Tensor
    statistics: cute.Tensor  # of queries, if columns are queries: columns x 2 x stages


class Operands(NamedTuple):
    """Of rows, then of columns: what scores are made of, and what slopes are made of. Then gradients of rows, and sums."""

    rows: Operand
    row_values: Operand
    columns: Operand
    column_values: Operand
    gradient: Operand
    value_gradient: Operand | None = None  # if rows are keys
    sums: Operand | None = None  # of ``grad_q``


class TmaBackward(AttentionBackward):
    """Subclasses define ``products`` of the tensor cores, and ``consume``: what a consumer warp group does with a tile of rows.

    If they add to sums of ``grad_q`` in memory, rows are keys, and scores have no soft cap.
    """

    value_stages = STAGES  # of column values
    parts = 1  # of the columns of gradients: each is computed by a warp group
    together = 4  # statistics of a thread that lie side by side
    sides = (True,)  # of each kernel, whether rows are keys

    def __init__(self, tiling, target: aot.Target, layout: str) -> None:
        super().__init__(tiling, target, layout)
        self.barriers = Barriers(CONSUMERS)

    def barriers_of_all(self) -> NamedBarrier:
        """Where all consumer warp groups wait for each other."""
        return NamedBarrier(barrier_id=self.barriers.free, num_threads=CONSUMERS * WARP_GROUP)

    @cute.jit
    def __call__(
        self, grad_out: cute.Tensor, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: cute.Tensor,
        grad_q: cute.Tensor, grad_k: cute.Tensor, grad_v: cute.Tensor, grad_sinks: cute.Tensor, scale: Float32, left: Int32,
        right: Int32, q_starts, k_starts, soft_cap: Float32, sinks, deterministic: Boolean, scratch: cute.Tensor, stream: CUstream,
    ):  # fmt: skip
        self.dtype = q.element_type
        sums, skipped, in_turn = self.sums_in(scratch, q), 0, None
        if cutlass.const_expr(sums is not None):
            skipped, in_turn, soft_cap = cute.size(sums), deterministic, Float32(0)
        scoring, statistics = self.scoring(scale, soft_cap), self.statistics(scratch, skipped, q, sums is not None)
        if self.any_pair(q, k, grad_q, grad_k, grad_v, grad_sinks, stream):
            self.launch_rows(grad_out, out, lse, statistics, sums, sinks, grad_sinks, stream)
            for by_keys in self.sides:
                starts = (q_starts, k_starts)
                problem, count = self.problem(q, k, starts, left, right, by_keys, self.tiling.rows, in_turn)
                rows, columns = ((k, v), (q, grad_out)) if by_keys else ((q, grad_out), (k, v))
                gradients = (grad_k, grad_v) if by_keys else (grad_q,)
                operands = Operands(*self.load_operands(rows, columns), *self.store_operands(gradients))
                operands = operands._replace(sums=self.sum_operand(sums))
                self.kernel(self.products(), operands, scoring, scale, statistics, problem, by_keys, in_turn).launch(
                    grid=[count, 1, 1], block=[THREADS, 1, 1], min_blocks_per_mp=1, use_pdl=self.early, stream=stream
                )
            self.finish(sums, grad_q, scale, stream)

    # What is the same if nothing is added to sums in memory.

    def sums_in(self, scratch: cute.Tensor, q: cute.Tensor) -> cute.Tensor | None:
        """The sums of ``grad_q`` in the workspace."""

    def sum_operand(self, sums: cute.Tensor | None) -> Operand | None:
        """The same, for TMA."""

    def finish(self, sums: cute.Tensor | None, grad_q: cute.Tensor, scale: Float32, stream) -> None:
        """Make ``grad_q`` of the sums."""

    # Gradients of nothing: CUDA refuses an empty grid, and TMA empty tensors.

    @cute.jit
    def any_pair(
        self, q: cute.Tensor, k: cute.Tensor, grad_q: cute.Tensor, grad_k: cute.Tensor, grad_v: cute.Tensor,
        grad_sinks: cute.Tensor, stream,
    ):  # fmt: skip
        """Whether there are queries and keys. If there are not, the gradients of what there is become zero."""
        queries, keys = cute.size(q.shape) > 0, cute.size(k.shape) > 0
        if not (queries and keys):
            if queries:
                self.blank(grad_q, self.tiling.dim, stream)
            if keys:
                self.blank(grad_k, self.tiling.dim, stream)
                self.blank(grad_v, self.tiling.value_dim, stream)
            self.launch_sinks(None, None, None, grad_sinks, stream)
        return queries and keys

    def blank(self, gradient: cute.Tensor, width: int, stream) -> None:
        self.blank_kernel(gradient, width).launch(**self.row_launch(gradient, width, stream))

    @cute.kernel
    def blank_kernel(self, gradient: cute.Tensor, width: cutlass.Constexpr):
        row = self.row_of_thread(gradient, width)
        await_previous(self.early)
        if row.exists:
            store(cute.full(CHUNK, 0.0, Float32), gradient[(*row.place, None)], row.chunk, width // CHUNK, CHUNK)

    def launch_rows(self, grad_out, out, lse, statistics, sums, sinks, grad_sinks: cute.Tensor, stream) -> None:
        """Compute the statistics of rows and the gradients of sinks, and clear ``sums``."""
        cleared = None if sinks is not None else grad_sinks
        launch = self.row_launch(out, self.widest(sums), stream)
        self.row_kernel(grad_out, out, lse, statistics, sums, cleared).launch(**launch)
        if sinks is not None:
            self.launch_sinks(sinks, lse, statistics, grad_sinks, stream)

    # The kernel.

    @cute.kernel
    def kernel(
        self, mmas, operands, scoring: Scoring, scale: Float32, statistics: Statistics, problem: Problem,
        by_keys: cutlass.Constexpr, in_turn,
    ):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(thread // WARP)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        self.prefetch(warp, operands)
        memory = self.allocate(SmemAllocator(), operands, by_keys)
        init_barriers()
        await_previous(self.early)
        side = Side(by_keys, problem, self.tiling.rows, self.tiling.columns, in_turn)
        if index < problem.order.count():  # which only the device knows if sequences have lengths of their own
            tile = side.tile_at(index)
            if group == 0:
                cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)  # consumers take what they need in ``consume``
                self.produce(warp, memory, operands, statistics, side, tile)
            else:
                self.consume(mmas, memory, operands, scoring, scale, statistics, side, tile, group)

    def allocate(self, allocator: SmemAllocator, operands: Operands, by_keys: bool) -> tuple:
        """Pipelines, rows with stages of columns, and what else the warps of a subclass share."""
        pipes = self.pipelines(allocator.allocate_array(cutlass.Int64, 4 * STAGES), by_keys)
        return pipes, self.shared(allocator, operands)

    @cute.jit
    def produce(self, warp, memory, operands, statistics, side, tile):
        """What each warp of the producer warp group does for a tile."""
        pipes, shared, *_ = memory
        if warp == 0:
            self.load_tiles(pipes, shared, operands, side, tile)
        if cutlass.const_expr(side.by_keys):  # noqa: SIM102 (known when the kernel is compiled)
            if warp == 1:
                self.load_statistics(pipes.columns, shared.statistics, statistics, side, tile)

    # Tiles for TMA.

    def by_token(self, x: cute.Tensor) -> cute.Tensor:
        """A tensor as tokens x columns x heads x what tells sequences apart."""
        if self.ragged:
            return tma.ragged_view(cute.make_tensor(x.iterator, cute.select(x.layout, mode=[0, 2, 1])))
        return cute.make_tensor(x.iterator, cute.select(x.layout, mode=[1, 3, 2, 0]))

    def blocks_of(self, operand: Operand, target: cute.Tensor, own: cute.Tensor) -> tuple:
        """Stages of shared memory, and the blocks of a head that go there."""
        extents = tuple(cute.size(target, mode=[i]) for i in range(2))
        return tma.partition(operand.atom, target, cute.local_tile(own, extents, (None, 0)))

    def load_operands(self, rows: tuple[cute.Tensor, ...], columns: tuple[cute.Tensor, ...]) -> list[Operand]:
        """Rows, then columns: of either, what scores are made of, and what slopes are made of."""
        tiling, loaded = self.tiling, []
        for tensors, lines, stages in (
            (rows, tiling.rows, (1, 1)),
            (columns, tiling.columns, (STAGES, self.value_stages)),
        ):
            for tensor, width, count in zip(tensors, (tiling.dim, tiling.value_dim), stages, strict=True):
                shape = (WGMMA_ROWS, lines, width)
                staged = hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, shape, self.dtype, count)
                loaded.append(tma.load_operand(self.by_token(tensor), staged, (lines, width)))
        return loaded

    def store_operands(self, gradients: tuple[cute.Tensor, ...]) -> list[Operand]:
        """The gradients by rows, 64 at a time, cut into ``parts`` along their columns."""
        tiling, stored = self.tiling, []
        for tensor, width in zip(gradients, (tiling.dim, tiling.value_dim), strict=False):
            tile = (WGMMA_ROWS, tma.line_of(width // self.parts))
            count = tiling.rows // WGMMA_ROWS * (width // tile[1])
            staged = hopper_helpers.make_smem_layout_epi(self.dtype, LayoutEnum.ROW_MAJOR, tile, count)
            stored.append(store_operand(cpasync.CopyBulkTensorTileS2GOp(), self.by_token(tensor), staged, tile))
        return stored

    @cute.jit
    def prefetch(self, warp, operands):
        """The first warp prefetches the descriptors of all operands."""
        if warp == 0:
            for operand in operands:
                if cutlass.const_expr(operand is not None):
                    cpasync.prefetch_descriptor(operand.atom)

    def shared(self, allocator: SmemAllocator, operands) -> Shared:
        layouts = [operand.staged for operand in operands[:4]]
        tensors = [allocator.allocate_tensor(self.dtype, x.outer, ALIGNMENT, swizzle=x.inner) for x in layouts]
        statistics = cute.make_layout((self.tiling.columns, 2, STAGES))
        return Shared(*tensors, allocator.allocate_tensor(Float32, statistics, 128))

    # The producers.

    def pipelines(self, barriers: cute.Pointer, by_keys: bool) -> Pipelines:
        tiling, warps = self.tiling, CONSUMERS * GROUP_WARPS
        columns, values = (tiling.columns * width * ELEMENT_BYTES for width in (tiling.dim, tiling.value_dim))
        return Pipelines(
            tma_pipeline(barriers, STAGES, columns, warps, producers=1 + WARP if by_keys else 1),
            tma_pipeline(barriers + 2 * STAGES, self.value_stages, values, warps),
        )

    @cute.jit
    def load_tiles(self, pipes, shared, operands, side, tile):
        """The producer warp: load columns, and rows with the first of them, in the order in which they are used."""
        blocks = side.blocks(tile)
        state, value_state = producer_state(STAGES), producer_state(self.value_stages)
        outer, inner = side.loops(tile, blocks)
        _, of_columns = side.origins(tile)
        for i in cutlass.range(outer, unroll=1):
            for j in cutlass.range(inner, unroll=1):
                block, number = side.columns_at(tile, blocks, i, j)
                head = side.column_head(tile, number)
                for which, (pipe, at) in enumerate(((pipes.columns, state), (pipes.column_values, value_state))):
                    if i + j == 0:
                        self.load_rows(pipe, shared, operands, side, tile, which, at)
                    own = of_head(operands[2 + which], tile.sequence, *of_columns, head)
                    own = self.blocks_of(operands[2 + which], shared[2 + which], own)
                    load_tile(pipe, operands[2 + which].atom, *own, block, at)
                state.advance()
                value_state.advance()

    def load_rows(self, pipe, shared, operands, side, tile, which: int, state) -> None:
        """Start to load rows with a stage that is empty: it is full when they are there, too."""
        target, operand = shared[which], operands[which]
        own = of_head(operand, tile.sequence, *side.origins(tile)[0], tile.head)
        to, source = self.blocks_of(operand, target, own)
        barrier = pipe.producer_get_barrier(state)
        # Bytes that are expected, without an arrival: the columns of the stage bring that, with their own bytes.
        with cute.arch.elect_one():
            cute.arch.mbarrier_expect_tx(barrier, cute.size(target) * ELEMENT_BYTES)
        cute.copy(operand.atom, source[None, tile.index], to[None, 0], tma_bar_ptr=barrier)

    @cute.jit
    def load_statistics(self, pipe, memory, statistics, side, tile):
        """The second producer warp: load the statistics of queries that are columns, beside them.

        Queries past the end weigh nothing.
        """
        blocks, state = side.blocks(tile), producer_state(STAGES)
        columns = side.tile_columns
        outer, inner = side.loops(tile, blocks)
        for i in cutlass.range(outer, unroll=1):
            for j in cutlass.range(inner, unroll=1):
                block, number = side.columns_at(tile, blocks, i, j)
                own = self.statistics_of(statistics, tile, side.column_head(tile, number))
                pipe.sync_object_empty.wait(state.index, state.phase)
                for part in cutlass.range_constexpr(-(-columns // WARP)):
                    place = part * WARP + cute.arch.lane_idx()
                    row = block * columns + place
                    inside = cutlass.min(row, tile.queries - 1)
                    lse, delta = own.lse[inside], own.delta[inside]
                    at = place_in_order(place) if cutlass.const_expr(self.together == 4) else place
                    if place < columns:
                        memory[at, 0, state.index] = lse if row < tile.queries else Float32(INFINITY)
                        memory[at, 1, state.index] = delta
                # Each lane arrives for what it has written: the stage is full with these and with the bytes of TMA.
                cute.arch.mbarrier_arrive(pipe.producer_get_barrier(state))
                state.advance()

    def statistics_of_columns(
        self, memory: cute.Tensor, which: int, stage: Int32, first: int = 0, columns: int = 0
    ) -> cute.Tensor:
        """Of a thread's columns: two neighbours of every eight, or four in a row of every 16. Of ``columns`` or all."""
        columns, together = columns or cute.size(memory, mode=[0]), self.together
        own = cute.domain_offset((first,), memory[None, which, stage])
        held = cute.make_rmem_tensor((together, columns // 4 // together), Float32)
        for n in range(columns // 4 // together):
            cute.autovec_copy(cute.local_tile(own, (together,), (4 * n + cute.arch.lane_idx() % 4,)), held[None, n])
        return cute.make_tensor(held.iterator, cute.make_layout(columns // 4))

    def rounded(self, mma: cute.TiledMma, values: cute.Tensor) -> cute.Tensor:
        """Accumulators of 64 rows as a left operand of a product."""
        columns = cute.size(values) * WARP_GROUP // WGMMA_ROWS
        operand = cute.make_rmem_tensor(mma.partition_shape_A((WGMMA_ROWS, columns)), self.dtype)
        round_to(operand, values)
        return operand

    # The epilogue.

    def store_all(self, place: Place, stored: Sequence[tuple], side: Side, tile: Tile) -> None:
        """Store sums by products, through memory that the other group needs no more when all have come here."""
        self.barriers_of_all().arrive_and_wait()
        for one in stored:
            self.store_rows(place, *one, side, tile)
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive stores that read it

    @cute.jit
    def store_rows(self, place, sums, mma, memory, operand, side, tile):
        """The epilogue of one gradient, through ``memory``, which was that of the rows."""
        shared = cute.make_tensor(memory.iterator, operand.staged.outer)
        head = (tile.sequence, *side.origins(tile)[0], tile.head)
        store_rows(place, self.barriers, sums, mma, shared, operand, head, tile.index)


def thread_of_group() -> Int32:
    return cute.arch.thread_idx()[0] % WARP_GROUP


def place_in_order(column):
    """Where a column of accumulators is if those of a thread, of every 16, lie side by side."""
    return column // 16 * 16 + column % 8 // 2 * 4 + column // 8 % 2 * 2 + column % 2


def load_tile(pipe, atom: cute.CopyAtom, target: cute.Tensor, source: cute.Tensor, block: Int32, state) -> None:
    """Wait until a stage is empty, then start to fill it."""
    pipe.producer_acquire(state)
    barrier = pipe.producer_get_barrier(state)
    cute.copy(atom, source[None, block], target[None, state.index], tma_bar_ptr=barrier)


def turned(x: cute.Tensor) -> cute.Tensor:
    """The same memory with the first two modes exchanged."""
    return cute.make_tensor(x.iterator, cute.select(x.layout, mode=[1, 0, *range(2, cute.rank(x))]))


def store_operand(operation, tensor: cute.Tensor, staged: cute.ComposedLayout, tile: tuple[int, int]) -> Operand:
    """A tensor that TMA stores to, or adds to, a tile at a time."""
    one = cute.select(staged, mode=[0, 1])
    return Operand(*cpasync.make_tiled_tma_atom(operation, tensor, one, tile), staged)
