"""Scaled and grouped products for sm_90a: TMA brings tiles into shared memory, wgmma multiplies them from there.

A block has one warp group that only loads and two that multiply. Blocks are persistent: each takes tiles until none is
left. The multiplying warp groups share each tile: one has the upper and one the lower half, or, if there are 64 rows, one the
left and one the right half. Or they take turns at tiles, so that one multiplies while the other writes.

The tensor cores cut each addend of a sum of f8 products off at 2**-13 of the largest one, so long sums become inexact. If
``promoted``, sums of 128 products are added up in f32 registers instead, while the other warp group multiplies. Scales of
blocks are applied at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._buffers import stores_in_flight
from .._device import await_previous, launched_early
from .._versions import SmemAllocator, skip_stages
from ._order import BLOCK, Order, Scaling

WARP = cute.arch.WARP_SIZE
WARP_GROUP = 128  # threads
MULTIPLYING = 2  # warp groups
THREADS = (1 + MULTIPLYING) * WARP_GROUP
WGMMA_ROWS = 64  # rows of the tile that one instruction computes
STEP_BYTES = 128  # of each row that one step along k takes: a line of swizzled shared memory
SLICES = (64, 32, 16)  # columns that one swizzled TMA store can write: 128, 64 or 32 bytes
LOADING_REGISTERS, MULTIPLYING_REGISTERS = 24, 240
MOST_SUMS = 192  # registers of a thread
BARRIER_BYTES = 8
ALIGNMENT = 1024  # of swizzled tiles in shared memory
SWIZZLED_ROWS = 8  # of 128 bytes: the pattern of a swizzled tile repeats after these
OUT_BYTES = 2  # of an element
SUB = 64  # columns of a tile that share a scale, wherever the tile starts
MOST_AHEAD, ROOM = 4, 24  # steps whose scales are on their way, and registers of a thread for them


@dataclass(frozen=True)
class Tiling:
    """A block computes ``m`` x ``n`` of the output, 128 bytes of each row at a time."""

    m: int
    n: int
    cluster: int = 1  # blocks, one above the other, that share a tile of ``b``
    shared: bool = True  # whether both warp groups share each tile, instead of taking turns
    buffers: int = 2  # slices of the output in shared memory
    group: int = 4  # rows of clusters that are computed together
    rows: int | None = None  # if ``a`` never has more rows than this, only these rows of its tile are loaded

    across, least_k = 1, 1  # what the model of a product's time asks for: nothing is side by side in a cluster, or cut

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster

    @property
    def label(self) -> str:
        words = (f"tile{self.loaded_rows}x{self.n}", *(["shared"] if self.shared else ()))
        return "_".join((*words, *([f"cluster{self.cluster}"] if self.cluster > 1 else ())))

    @property
    def loaded_rows(self) -> int:
        return self.rows or self.m

    @property
    def stage_bytes(self) -> int:
        return (self.m + self.n) * STEP_BYTES

    @property
    def own_rows(self) -> int:
        """Rows of a tile that one warp group computes."""
        return self.m // MULTIPLYING if self.shared and self.m > WGMMA_ROWS else self.m

    @property
    def own_columns(self) -> int:
        """Columns of a tile that one warp group computes."""
        return self.n // MULTIPLYING if self.shared and self.m == WGMMA_ROWS else self.n

    @property
    def parts(self) -> int:
        """Blocks of rows that a warp group computes, each with one instruction."""
        return self.own_rows // WGMMA_ROWS

    @property
    def sums(self) -> int:
        """Registers of a thread for the sums of a tile."""
        return self.own_rows * self.own_columns // WARP_GROUP

    @property
    def subs(self) -> int:
        """Columns of a warp group, in blocks that share a scale."""
        return max(1, self.own_columns // SUB)

    @property
    def scales(self) -> int:
        """Registers of a thread for the scales of one step: of two rows for each instruction, and of its columns."""
        return 2 * self.parts + self.subs

    @property
    def slice_columns(self) -> int:
        return next(width for width in SLICES if self.own_columns % width == 0)

    @property
    def slices(self) -> int:
        return self.own_columns // self.slice_columns

    @property
    def epilogue_stages(self) -> int:
        return min(self.buffers, self.parts * self.slices)

    @property
    def epilogue_bytes(self) -> int:
        staged = WGMMA_ROWS * self.slice_columns * self.epilogue_stages * OUT_BYTES
        return MULTIPLYING * (staged + self.own_columns * Float32.width // 8)

    def stages(self, target: aot.Target) -> int:
        """Tiles of ``a`` and ``b`` that fit into shared memory beside the epilogue's."""
        return (target.shared_memory - self.epilogue_bytes - ALIGNMENT) // (self.stage_bytes + 2 * BARRIER_BYTES)

    def validate(self, target: aot.Target, scaling: Scaling) -> None:
        if self.own_rows % WGMMA_ROWS or self.own_columns % SLICES[-1] or self.own_columns > 256:
            raise aot.DeclarationError(
                f"{self.own_rows} x {self.own_columns} of a tile for one warp group",
                hint=f"multiples of {WGMMA_ROWS} rows and of {SLICES[-1]} columns, up to 256 columns",
            )
        if scaling.kind == "blocks" and self.n % SUB and SUB % self.n:
            raise aot.DeclarationError(f"a tile of {self.n} columns with scales of blocks", hint=f"a multiple of {SUB}")
        registers = self.sums * (2 if scaling.promoted else 1)
        if registers > MOST_SUMS:
            raise aot.DeclarationError(f"{registers} registers of a thread for sums; there is room for {MOST_SUMS}")
        if self.rows is not None and (self.rows % SWIZZLED_ROWS or self.rows > self.m or self.cluster > 1):
            raise aot.DeclarationError(
                f"{self.rows} rows of {self.m}, in clusters of {self.cluster}",
                hint=f"rows is a multiple of {SWIZZLED_ROWS} up to m, without clusters",
            )
        if not 1 <= self.cluster <= target.max_cluster:
            raise aot.DeclarationError(f"clusters of {self.cluster}; {target.arch} takes up to {target.max_cluster}")
        if self.stages(target) < 2:
            raise aot.DeclarationError(
                f"two stages of {self.stage_bytes} bytes and {self.epilogue_bytes} for the epilogue; "
                f"a block of {target.arch} has {target.shared_memory}"
            )


class Product(Order):
    """``out = (a @ b.T) * scales``; if ``grouped``, rows of ``a`` belong to experts, each with a ``b`` of its own."""

    def __init__(self, tiling: Tiling, target: aot.Target, scaling: Scaling, grouped: bool = False) -> None:
        super().__init__(tiling, tiling.m * tiling.cluster, scaling, grouped)
        self.stages = tiling.stages(target)
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
        self.dtypes = a.element_type, b.element_type
        self.out_dtype = out.element_type
        self.step = STEP_BYTES * 8 // a.element_type.width  # elements along k
        if cutlass.const_expr(cute.rank(b) == 3):
            b = cute.make_tensor(b.iterator, cute.select(b.layout, mode=[1, 2, 0]))
        else:
            b = cute.make_tensor(b.iterator, cute.append(b.layout, cute.make_layout(1, stride=0)))
        # Two of the same kind: one begins new sums, the other adds to them.
        beginning, adding = [
            hopper_helpers.make_trivial_tiled_mma(
                *self.dtypes,
                OperandMajorMode.K,
                OperandMajorMode.K,
                Float32,
                (1, 1, 1),
                (WGMMA_ROWS, tiling.own_columns),
            )
            for _ in range(2)
        ]
        tile = (tiling.m, tiling.n, self.step)
        rows = LayoutEnum.ROW_MAJOR
        a_staged = hopper_helpers.make_smem_layout_a(rows, tile, self.dtypes[0], self.stages)
        b_staged = hopper_helpers.make_smem_layout_b(rows, tile, self.dtypes[1], self.stages)
        out_tile = (WGMMA_ROWS, tiling.slice_columns)
        out_staged = hopper_helpers.make_smem_layout_epi(
            self.out_dtype, rows, out_tile, tiling.epilogue_stages * MULTIPLYING
        )
        a_loaded = hopper_helpers.make_smem_layout_a(
            rows, (tiling.loaded_rows, tiling.n, self.step), self.dtypes[0], self.stages
        )
        load_a, a_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), a, cute.select(a_loaded, mode=[0, 1]), (tiling.loaded_rows, self.step)
        )
        load_b, b_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SMulticastOp() if tiling.cluster > 1 else cpasync.CopyBulkTensorTileG2SOp(),
            b,
            cute.select(b_staged, mode=[0, 1]),
            (tiling.n, self.step),
            num_multicast=tiling.cluster,
        )
        store_out, out_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), out, cute.select(out_staged, mode=[0, 1]), out_tile
        )
        m, n = out.shape
        # Of a grouped product, only the device knows how many tiles there are.
        tiles = (cute.ceil_div(m, tiling.m * tiling.cluster), cute.ceil_div(n, tiling.n))
        if tiles[0] * tiles[1] > 0:  # CUDA refuses an empty grid
            count = tiles[0] * tiles[1]
            if cutlass.const_expr(self.grouped):
                count = (tiles[0] + cute.size(offsets)) * tiles[1]
            self.kernel(
                beginning, adding, load_a, a_tiles, load_b, b_tiles, store_out, out_tiles, out, a_scale, b_scale, offsets,
                a_staged, b_staged, out_staged, tiles,
            ).launch(
                grid=[cutlass.min(count, clusters) * tiling.cluster, 1, 1],
                block=[THREADS, 1, 1],
                cluster=[tiling.cluster, 1, 1],
                min_blocks_per_mp=1,
                use_pdl=self.early,
                stream=stream,
            )  # fmt: skip

    @cute.kernel
    def kernel(
        self,
        beginning: cute.TiledMma,
        adding: cute.TiledMma,
        load_a: cute.CopyAtom,
        a: cute.Tensor,
        load_b: cute.CopyAtom,
        b: cute.Tensor,
        store_out: cute.CopyAtom,
        out_tiles: cute.Tensor,
        out: cute.Tensor,
        a_scale,
        b_scale,
        offsets,
        a_staged: cute.ComposedLayout,
        b_staged: cute.ComposedLayout,
        out_staged: cute.ComposedLayout,
        tiles: tuple[Int32, Int32],
    ):
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // WARP)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:
            for atom in (load_a, load_b, store_out):
                cpasync.prefetch_descriptor(atom)

        shared = SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, 2 * self.stages)
        shared_a, shared_b, shared_out = [
            shared.allocate_tensor(dtype, staged.outer, ALIGNMENT, swizzle=staged.inner)
            for dtype, staged in zip((*self.dtypes, self.out_dtype), (a_staged, b_staged, out_staged), strict=True)
        ]
        shared_scale = shared.allocate_tensor(Float32, cute.make_layout((tiling.own_columns, MULTIPLYING)), 16)
        groups = MULTIPLYING if tiling.shared else 1
        loaded = pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=self.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(
                pipeline.Agent.Thread, tiling.cluster * groups * (WARP_GROUP // WARP)
            ),
            tx_count=(tiling.loaded_rows + tiling.n) * STEP_BYTES,
            cta_layout_vmnk=cute.make_layout((1, tiling.cluster, 1, 1)),
            defer_sync=True,
        )
        pipeline.pipeline_init_arrive(cluster_shape_mn=(tiling.cluster, 1), is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=(tiling.cluster, 1))

        await_previous(self.early)
        count = self.count_tiles(offsets, tiles)
        if group == 0:
            cute.arch.setmaxregister_decrease(LOADING_REGISTERS)
            if warp == 0:
                self.load_tiles(loaded, load_a, a, shared_a, load_b, b, shared_b, offsets, tiles, count)
        else:
            cute.arch.setmaxregister_increase(MULTIPLYING_REGISTERS)
            self.multiply_tiles(
                loaded, beginning, adding, shared_a, shared_b, shared_out, shared_scale, store_out, out_tiles, out,
                a_scale, b_scale, offsets, tiles, count, cute.size(a, mode=[1]), group - 1,
            )  # fmt: skip

    # The order of work.

    def place(self):
        """Of this block: its first tile, the distance to the next one, its row in the cluster."""
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        cluster = self.tiling.cluster
        row = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) if cluster > 1 else Int32(0)
        return block // cluster, blocks // cluster, row

    # Loading.

    @cute.jit
    def load_tiles(self, loaded, load_a, a, shared_a, load_b, b, shared_b, offsets, tiles, count):
        """One warp: bring the tiles of ``a`` and ``b``, in the order in which they are multiplied."""
        tiling = self.tiling
        begin, step, row = self.place()
        everyone = Int32((1 << tiling.cluster) - 1).to(cutlass.Int16) if tiling.cluster > 1 else None
        # Rows that are not loaded keep old values. They only produce rows of the output that do not exist.
        a_tile = (tiling.loaded_rows, self.step)
        shared_a = cute.local_tile(shared_a, a_tile, (0, 0, None))
        b = cute.local_tile(b, (tiling.n, self.step), (None, None, None))
        to_b, from_b = cpasync.tma_partition(
            load_b, row, cute.make_layout(tiling.cluster), cute.group_modes(shared_b, 0, 2), cute.group_modes(b, 0, 2)
        )
        steps = cute.ceil_div(cute.size(a, mode=[1]), self.step)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
        first, before = Int32(0), Int32(0)
        for index in cutlass.range(begin, count, step):
            expert, top, _, n, first, before = self.find(offsets, tiles, index, first, before, row)
            own = cute.local_tile(cute.domain_offset((top, 0), a), a_tile, (0, None))
            to_a, from_a = cpasync.tma_partition(
                load_a, 0, cute.make_layout(1), cute.group_modes(shared_a, 0, 2), cute.group_modes(own, 0, 2)
            )
            b_row = from_b[None, n, None, expert]
            for k in cutlass.range(0, steps):
                loaded.producer_acquire(state)
                barrier = loaded.producer_get_barrier(state)
                cute.copy(load_a, from_a[None, k], to_a[None, state.index], tma_bar_ptr=barrier)
                cute.copy(load_b, b_row[None, k], to_b[None, state.index], tma_bar_ptr=barrier, mcast_mask=everyone)
                state.advance()
        loaded.producer_tail(state)

    # Multiplying.

    @cute.jit
    def multiply_tiles(
        self, loaded, beginning, adding, shared_a, shared_b, shared_out, shared_scale, store_out, out_tiles, out,
        a_scale, b_scale, offsets, tiles, count, depth, group,
    ):  # fmt: skip
        """A warp group: multiply every other tile of the block, or its half of every tile, and write it."""
        tiling = self.tiling
        begin, step, row = self.place()
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        whole = beginning.get_slice(0)
        half = group if cutlass.const_expr(tiling.own_rows < tiling.m) else Int32(0)
        side = group if cutlass.const_expr(tiling.own_columns < tiling.n) else Int32(0)
        own_a = cute.local_tile(shared_a, (tiling.own_rows, self.step), (half, 0, None))
        own_b = cute.local_tile(shared_b, (tiling.own_columns, self.step), (side, 0, None))
        operands = (
            beginning.make_fragment_A(whole.partition_A(own_a)),
            beginning.make_fragment_B(whole.partition_B(own_b)),
        )
        sums = cute.make_rmem_tensor(beginning.partition_shape_C((tiling.own_rows, tiling.own_columns)), Float32)
        beginning.set(warpgroup.Field.ACCUMULATE, False)
        adding.set(warpgroup.Field.ACCUMULATE, True)
        steps = cute.ceil_div(depth, self.step)
        results = cute.make_rmem_tensor_like(sums) if cutlass.const_expr(self.scaling.promoted) else sums
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
        freed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
        if cutlass.const_expr(not tiling.shared):
            if group == 1:
                self.turn(0).arrive()  # which is the first
            read, freed = skip_stages(read, steps * group), skip_stages(freed, steps * group)
            begin, step = begin + group * step, MULTIPLYING * step
        first, before = Int32(0), Int32(0)
        for index in cutlass.range(begin, count, step):
            expert, top, limit, n, first, before = self.find(offsets, tiles, index, first, before, row)
            top += half * tiling.own_rows
            n = n * (tiling.n // tiling.own_columns) + side  # in units of its own columns
            own_scale = self.fetch_scales(a_scale, b_scale, shared_scale, expert, top, n, thread, group)
            if cutlass.const_expr(not tiling.shared):
                self.turn(group).arrive_and_wait()
            if cutlass.const_expr(self.scaling.promoted):
                read = self.multiply_promoted(
                    loaded,
                    beginning,
                    adding,
                    sums,
                    results,
                    operands,
                    steps,
                    read,
                    a_scale,
                    b_scale,
                    top,
                    n,
                    thread,
                    group,
                )
            else:
                read, freed = self.multiply(loaded, beginning, adding, sums, operands, steps, read, freed, group)
            if cutlass.const_expr(not tiling.shared):
                # The next loaded tile belongs to the other warp group.
                read, freed = skip_stages(read, steps), skip_stages(freed, steps)
            self.write(
                beginning, results, own_scale, shared_scale, shared_out, store_out, out_tiles, out, top, limit, n, thread,
                group,
            )  # fmt: skip
        # Shared memory must outlive the stores that read it.
        cute.arch.cp_async_bulk_wait_group(0, read=True)

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
    def multiply_promoted(
        self, loaded, beginning, adding, sums, promoted, operands, steps, read, a_scale, b_scale, top, n, thread, group
    ):
        """The sums of one tile, in f32 registers from one step to the next, with the scales of blocks.

        Scales are on their way for some steps. Sets of registers take turns at holding them, because they would have to
        arrive before they could be moved.
        """
        promoted.fill(0.0)
        if cutlass.const_expr(self.scaling.kind == "blocks"):
            ahead = max(2, min(MOST_AHEAD, ROOM // self.tiling.scales))
            sets = [cute.make_rmem_tensor(self.tiling.scales, Float32) for _ in range(ahead)]
            for i in cutlass.range_constexpr(ahead - 1):
                self.fetch_block_scales(sets[i], a_scale, b_scale, top, n, cutlass.min(Int32(i), steps - 1), thread)
            for first in cutlass.range(0, steps, ahead):
                for i in cutlass.range_constexpr(ahead):
                    if first + i < steps:
                        later = cutlass.min(first + i + ahead - 1, steps - 1)
                        self.fetch_block_scales(sets[(i + ahead - 1) % ahead], a_scale, b_scale, top, n, later, thread)
                        read = self.add_step(loaded, beginning, adding, sums, promoted, operands, read, sets[i])
        else:
            for _ in cutlass.range(0, steps):
                read = self.add_step(loaded, beginning, adding, sums, promoted, operands, read, None)
        if cutlass.const_expr(not self.tiling.shared):
            self.turn(1 - group).arrive()
        return read

    @cute.jit
    def add_step(self, loaded, beginning, adding, sums, promoted, operands, read, scales):
        """Multiply the content of one stage and add the product to the sums in f32."""
        loaded.consumer_wait(read)
        self.start_product(beginning, adding, sums, operands, read.index, True)
        warpgroup.wait_group(0)
        loaded.consumer_release(read)
        read.advance()
        self.promote(promoted, sums, scales)
        return read

    @cute.jit
    def promote(self, promoted, sums, scales):
        """Add what the tensor cores summed, times its scale. Four sums in a row belong to rows i, i, i + 8 and i + 8."""
        tiling = self.tiling
        if cutlass.const_expr(self.scaling.kind == "blocks"):
            subs = tiling.subs
            of_sub = cute.size(sums) // (tiling.parts * subs)
            for block in cutlass.range_constexpr(tiling.parts * subs):
                column_scale = scales[2 * tiling.parts + block % subs]
                for half in cutlass.range_constexpr(2):
                    factor = scales[2 * (block // subs) + half] * column_scale
                    for i in cutlass.range_constexpr(of_sub // 2):
                        v = block * of_sub + i // 2 * 4 + half * 2 + i % 2
                        promoted[v] = promoted[v] + sums[v] * factor
        else:
            for v in cutlass.range_constexpr(cute.size(sums)):
                promoted[v] = promoted[v] + sums[v]

    # Scales.

    def row_in_part(self, thread):
        """The row of a block of 64 rows in which this thread has sums; it has some 8 rows below it too."""
        return thread // WARP * 16 + thread % WARP // 4

    @cute.jit
    def fetch_block_scales(self, scales, a_scale, b_scale, top, n, k, thread):
        """The scales of one step: those of this thread's rows, then those of the tile's columns."""
        tiling = self.tiling
        if cutlass.const_expr(self.scaling.kind == "blocks"):
            for i in cutlass.range_constexpr(2 * tiling.parts):
                row = top + i // 2 * WGMMA_ROWS + i % 2 * 8 + self.row_in_part(thread)
                scales[i] = a_scale[cutlass.min(row, cute.size(a_scale, mode=[0]) - 1), k]
            for i in cutlass.range_constexpr(tiling.subs):
                block = (n * tiling.own_columns + i * SUB) // BLOCK
                scales[2 * tiling.parts + i] = b_scale[cutlass.min(block, cute.size(b_scale, mode=[0]) - 1), k]

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
            for i in cutlass.range_constexpr((tiling.own_columns + WARP_GROUP - 1) // WARP_GROUP):
                place = i * WARP_GROUP + thread
                column = cutlass.min(n * tiling.own_columns + place, columns - 1)
                if place < tiling.own_columns:
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
        part = cute.make_layout(mma.partition_shape_C((WGMMA_ROWS, tiling.own_columns)))
        if cutlass.const_expr(self.scaling.kind == "rows"):
            together.arrive_and_wait()  # the scales of columns are there
        for p in cutlass.range_constexpr(parts):
            if cutlass.const_expr(self.scaling.kind == "rows"):
                for v in cutlass.range_constexpr(cute.size(part)):
                    column = v // 4 * 8 + thread % 4 * 2 + v % 2
                    factor = own_scale[2 * p + v // 2 % 2] * shared_scale[column, group]
                    sums[p * cute.size(part) + v] = sums[p * cute.size(part) + v] * factor
            source = copy.retile(cute.make_tensor(sums.iterator + p * cute.size(part), part))
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
    def write_rows(self, shared_out, out, buffer, first, limit, slice_index, thread):
        """The rows of a slice that belong to the expert; those below are another's."""
        width = self.tiling.slice_columns
        chunk = 16 // OUT_BYTES
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
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), self.out_dtype)
        return cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, mma))
