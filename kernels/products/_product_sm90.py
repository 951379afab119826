"""Scaled and grouped products for sm_90a: TMA brings tiles into shared memory, wgmma multiplies them from there.

A block has one warp group that only loads and two that multiply. Blocks are persistent: each takes tiles until none is
left. The multiplying warp groups share each tile: one has the upper and one the lower half, or, if there are 64 rows, one the
left and one the right half. Or they take turns at tiles, so that one multiplies while the other writes.
If there are fewer tiles than multiprocessors, a cluster can cut the sum over ``k``: each of its blocks sums a part of the
same tile, then some of them add up all parts, always in the same order, and write them.

The tensor cores cut each addend of a sum of f8 products off at 2**-13 of the largest one, so long sums become inexact. If
``promoted``, sums of 128 products are added up in f32 registers instead, while the other warp group multiplies. Scales of
blocks are applied at the same time. A second loading warp brings them into shared memory, step by step, as the first one
brings tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._buffers import stores_in_flight
from .._cluster import CHUNK, add_parts, places_of_parts
from .._device import await_previous, launched_early, policy_of_weights
from .._versions import SmemAllocator, skip_stages
from ._order import BLOCK, Order, Scaling, place_of

WARP = cute.arch.WARP_SIZE
WARP_GROUP = 128  # threads
MULTIPLYING = 2  # warp groups
THREADS = (1 + MULTIPLYING) * WARP_GROUP
WGMMA_ROWS = 64  # rows of the tile that one instruction computes
WARP_ROWS = 16  # of these, the rows whose sums are in one warp
STEP_BYTES = 128  # of each row that one step along k takes: a line of swizzled shared memory
SLICES = (128, 64, 32)  # bytes of a row that one swizzled TMA store can write
LEAST_COLUMNS = 16  # of a warp group
LOADING_REGISTERS, MULTIPLYING_REGISTERS = 24, 240
MOST_SUMS = 192  # registers of a thread
BARRIER_BYTES = 8
BYTES_AHEAD = 65536  # of the weights, that a block fetches early
ALIGNMENT = 1024  # of swizzled tiles in shared memory
SUB = 64  # rows or columns of a tile that share a scale, wherever the tile starts
FIRST_FREE = 5  # the first of the named barriers that say which scales are no longer read
NAMED_BARRIERS = 16


@dataclass(frozen=True)
class Tiling:
    """A block computes ``m`` x ``n`` of the output, 128 bytes of each row at a time."""

    m: int
    n: int
    cluster: int = 1  # blocks, one above the other, that share a tile of ``b``
    shared: bool = True  # whether both warp groups share each tile, instead of taking turns
    beside: bool = False  # whether the halves of a shared tile are side by side; those of 64 rows always are
    split: int = 1  # blocks that each sum a part of ``k`` for the same tile
    buffers: int = 2  # slices of the output in shared memory
    group: int = 4  # rows of clusters that are computed together
    swapped: bool = False  # whether rows of the tile are rows of ``b``: ``m`` and ``n`` are then swapped, too

    out_bytes = 2  # of an element of the output

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster * self.split

    @property
    def least_k(self) -> int:
        """The least ``k``, in bytes, of which each block of a cluster has a part."""
        return (self.split - 1) * STEP_BYTES + 1

    @property
    def label(self) -> str:
        rows, columns = (self.n, self.m) if self.swapped else (self.m, self.n)
        marks = [name for name, has in (("swapped", self.swapped), ("shared", self.shared)) if has]
        named = (("cluster", self.cluster), ("split", self.split))
        return "_".join((f"tile{rows}x{columns}", *marks, *(f"{name}{blocks}" for name, blocks in named if blocks > 1)))

    @property
    def stage_bytes(self) -> int:
        return (self.m + self.n) * STEP_BYTES

    @property
    def sides(self) -> int:
        """Warp groups that are side by side at a tile."""
        return MULTIPLYING if self.shared and (self.beside or self.m == WGMMA_ROWS) else 1

    @property
    def steps_ahead(self) -> int:
        """Steps of which a block fetches its share of the weights early."""
        return max(1, BYTES_AHEAD // ((self.m if self.swapped else self.n // self.cluster) * STEP_BYTES))

    @property
    def own_rows(self) -> int:
        """Rows of a tile that one warp group computes."""
        return self.m // MULTIPLYING if self.shared and self.sides == 1 else self.m

    @property
    def own_columns(self) -> int:
        """Columns of a tile that one warp group computes."""
        return self.n // self.sides

    @property
    def owners(self) -> int:
        """Blocks of a cluster that each write some columns of the tile whose sum they have cut."""
        return max(blocks for blocks in range(1, self.split + 1) if self.own_columns % (LEAST_COLUMNS * blocks) == 0)

    @property
    def written_columns(self) -> int:
        """Columns of a tile that one warp group writes."""
        return self.own_columns // self.owners

    @property
    def parts(self) -> int:
        """Blocks of rows that a warp group computes, each with one instruction."""
        return self.own_rows // WGMMA_ROWS

    @property
    def sums(self) -> int:
        """Registers of a thread for the sums of a tile."""
        return self.own_rows * self.own_columns // WARP_GROUP

    @property
    def sub(self) -> int:
        """Columns of a warp group that share a scale of a block."""
        return math.gcd(self.own_columns, SUB)

    @property
    def fine(self) -> int:
        """Scales of ``a`` for one step of a tile."""
        return self.n if self.swapped else self.m

    @property
    def coarse(self) -> int:
        """Scales of ``b`` for one step of a tile."""
        return self.m // WGMMA_ROWS if self.swapped else self.n // self.sub

    @property
    def by_column(self) -> bool:
        """Whether the factors of a step are too many for registers: each column has one."""
        return self.swapped and self.own_columns > 128

    @property
    def step_scales(self) -> int:
        """Scales in shared memory for one step: those of ``a``, those of ``b``, and what aligns the next."""
        return -(-(self.fine + self.coarse) // 4) * 4

    @property
    def slice_columns(self) -> int:
        return next(width // self.out_bytes for width in SLICES if self.written_columns * self.out_bytes % width == 0)

    @property
    def slices(self) -> int:
        return self.written_columns // self.slice_columns

    @property
    def epilogue_stages(self) -> int:
        return min(self.buffers, self.parts * self.slices)

    @property
    def epilogue_bytes(self) -> int:
        return MULTIPLYING * WGMMA_ROWS * self.slice_columns * self.epilogue_stages * self.out_bytes

    @property
    def part_sums(self) -> int:
        """Sums that a block which writes some columns of a tile gets from all blocks that have cut its sum."""
        return self.split * MULTIPLYING * WARP_GROUP * self.sums // self.owners if self.split > 1 else 0

    def stages(self, target: aot.Target, scaling: Scaling) -> int:
        """Tiles of ``a`` and ``b`` that fit into shared memory beside the epilogue's, and beside parts of sums."""
        beside = self.epilogue_bytes + self.part_sums * Float32.width // 8
        if scaling.kind != "blocks":
            beside += MULTIPLYING * self.written_columns * Float32.width // 8 + ALIGNMENT
            return (target.shared_memory - beside) // (self.stage_bytes + 2 * BARRIER_BYTES)
        # Barriers and scales come first, then tiles, which are aligned.
        first = 2 * BARRIER_BYTES + self.step_scales * Float32.width // 8
        fits = [
            stages
            for stages in range(1, NAMED_BARRIERS - FIRST_FREE + 1)
            if -(-stages * first // ALIGNMENT) * ALIGNMENT + stages * self.stage_bytes + beside <= target.shared_memory
        ]
        return max(fits, default=0)

    def validate(self, target: aot.Target, scaling: Scaling) -> None:
        if self.own_rows % WGMMA_ROWS or self.own_columns % LEAST_COLUMNS or self.own_columns > 256:
            raise aot.DeclarationError(
                f"{self.own_rows} x {self.own_columns} of a tile for one warp group",
                hint=f"multiples of {WGMMA_ROWS} rows and of {LEAST_COLUMNS} columns, up to 256 columns",
            )
        if scaling.kind == "blocks" and (not self.shared or (self.swapped and self.parts > 1)):
            raise aot.DeclarationError(
                f"a tile of {self.m} x {self.n} with scales of blocks",
                hint="warp groups share such a tile; if `a` and `b` are swapped, each of them has 64 rows",
            )
        registers = self.sums + (self.sums // self.parts if scaling.promoted else 0)
        if registers > MOST_SUMS:
            raise aot.DeclarationError(f"{registers} registers of a thread for sums; there is room for {MOST_SUMS}")
        if not 1 <= self.blocks <= target.max_cluster:
            raise aot.DeclarationError(f"clusters of {self.blocks}; {target.arch} takes up to {target.max_cluster}")
        if self.split > 1 and (self.cluster > 1 or not self.shared):
            raise aot.DeclarationError(
                f"{self.split} blocks that sum parts of a tile, in clusters of {self.blocks}",
                hint="warp groups, and no other blocks, share the tile of such blocks",
            )
        if self.stages(target, scaling) < 2:
            raise aot.DeclarationError(
                f"two stages of {self.stage_bytes} bytes and {self.epilogue_bytes} for the epilogue; "
                f"a block of {target.arch} has {target.shared_memory}"
            )


class Product(Order):
    """``out = (a @ b.T) * scales``; if ``grouped``, rows of ``a`` belong to experts, each with a ``b`` of its own."""

    threads, loading_registers = THREADS, LOADING_REGISTERS
    summed_steps = 1  # steps along k that the tensor cores sum before the sum is added up in f32 registers

    def __init__(self, tiling: Tiling, target: aot.Target, scaling: Scaling, grouped: bool = False) -> None:
        super().__init__(tiling, tiling.m * tiling.cluster, scaling, grouped)
        assert not (grouped and tiling.split > 1)
        self.blocks = scaling.kind == "blocks"
        self.stages = self.brought_stages = tiling.stages(target, scaling)
        self.early = launched_early(target)

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        out: cute.Tensor,
        a_scale,
        b_scale,
        offsets,
        clusters: Int32,
        stream: CUstream,
    ):
        tiling = self.tiling
        if cutlass.const_expr(tiling.swapped):
            a, b, a_scale, b_scale = b, a, b_scale, a_scale
            out = cute.make_tensor(out.iterator, cute.select(out.layout, mode=[1, 0]))
        self.dtypes = a.element_type, b.element_type
        self.out_dtype = out.element_type
        self.step = STEP_BYTES * 8 // a.element_type.width  # elements along k
        if cutlass.const_expr(cute.rank(b) == 3):
            b = cute.make_tensor(b.iterator, cute.select(b.layout, mode=[1, 2, 0]))
        else:
            b = cute.make_tensor(b.iterator, cute.append(b.layout, cute.make_layout(1, stride=0)))
        # Two of the same kind: one begins new sums, the other adds to them. The last is for what is written of the sums.
        beginning, adding, writing = [
            self.instruction(columns) for columns in (tiling.own_columns, tiling.own_columns, tiling.written_columns)
        ]
        tile = (tiling.m, tiling.n, self.step)
        rows = LayoutEnum.ROW_MAJOR
        a_staged = hopper_helpers.make_smem_layout_a(rows, tile, self.dtypes[0], self.stages)
        b_staged = hopper_helpers.make_smem_layout_b(rows, tile, self.dtypes[1], self.stages)
        load_a, a_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), a, cute.select(a_staged, mode=[0, 1]), (tiling.m, self.step)
        )
        load_b, b_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SMulticastOp() if tiling.cluster > 1 else cpasync.CopyBulkTensorTileG2SOp(),
            b,
            cute.select(b_staged, mode=[0, 1]),
            (tiling.n, self.step),
            num_multicast=tiling.cluster,
        )
        store_out, out_tiles, out_staged = self.stores(out)
        m, n = out.shape
        # Of a grouped product, only the device knows how many tiles there are.
        tiles = (cute.ceil_div(m, tiling.m * tiling.cluster), cute.ceil_div(n, tiling.n))
        if tiles[0] * tiles[1] > 0:  # CUDA refuses an empty grid
            count = tiles[0] * tiles[1]
            if cutlass.const_expr(self.grouped):
                count = (tiles[0] + cute.size(offsets)) * tiles[1]
            # Clusters that cut a sum compute one tile each, the others as many as it takes.
            running = count if cutlass.const_expr(tiling.split > 1) else cutlass.min(count, clusters)
            self.kernel(
                beginning, adding, writing, load_a, a_tiles, load_b, b_tiles, store_out, out_tiles, out, a_scale, b_scale, offsets,
                a_staged, b_staged, out_staged, tiles,
            ).launch(
                grid=[running * tiling.blocks, 1, 1],
                block=[self.threads, 1, 1],
                cluster=[tiling.blocks, 1, 1],
                min_blocks_per_mp=1,
                use_pdl=self.early,
                stream=stream,
            )  # fmt: skip

    def instruction(self, columns: int) -> cute.TiledMma:
        """What multiplies 64 rows with so many columns."""
        major = OperandMajorMode.K
        return hopper_helpers.make_trivial_tiled_mma(
            *self.dtypes, major, major, Float32, (1, 1, 1), (WGMMA_ROWS, columns)
        )

    def stores(self, out: cute.Tensor):
        """How a slice of the output is stored, where to, and where it is in shared memory."""
        tiling = self.tiling
        tile = (WGMMA_ROWS, tiling.slice_columns)
        staged = hopper_helpers.make_smem_layout_epi(
            self.out_dtype,
            LayoutEnum.COL_MAJOR if tiling.swapped else LayoutEnum.ROW_MAJOR,
            tile,
            tiling.epilogue_stages * MULTIPLYING,
        )
        store = cpasync.CopyBulkTensorTileS2GOp()
        return *cpasync.make_tiled_tma_atom(store, out, cute.select(staged, mode=[0, 1]), tile), staged

    @cute.kernel
    def kernel(
        self,
        beginning: cute.TiledMma,
        adding: cute.TiledMma,
        writing: cute.TiledMma,
        load_a: cute.CopyAtom,
        a: cute.Tensor,
        load_b: cute.CopyAtom,
        b: cute.Tensor,
        store_out,
        out_tiles,
        out: cute.Tensor,
        a_scale,
        b_scale,
        offsets,
        a_staged: cute.ComposedLayout,
        b_staged: cute.ComposedLayout,
        out_staged,
        tiles: tuple[Int32, Int32],
    ):
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // WARP)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:
            for atom in (load_a, load_b, *([] if store_out is None else [store_out])):
                cpasync.prefetch_descriptor(atom)

        shared = SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, 2 * self.stages)
        shared_scale = None
        if cutlass.const_expr(self.blocks):
            shared_scale = shared.allocate_tensor(Float32, cute.make_layout((tiling.step_scales, self.stages)), 16)
        shared_a, shared_b, shared_out = [
            None if staged is None else shared.allocate_tensor(dtype, staged.outer, ALIGNMENT, swizzle=staged.inner)
            for dtype, staged in zip((*self.dtypes, self.out_dtype), (a_staged, b_staged, out_staged), strict=True)
        ]
        if cutlass.const_expr(not self.blocks):
            shared_scale = shared.allocate_tensor(Float32, cute.make_layout((tiling.written_columns, MULTIPLYING)), 16)
        shared_parts = None
        if cutlass.const_expr(tiling.split > 1):
            shared_parts = shared.allocate_tensor(Float32, cute.make_layout(tiling.part_sums), 16)
        loaded = pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=self.stages,
            # Each lane of the warp that brings scales arrives for those it has brought.
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1 + WARP if self.blocks else 1),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, tiling.cluster * self.reading_warps),
            tx_count=tiling.stage_bytes,
            cta_layout_vmnk=cute.make_layout((1, tiling.cluster, 1, 1)),
            defer_sync=True,
        )
        brought = self.brought(shared, loaded, shared_a, shared_b)
        pipeline.pipeline_init_arrive(cluster_shape_mn=(tiling.blocks, 1), is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=(tiling.blocks, 1))

        if cutlass.const_expr(self.early and not self.grouped):  # noqa: SIM102  decided when compiling
            if warp == 0:
                self.fetch_ahead(load_a, a, shared_a, load_b, b, shared_b, tiles)
        await_previous(self.early)
        count = self.count_tiles(offsets, tiles)
        if group == 0:
            cute.arch.setmaxregister_decrease(self.loading_registers)
            if warp == 0:
                self.load_tiles(loaded, load_a, a, shared_a, load_b, b, shared_b, offsets, tiles, count)
            if cutlass.const_expr(self.blocks):  # noqa: SIM102  decided when compiling
                if warp == 1:
                    self.load_scales(loaded, a_scale, b_scale, shared_scale, tiles, count, cute.size(a, mode=[1]))
            self.beside_loading(warp, (loaded, shared_a, shared_b), brought, count, cute.size(a, mode=[1]))
        else:
            self.work(
                (loaded, shared_a, shared_b), brought, beginning, adding, writing, shared_out, shared_scale, shared_parts,
                store_out, out_tiles, out, a_scale, b_scale, offsets, tiles, count, cute.size(a, mode=[1]), group - 1,
            )  # fmt: skip

    @property
    def reading_warps(self) -> int:
        """Warps that read each tile that was loaded."""
        return (MULTIPLYING if self.tiling.shared else 1) * (WARP_GROUP // WARP)

    def brought(self, shared, loaded, shared_a, shared_b):
        """The tiles that are multiplied, and the pipeline that they come through: here, as they were loaded."""
        return loaded, shared_a, shared_b

    def beside_loading(self, warp, loaded, brought, count, depth):
        """What the other warps do of the warp group that loads: here, nothing else."""

    @cute.jit
    def work(self, loaded, brought, beginning, adding, writing, shared_out, shared_scale, shared_parts, *others):
        """What the warp groups do that do not load."""
        cute.arch.setmaxregister_increase(MULTIPLYING_REGISTERS)
        self.multiply_tiles(*brought, beginning, adding, writing, shared_out, shared_scale, shared_parts, *others)

    # The order of work.

    def place(self):
        """Of this block: its first tile, the distance to the next one, its row in the cluster, its part of the sum."""
        tiling = self.tiling
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        none = Int32(0)
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) if tiling.blocks > 1 else none
        row, part = rank if tiling.cluster > 1 else none, rank if tiling.split > 1 else none
        return block // tiling.blocks, blocks // tiling.blocks, row, part

    def range_of(self, part, depth):
        """The steps along ``k`` of which this block computes the sum; beyond the last one, TMA loads zeros."""
        at_once, split = self.summed_steps, self.tiling.split
        sums = cute.ceil_div(depth, self.step * at_once)
        return sums * part // split * at_once, sums * (part + 1) // split * at_once

    # Loading.

    def loads_of_b(self, load_b, b, shared_b, row):
        """This block's share of what is loaded of ``b``: where to, by stage, and where from, by tile, step and expert."""
        b = cute.local_tile(b, (self.tiling.n, self.step), (None, None, None))
        return cpasync.tma_partition(
            load_b,
            row,
            cute.make_layout(self.tiling.cluster),
            cute.group_modes(shared_b, 0, 2),
            cute.group_modes(b, 0, 2),
        )

    def loads_of_a(self, load_a, a, shared_a, top):
        """What is loaded of the rows of ``a`` from ``top`` on: where to, by stage, and where from, by step."""
        source = cute.local_tile(cute.domain_offset((top, 0), a), (self.tiling.m, self.step), (0, None))
        return cpasync.tma_partition(
            load_a, 0, cute.make_layout(1), cute.group_modes(shared_a, 0, 2), cute.group_modes(source, 0, 2)
        )

    @cute.jit
    def fetch_ahead(self, load_a, a, shared_a, load_b, b, shared_b, tiles):
        """Bring what this block loads first of the weights into the L2 cache while the previous kernel still runs.

        Nothing is read yet, and what the previous kernel writes goes to the same cache: it does not matter whether this
        comes before or after.
        """
        tiling = self.tiling
        begin, _, row, part = self.place()
        first_step, end_step = self.range_of(part, cute.size(b, mode=[1]))
        m, n = place_of(begin, tiles[0], tiles[1], tiling.group)
        if cutlass.const_expr(tiling.swapped):
            load, (_, source) = load_a, self.loads_of_a(load_a, a, shared_a, (m * tiling.cluster + row) * tiling.m)
        else:
            load, (_, from_b) = load_b, self.loads_of_b(load_b, b, shared_b, row)
            source = from_b[None, n, None, 0]
        for k in cutlass.range(first_step, cutlass.min(end_step, first_step + tiling.steps_ahead)):
            cute.prefetch(load, source[None, k])

    @cute.jit
    def load_tiles(self, loaded, load_a, a, shared_a, load_b, b, shared_b, offsets, tiles, count):
        """One warp: bring the tiles of ``a`` and ``b``, in the order in which they are multiplied."""
        tiling = self.tiling
        begin, step, row, part = self.place()
        everyone = Int32((1 << tiling.cluster) - 1).to(cutlass.Int16) if tiling.cluster > 1 else None
        to_b, from_b = self.loads_of_b(load_b, b, shared_b, row)
        first_step, end_step = self.range_of(part, cute.size(a, mode=[1]))
        # The weights of an expert are read once if its rows fit into a tile. In the mean, they do if there are few tiles.
        experts = cute.size(offsets) if cutlass.const_expr(self.grouped) else 1
        of_weights = policy_of_weights(tiles[1] == 1 if tiling.swapped else tiles[0] <= experts)
        of_a, of_b = (of_weights, None) if tiling.swapped else (None, of_weights)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
        first, before = Int32(0), Int32(0)
        for index in cutlass.range(begin, count, step):
            expert, top, _, n, first, before = self.find(offsets, tiles, index, first, before, row)
            to_a, from_a = self.loads_of_a(load_a, a, shared_a, top)
            b_row = from_b[None, n, None, expert]
            for k in cutlass.range(first_step, end_step):
                loaded.producer_acquire(state)
                barrier = loaded.producer_get_barrier(state)
                to_stage = to_a[None, state.index], to_b[None, state.index]
                cute.copy(load_a, from_a[None, k], to_stage[0], tma_bar_ptr=barrier, cache_policy=of_a)
                cute.copy(
                    load_b, b_row[None, k], to_stage[1], tma_bar_ptr=barrier, mcast_mask=everyone, cache_policy=of_b
                )
                state.advance()
        loaded.producer_tail(state)

    @cute.jit
    def load_scales(self, loaded, a_scale, b_scale, shared_scale, tiles, count, depth):
        """Another warp: bring the scales of blocks, in the same order."""
        tiling = self.tiling
        begin, step, row, part = self.place()
        lane = cute.arch.lane_idx()
        first_step, end_step = self.range_of(part, depth)
        fine, coarse, apart = (b_scale, a_scale, WGMMA_ROWS) if tiling.swapped else (a_scale, b_scale, tiling.sub)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
        first, before = Int32(0), Int32(0)
        for index in cutlass.range(begin, count, step):
            _, top, _, n, first, before = self.find(None, tiles, index, first, before, row)
            fine_row, coarse_row = (n * tiling.n, top) if tiling.swapped else (top, n * tiling.n)
            for k in cutlass.range(first_step, end_step, unroll=1):
                if state.count >= self.stages:
                    self.free(state.index).arrive_and_wait()
                place = cute.domain_offset((0, state.index), shared_scale)
                for i in cutlass.range_constexpr(0, tiling.fine, WARP):
                    if i + lane < tiling.fine:
                        self.bring_scale(fine, fine_row + i + lane, k, place, i + lane)
                if lane < tiling.coarse:
                    self.bring_scale(coarse, (coarse_row + lane * apart) // BLOCK, k, place, tiling.fine + lane)
                cute.arch.cp_async_mbarrier_arrive_noinc(loaded.producer_get_barrier(state))
                state.advance()
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)

    @cute.jit
    def bring_scale(self, source, row, k, place, index):
        """Copy one scale. Rows that the matrix does not have get those of its last one."""
        row = cutlass.min(row, cute.size(source, mode=[0]) - 1)
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=Float32.width)
        one = cute.make_layout(1)
        own = cute.make_tensor(cute.domain_offset((row, k), source).iterator, one)
        cute.copy(atom, own, cute.make_tensor(cute.domain_offset((index, 0), place).iterator, one))

    def free(self, stage) -> pipeline.NamedBarrier:
        """The barrier at which a warp waits until the scales of a stage are no longer read."""
        return pipeline.NamedBarrier(barrier_id=FIRST_FREE + stage, num_threads=MULTIPLYING * WARP_GROUP + WARP)

    # Multiplying.

    @cute.jit
    def multiply_tiles(
        self, loaded, shared_a, shared_b, beginning, adding, writing, shared_out, shared_scale, shared_parts, store_out,
        out_tiles, out, a_scale, b_scale, offsets, tiles, count, depth, group,
    ):  # fmt: skip
        """A warp group: multiply every other tile of the block, or its half of every tile, and write it."""
        tiling, promoting = self.tiling, self.scaling.promoted
        begin, step, row, part = self.place()
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        half = group if cutlass.const_expr(tiling.own_rows < tiling.m) else Int32(0)
        side = group if cutlass.const_expr(tiling.sides > 1) else Int32(0)
        # What one product multiplies: if sums are promoted, one block of rows after the other.
        rows = WGMMA_ROWS if cutlass.const_expr(promoting) else tiling.own_rows
        operands = self.operands_of(beginning, shared_a, shared_b, rows, half, side)
        sums = cute.make_rmem_tensor(beginning.partition_shape_C((rows, tiling.own_columns)), Float32)
        results = sums
        if cutlass.const_expr(promoting):
            results = cute.make_rmem_tensor(beginning.partition_shape_C((tiling.own_rows, tiling.own_columns)), Float32)
        beginning.set(warpgroup.Field.ACCUMULATE, False)
        adding.set(warpgroup.Field.ACCUMULATE, True)
        first_step, end_step = self.range_of(part, depth)
        steps = end_step - first_step
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.brought_stages)
        freed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.brought_stages)
        if cutlass.const_expr(not tiling.shared):
            if group == 1:
                self.turn(0).arrive()  # which is the first
            read, freed = skip_stages(read, steps * group), skip_stages(freed, steps * group)
            begin, step = begin + group * step, MULTIPLYING * step
        first, before = Int32(0), Int32(0)
        for index in cutlass.range(begin, count, step):
            expert, top, limit, n, first, before = self.find(offsets, tiles, index, first, before, row)
            top += half * tiling.own_rows
            n = n * tiling.sides + side  # in units of its own columns
            written = n * tiling.owners + part  # in units of the columns that it writes
            own_scale = self.fetch_scales(a_scale, b_scale, shared_scale, expert, top, written, thread, group)
            if cutlass.const_expr(not tiling.shared):
                self.turn(group).arrive_and_wait()
            if cutlass.const_expr(promoting):
                scales = shared_scale, half, side, thread
                read = self.multiply_promoted(loaded, beginning, adding, sums, results, operands, steps, read, scales)
                if cutlass.const_expr(not tiling.shared):
                    self.turn(1 - group).arrive()
            else:
                read, freed = self.multiply(loaded, beginning, adding, results, operands[0], steps, read, freed, group)
            if cutlass.const_expr(not tiling.shared):
                # The next loaded tile belongs to the other warp group.
                read, freed = skip_stages(read, steps), skip_stages(freed, steps)
            own = results
            if cutlass.const_expr(tiling.split > 1):
                own = self.add_parts(results, shared_parts, part, thread, group, cute.size(out, mode=[0]) - top)
            if part < tiling.owners:
                self.write(
                    writing, own, own_scale, shared_scale, shared_out, store_out, out_tiles, out, top, limit, written,
                    thread, group,
                )  # fmt: skip
        # Shared memory must outlive the stores that read it.
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def operands_of(self, mma, shared_a, shared_b, rows: cutlass.Constexpr, half, side):
        """What a warp group multiplies, by blocks of ``rows`` rows of its own."""
        tiling, whole = self.tiling, mma.get_slice(0)
        blocks = tiling.own_rows // rows
        own_b = cute.local_tile(shared_b, (tiling.own_columns, self.step), (side, 0, None))
        b = mma.make_fragment_B(whole.partition_B(own_b))
        operands = []
        for i in cutlass.range_constexpr(blocks):
            own_a = cute.local_tile(shared_a, (rows, self.step), (half * blocks + i, 0, None))
            operands.append((mma.make_fragment_A(whole.partition_A(own_a)), b))
        return operands

    @cute.jit
    def add_parts(self, sums, shared_parts, part, thread, group, rows):
        """The complete sums of the columns that this block writes."""
        tiling = self.tiling
        own = cute.size(sums) // tiling.owners
        places = places_of_parts(own, tiling.split, WARP_GROUP, MULTIPLYING)
        storage = shared_parts.iterator + group * (own * WARP_GROUP) + thread * CHUNK
        storage = storage.align(CHUNK * Float32.width // 8)
        own_row = thread // WARP * WARP_ROWS
        return add_parts(sums, storage, places, part, tiling.owners, tiling.parts, WGMMA_ROWS, own_row, rows)

    @cute.jit
    def start_product(self, beginning, adding, sums, operands, stage, opening: cutlass.Constexpr):
        """Multiply the content of one stage."""
        a, b = operands
        warpgroup.fence()
        for i in cutlass.range_constexpr(cute.size(a, mode=[2])):
            at = (None, None, i, stage)
            if cutlass.const_expr(opening and i == 0):
                cute.gemm(beginning, sums, a[at], b[at], sums)
            else:
                cute.gemm(adding, sums, a[at], b[at], sums)
        warpgroup.commit_group()

    @cute.jit
    def multiply(self, loaded, beginning, adding, sums, operands, steps, read, freed, group):
        """The sums of one tile. While one product runs, the shared memory of the previous one is freed."""
        loaded.consumer_wait(read)
        self.start_product(beginning, adding, sums, operands, read.index, True)
        read.advance()
        for _ in cutlass.range(1, steps):
            loaded.consumer_wait(read)
            self.start_product(beginning, adding, sums, operands, read.index, False)
            read.advance()
            warpgroup.wait_group(1)
            loaded.consumer_release(freed)
            freed.advance()
        if cutlass.const_expr(not self.tiling.shared):
            # The last product has started. After it, the tensor cores belong to the other warp group.
            self.turn(1 - group).arrive()
        warpgroup.wait_group(0)
        loaded.consumer_release(freed)
        freed.advance()
        return read, freed

    @cute.jit
    def multiply_promoted(self, loaded, beginning, adding, sums, promoted, operands, steps, read, scales):
        """The sums of one tile, in f32 registers from one addition to the next, with the scales of blocks."""
        promoted.fill(0.0)
        at_once = self.summed_steps
        # With two blocks of rows, ptxas needs fewer registers if two additions are in the loop: then it has none in memory.
        turns = 1 if self.blocks else self.tiling.parts
        for first in cutlass.range(0, steps, turns * at_once, unroll=1):
            for i in cutlass.range_constexpr(turns):
                if first + i * at_once < steps:
                    read = self.add_steps(loaded, beginning, adding, sums, promoted, operands, read, scales)
        return read

    @cute.jit
    def add_steps(self, loaded, beginning, adding, sums, promoted, operands, read, scales):
        """Multiply the content of one or more stages and add the product to the sums in f32.

        Scales of the step are read while the tensor cores multiply.
        """
        first, factors, stages, count = read.index, None, [], self.summed_steps
        for _ in cutlass.range_constexpr(count):
            stages.append(read.clone())
            read.advance()
        for part in cutlass.range_constexpr(len(operands)):
            for i in cutlass.range_constexpr(count):
                if cutlass.const_expr(part == 0):
                    loaded.consumer_wait(stages[i])
                self.start_product(beginning, adding, sums, operands[part], stages[i].index, i == 0)
            if cutlass.const_expr(self.blocks and part == 0):
                factors = self.factors_of(*scales, first)
            if cutlass.const_expr(part < len(operands) - 1):
                warpgroup.wait_group(0)
            else:
                for i in cutlass.range_constexpr(count):
                    warpgroup.wait_group(count - 1 - i)
                    loaded.consumer_release(stages[i])
            if cutlass.const_expr(self.blocks and self.tiling.by_column):
                self.promote_columns(promoted, sums, *factors)
            else:
                self.promote(promoted, sums, factors, part)
        if cutlass.const_expr(self.blocks):
            self.free(first).arrive()
        return read

    @cute.jit
    def promote(self, promoted, sums, factors, part: cutlass.Constexpr):
        """Add what the tensor cores summed for a block of rows, times its factors."""
        start = part * cute.size(sums)
        for v in cutlass.range_constexpr(cute.size(sums)):
            if cutlass.const_expr(self.blocks):
                promoted[start + v] = promoted[start + v] + sums[v] * factors[self.factor_at(v, part)]
            else:
                promoted[start + v] = promoted[start + v] + sums[v]

    @cute.jit
    def promote_columns(self, promoted, sums, scale, first, coarse):
        """The same if each column has its scale, for tiles that are too wide to have all factors in registers."""
        for i in cutlass.range_constexpr(cute.size(sums) // 4):
            factors = [scale[first + i * 8 + j] * coarse for j in range(2)]
            for v in cutlass.range_constexpr(4):
                promoted[i * 4 + v] = promoted[i * 4 + v] + sums[i * 4 + v] * factors[v % 2]

    # Scales.

    def row_in_part(self, thread):
        """The row of a block of 64 rows in which this thread has sums; it has some 8 rows below it too."""
        return thread // WARP * 16 + thread % WARP // 4

    def factor_at(self, v: int, part: int) -> int:
        """Which of a thread's factors belongs to sum ``v`` of a block of rows.

        Four sums in a row belong to rows i, i, i + 8 and i + 8, and to columns j, j + 1, j and j + 1.
        """
        if self.tiling.swapped:
            return v // 4 * 2 + v % 2
        subs = self.tiling.own_columns // self.tiling.sub
        return (2 * part + v // 2 % 2) * subs + v // 4 * 8 // self.tiling.sub

    @cute.jit
    def factors_of(self, shared_scale, half, side, thread, stage):
        """The products of scales that a thread's sums of one step are multiplied with: see ``factor_at``."""
        tiling = self.tiling
        scale = shared_scale[None, stage]
        if cutlass.const_expr(tiling.swapped):
            first, coarse = side * tiling.own_columns + thread % 4 * 2, scale[tiling.fine + half]
            if cutlass.const_expr(tiling.by_column):
                return scale, first, coarse
            factors = cute.make_rmem_tensor(tiling.own_columns // 4, Float32)
            for i in cutlass.range_constexpr(cute.size(factors)):
                factors[i] = scale[first + i // 2 * 8 + i % 2] * coarse
            return factors
        subs, rows = tiling.own_columns // tiling.sub, 2 * tiling.parts
        factors = cute.make_rmem_tensor(rows * subs, Float32)
        for i in cutlass.range_constexpr(rows):
            fine = scale[half * tiling.own_rows + i // 2 * WGMMA_ROWS + i % 2 * 8 + self.row_in_part(thread)]
            for j in cutlass.range_constexpr(subs):
                factors[i * subs + j] = fine * scale[tiling.fine + side * subs + j]
        return factors

    @cute.jit
    def fetch_scales(self, a_scale, b_scale, shared_scale, expert, top, n, thread, group):
        """The scales of this thread's rows, in registers, and those of the tile's columns, in shared memory."""
        tiling = self.tiling
        own = cute.make_rmem_tensor(2 * tiling.parts, Float32)
        if cutlass.const_expr(self.scaling.kind == "rows"):
            rows = cute.size(a_scale)
            columns = cute.size(b_scale, mode=[cute.rank(b_scale) - 1])
            for i in cutlass.range_constexpr(2 * tiling.parts):
                row = top + i // 2 * WGMMA_ROWS + i % 2 * 8 + self.row_in_part(thread)
                own[i] = a_scale[cutlass.min(row, rows - 1)]  # the last is the only one if one serves all
            # The previous tile's are no longer read.
            self.together(group).arrive_and_wait()
            for i in cutlass.range_constexpr((tiling.written_columns + WARP_GROUP - 1) // WARP_GROUP):
                place = i * WARP_GROUP + thread
                column = cutlass.min(n * tiling.written_columns + place, columns - 1)
                if place < tiling.written_columns:
                    if cutlass.const_expr(cute.rank(b_scale) == 2):
                        shared_scale[place, group] = b_scale[expert, column]
                    else:
                        shared_scale[place, group] = b_scale[column]
        return own

    # Writing.

    @cute.jit
    def write(
        self, mma, sums, own_scale, shared_scale, shared_out, store_out, out_tiles, out, top, limit, n, thread, group
    ):
        """Scale, round; then through shared memory, so that stores write whole lines."""
        tiling = self.tiling
        parts, slices, stages, width = tiling.parts, tiling.slices, tiling.epilogue_stages, tiling.slice_columns
        together = self.together(group)
        storing = cute.arch.make_warp_uniform(thread // WARP) == 0
        copy = self.copy_to_shared(mma)
        mine = copy.get_slice(thread)
        target = mine.partition_D(shared_out)
        values = cute.make_rmem_tensor(cute.shape(mine.partition_S(shared_out))[:3], Float32)
        rounded = cute.make_rmem_tensor_like(values, self.out_dtype)
        part = cute.make_layout(mma.partition_shape_C((WGMMA_ROWS, tiling.written_columns)))
        if cutlass.const_expr(self.scaling.kind == "rows"):
            together.arrive_and_wait()  # the scales of columns are there
        for p in cutlass.range_constexpr(parts):
            own = cute.make_tensor(sums.iterator + p * cute.size(part), part)
            self.finish(own, own_scale, shared_scale, p, n, thread, group)
            source = copy.retile(own)
            first = top + p * WGMMA_ROWS
            stored_to = cute.local_tile(cute.domain_offset((first, 0), out_tiles), (WGMMA_ROWS, width), (0, None))
            stored, stored_to = cpasync.tma_partition(
                store_out, 0, cute.make_layout(1), cute.group_modes(shared_out, 0, 2), cute.group_modes(stored_to, 0, 2)
            )
            for i in cutlass.range_constexpr(slices):
                index = p * slices + i
                buffer = group * stages + index % stages
                for v in cutlass.range_constexpr(cute.size(values)):
                    values[v] = source[i * cute.size(values) + v]
                rounded.store(values.load().to(self.out_dtype))
                if storing:  # the store that read this buffer last has finished
                    cute.arch.cp_async_bulk_wait_group(stores_in_flight(index, parts * slices, stages), read=True)
                together.arrive_and_wait()
                cute.copy(copy, rounded, target[None, None, None, buffer])
                cute.arch.fence_proxy("async.shared", space="cta")
                together.arrive_and_wait()
                if cutlass.const_expr(not self.grouped):
                    if storing:
                        cute.copy(store_out, stored[None, buffer], stored_to[None, n * slices + i])
                        cute.arch.cp_async_bulk_commit_group()
                else:
                    if first + WGMMA_ROWS <= limit:
                        if storing:
                            cute.copy(store_out, stored[None, buffer], stored_to[None, n * slices + i])
                            cute.arch.cp_async_bulk_commit_group()
                    else:
                        self.write_rows(shared_out, out, buffer, first, limit, n * slices + i, thread)
                        if storing:
                            cute.arch.cp_async_bulk_commit_group()  # empty: waiting counts groups

    @cute.jit
    def finish(self, sums, own_scale, shared_scale, part: cutlass.Constexpr, n, thread, group):
        """Multiply the sums of a block of rows with the scales of rows and columns."""
        if cutlass.const_expr(self.scaling.kind == "rows"):
            for v in cutlass.range_constexpr(cute.size(sums)):
                column = v // 4 * 8 + thread % 4 * 2 + v % 2
                factor = own_scale[2 * part + v // 2 % 2] * shared_scale[column, group]
                sums[v] = sums[v] * factor

    @cute.jit
    def write_rows(self, shared_out, out, buffer, first, limit, slice_index, thread):
        """The rows of a slice that belong to the expert; those below are another's."""
        width = self.tiling.slice_columns
        chunk = 16 // self.tiling.out_bytes
        across = width // chunk
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.out_dtype, num_bits_per_copy=128)
        chunks = cute.make_tiled_copy_tv(
            atom,
            cute.make_layout((WARP_GROUP // across, across), stride=(across, 1)),
            cute.make_layout((1, chunk)),
        )
        source = chunks.get_slice(thread).partition_S(shared_out[None, None, buffer])
        columns = cute.size(out, mode=[1])
        for i in cutlass.range_constexpr(WGMMA_ROWS * across // WARP_GROUP):
            row = first + i * (WARP_GROUP // across) + thread // across
            column = slice_index * width + thread % across * chunk
            values = cute.make_rmem_tensor_like(source[None, i, 0])
            cute.autovec_copy(source[None, i, 0], values)
            if row < limit and column < columns:
                line = cute.local_tile(out[row, None], (chunk,), (column // chunk,))
                line = cute.make_tensor(line.iterator.align(16), line.layout)
                cute.autovec_copy(cute.make_tensor(values.iterator, cute.make_layout(chunk)), line)

    def together(self, group) -> pipeline.NamedBarrier:
        """The barrier at which the threads of a warp group wait for each other."""
        return pipeline.NamedBarrier(barrier_id=1 + group, num_threads=WARP_GROUP)

    def turn(self, group) -> pipeline.NamedBarrier:
        """The barrier at which a warp group waits until the other one gives it its turn to multiply."""
        return pipeline.NamedBarrier(barrier_id=1 + MULTIPLYING + group, num_threads=MULTIPLYING * WARP_GROUP)

    def copy_to_shared(self, mma: cute.TiledMma) -> cute.TiledCopy:
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(self.tiling.swapped, 4), self.out_dtype)
        return cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, mma))
