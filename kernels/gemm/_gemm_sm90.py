"""GEMM for sm_90a: TMA brings tiles into shared memory, wgmma multiplies them from there.

A block has one warp group that only loads and two that multiply. Blocks are persistent: each takes tiles until none is
left. Its multiplying warp groups use them in one of two ways:

* They take turns. While one writes its tile, the other multiplies the next, so the tensor cores do not wait for an
  epilogue. This needs two tiles for each block.
* They share each tile, one has the upper and one the lower half. So a tile can be twice as large, and a block that gets
  only one tile uses both warp groups.

The blocks of a cluster that are one above the other share the tile of ``b``, those that are side by side that of ``a``. If
there are fewer tiles than multiprocessors, a cluster can also cut the sum over ``k``: each of its blocks sums a part of
the same tile, then each adds up some columns of all parts, always in the same order, and writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._buffers import stores_in_flight
from .._cluster import CHUNK, add_parts, places_of_parts
from .._device import await_previous, policy_of_weights
from .._versions import SmemAllocator, skip_stages
from ._gemm import PersistentGemm, batched, check_stages, tile_at

WARP_GROUP = 128  # threads
MULTIPLYING = 2  # warp groups
THREADS = (1 + MULTIPLYING) * WARP_GROUP
WGMMA_ROWS = 64  # rows of the tile that one instruction computes
WARP_ROWS = 16  # of these, the rows whose sums are in one warp
SLICES = (64, 32, 16)  # columns that one swizzled TMA store can write: 128, 64 or 32 bytes
# If `a` and `b` are swapped, columns of a tile are rows of the output, and a store can write any multiple of 8 of them: at
# least 24, so that there are few stores, and at most 104, so that they leave room for stages.
SWAPPED_SLICES = range(24, 105, 8)
# Registers per thread: wgmma keeps its sums there; loading needs almost none.
LOADING_REGISTERS, MULTIPLYING_REGISTERS = 24, 240
MOST_SUMS = 128 * 192  # of a warp group: 192 registers per thread
DEPTHS = (64, 128)  # elements along ``k`` of one step: a line of swizzled shared memory, or two
ELEMENT_BYTES = 2
BARRIER_BYTES = 8
BYTES_AHEAD = 65536  # of the weights, that a block fetches early; on an H200, fetching more made small products slower
ALIGNMENT = 1024  # of swizzled tiles in shared memory
SWIZZLED_ROWS = 8  # of 128 bytes: the pattern of a swizzled tile repeats after these


@dataclass(frozen=True)
class Tiling:
    """A block computes ``m`` x ``n`` of the output, ``k`` at a time."""

    m: int
    n: int
    k: int = 64
    cluster: int = 1  # blocks, one above the other, that share a tile of ``b``
    across: int = 1  # blocks, side by side, that share a tile of ``a``
    split: int = 1  # blocks that each sum a part of ``k`` for the same tile
    shared: bool = False  # whether both warp groups share each tile, instead of taking turns
    rows: int | None = None  # if ``a`` never has more rows than this, only these rows of its tile are loaded
    swapped: bool = False  # whether rows of the tile are rows of ``b``: ``m`` and ``n`` are then swapped, too
    buffers: int = 2  # slices of the output in shared memory; with two, one is filled while the other is stored
    group: int = 4  # rows of clusters that are computed together: see ``tile_at``

    @property
    def label(self) -> str:
        """``tile128x256_shared_cluster2``."""
        named = (("cluster", self.cluster), ("across", self.across), ("split", self.split))
        rows, columns = (self.n, self.m) if self.swapped else (self.loaded_rows, self.n)
        marks = [name for name, has in (("swapped", self.swapped), ("shared", self.shared)) if has]
        words = (f"tile{rows}x{columns}", *(() if self.k == DEPTHS[0] else (f"k{self.k}",)), *marks)
        return "_".join((*words, *(f"{name}{blocks}" for name, blocks in named if blocks > 1)))

    @property
    def loaded_rows(self) -> int:
        return self.rows or self.m

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster * self.across * self.split

    @property
    def least_k(self) -> int:
        """The least ``k`` of which each block of a cluster has a part."""
        return (self.split - 1) * self.k + 1

    @property
    def stage_bytes(self) -> int:
        return (self.m + self.n) * self.k * ELEMENT_BYTES

    @property
    def own_rows(self) -> int:
        """Rows of a tile that one warp group computes."""
        return self.m // MULTIPLYING if self.shared else self.m

    @property
    def parts(self) -> int:
        """The number of blocks of rows that a warp group computes. One instruction computes one of them."""
        return self.own_rows // WGMMA_ROWS

    @property
    def b_tile(self) -> tuple[Any, int]:
        """The rows of ``b`` of a tile, and how many columns of them are loaded at a time."""
        return self.n, self.k

    @property
    def b_shares(self) -> int:
        """Into how many parts the tile of ``b`` is cut, of which each block that shares it loads one.

        If it cannot be cut among them, they load whole tiles in turn.
        """
        return self.cluster if self.n % (SWIZZLED_ROWS * self.cluster) == 0 else 1

    @property
    def columns(self) -> int:
        """Columns of the output that a tile has."""
        return self.n

    @property
    def own_columns(self) -> int:
        """Columns of a tile that one block writes."""
        return self.columns // self.split

    @property
    def slice_columns(self) -> int:
        """Columns that one store writes."""
        if not self.swapped:
            return next(width for width in SLICES if self.own_columns % width == 0)
        return max((width for width in SWAPPED_SLICES if self.own_columns % width == 0), default=self.own_columns)

    @property
    def biases(self) -> int:
        """Elements of the bias that one warp group adds: one for each column of the output."""
        return self.own_rows if self.swapped else self.own_columns

    @property
    def slices(self) -> int:
        """The number of slices of columns that a block writes of a tile. One store writes one of them."""
        return self.own_columns // self.slice_columns

    @property
    def epilogue_stages(self) -> int:
        """Slices that a warp group has in shared memory."""
        return min(self.buffers, self.parts * self.slices)

    @property
    def steps_ahead(self) -> int:
        """Steps of which a block fetches its share of the weights early."""
        rows = self.m // self.across if self.swapped else self.n // self.cluster
        return max(1, BYTES_AHEAD // (rows * self.k * ELEMENT_BYTES))

    @property
    def epilogue_bytes(self) -> int:
        staged = WGMMA_ROWS * self.slice_columns * self.epilogue_stages * ELEMENT_BYTES
        return MULTIPLYING * (staged + self.biases * Float32.width // 8)

    def stages(self, target: aot.Target) -> int:
        """Tiles of ``a`` and ``b`` that fit into shared memory beside the epilogue's."""
        return (target.shared_memory - self.epilogue_bytes - ALIGNMENT) // (self.stage_bytes + 2 * BARRIER_BYTES)

    def validate(self, target: aot.Target) -> None:
        multiple = SWIZZLED_ROWS if self.swapped else SLICES[-1]
        if self.m not in (64, 128, 192, 256) or self.n % multiple or not 16 <= self.n <= 256 or self.k not in DEPTHS:
            raise aot.DeclarationError(
                f"a tile of {self.m} x {self.n} x {self.k}",
                hint=f"m is 64, 128, 192 or 256, n a multiple of {multiple} up to 256, k 64 or 128",
            )
        if self.own_rows * self.n > MOST_SUMS or self.own_rows % WGMMA_ROWS:
            raise aot.DeclarationError(
                f"{self.own_rows} x {self.n} sums for one warp group",
                hint=f"up to {MOST_SUMS} fit into its registers, in blocks of {WGMMA_ROWS} rows",
            )
        if self.rows is not None and (
            self.rows % SWIZZLED_ROWS or self.rows > self.m or self.cluster > 1 or self.swapped
        ):
            raise aot.DeclarationError(
                f"{self.rows} rows of {self.m}, in clusters of {self.blocks}",
                hint="rows is a multiple of 8 up to m; the blocks of a cluster are side by side, and `a` and `b` not swapped",
            )
        if not 1 <= self.blocks <= target.max_cluster:
            raise aot.DeclarationError(f"clusters of {self.blocks}; {target.arch} takes up to {target.max_cluster}")
        if self.loaded_rows % (SWIZZLED_ROWS * self.across):
            raise aot.DeclarationError(
                f"{self.across} blocks load parts of {self.loaded_rows} rows",
                hint=f"each block of a cluster loads a multiple of {SWIZZLED_ROWS} rows of the tile of `a` that they share",
            )
        if self.split > 1 and (self.cluster * self.across > 1 or self.n % (multiple * self.split)):
            raise aot.DeclarationError(
                f"{self.split} blocks that sum parts of {self.n} columns, in clusters of {self.blocks}",
                hint=f"each block writes a multiple of {multiple} columns, and the cluster shares no tile",
            )
        check_stages(self, target)
        if self.split > 1 and self.m * self.n * Float32.width // 8 > self.stages(target) * self.stage_bytes:
            raise aot.DeclarationError(f"the sums of {self.m} x {self.n} do not fit where tiles were loaded to")


class Gemm(PersistentGemm):
    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, epilogue: Int32, clusters: Int32, stream: CUstream
    ):
        tiling = self.tiling
        a, b, out = batched(a), batched(b), batched(out)
        if cutlass.const_expr(tiling.swapped):
            a, b, out = b, a, cute.make_tensor(out.iterator, cute.select(out.layout, mode=[1, 0, 2]))
        b = self.arrange(b, out)
        self.dtype = a.element_type
        a_layout, b_layout = LayoutEnum.from_tensor(a), LayoutEnum.from_tensor(b)
        majors = a_layout.sm90_mma_major_mode(), b_layout.sm90_mma_major_mode()
        mma, own_mma = [
            hopper_helpers.make_trivial_tiled_mma(
                self.dtype, self.dtype, *majors, Float32, atom_layout_mnk=(1, 1, 1), tiler_mn=(WGMMA_ROWS, columns)
            )
            for columns in (tiling.n, tiling.own_columns)  # what is summed, and what is written of it
        ]
        tile = (tiling.m, tiling.n, tiling.k)
        a_staged = hopper_helpers.make_smem_layout_a(a_layout, tile, self.dtype, self.stages)
        b_staged = hopper_helpers.make_smem_layout_b(b_layout, tile, self.dtype, self.stages)
        # Buffers in order: for each warp group, its stages.
        out_tile = (WGMMA_ROWS, tiling.slice_columns)
        out_staged = hopper_helpers.make_smem_layout_epi(
            self.dtype,
            LayoutEnum.COL_MAJOR if tiling.swapped else LayoutEnum.ROW_MAJOR,
            out_tile,
            tiling.epilogue_stages * MULTIPLYING,
        )
        a_loaded = hopper_helpers.make_smem_layout_a(a_layout, (tiling.loaded_rows, tiling.n, tiling.k), self.dtype, 1)
        load_a, a_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SMulticastOp() if tiling.across > 1 else cpasync.CopyBulkTensorTileG2SOp(),
            a,
            cute.select(a_loaded, mode=[0, 1]),
            (tiling.loaded_rows, tiling.k),
            num_multicast=tiling.across,
        )
        load_b, b_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SMulticastOp() if tiling.cluster > 1 else cpasync.CopyBulkTensorTileG2SOp(),
            b,
            cute.select(b_staged, mode=[0, 1]),
            tiling.b_tile,
            num_multicast=tiling.b_shares,
        )
        store_out, out_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), out, cute.select(out_staged, mode=[0, 1]), out_tile
        )
        m, n, batch = out.shape
        tiles = (cute.ceil_div(m, tiling.m * tiling.cluster), cute.ceil_div(n, tiling.columns * tiling.across), batch)
        count = tiles[0] * tiles[1] * tiles[2]
        if count > 0:  # CUDA refuses an empty grid
            # Clusters that cut a sum compute one tile each, the others as many as it takes.
            running = count if cutlass.const_expr(tiling.split > 1) else cutlass.min(count, clusters)
            self.kernel(
                mma, own_mma, load_a, a_tiles, load_b, b_tiles, store_out, out_tiles, bias, epilogue,
                a_staged, b_staged, out_staged, tiles,
            ).launch(
                grid=[running * tiling.blocks, 1, 1],
                block=[THREADS, 1, 1],
                cluster=[tiling.blocks, 1, 1],
                min_blocks_per_mp=1,
                use_pdl=self.early,
                stream=stream,
            )  # fmt: skip

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        own_mma: cute.TiledMma,
        load_a: cute.CopyAtom,
        a: cute.Tensor,
        load_b: cute.CopyAtom,
        b: cute.Tensor,
        store_out: cute.CopyAtom,
        out: cute.Tensor,
        bias,
        epilogue: Int32,
        a_staged: cute.ComposedLayout,
        b_staged: cute.ComposedLayout,
        out_staged: cute.ComposedLayout,
        tiles: tuple[Int32, Int32, Int32],
    ):
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // cute.arch.WARP_SIZE)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:
            for atom in (load_a, load_b, store_out):
                cpasync.prefetch_descriptor(atom)

        shared = SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, 2 * self.stages)
        shared_a, shared_b, shared_out = [
            shared.allocate_tensor(self.dtype, staged.outer, ALIGNMENT, swizzle=staged.inner)
            for staged in (a_staged, b_staged, out_staged)
        ]
        shared_bias = shared.allocate_tensor(Float32, cute.make_layout((tiling.biases, MULTIPLYING)), 16)
        # Each warp that multiplies a tile, in each block that receives it, reports when the stage is free again.
        groups = MULTIPLYING if tiling.shared else 1
        consumers = (tiling.cluster + tiling.across - 1) * groups * (WARP_GROUP // cute.arch.WARP_SIZE)
        loaded = pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=self.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, consumers),
            tx_count=(tiling.loaded_rows + tiling.n) * tiling.k * ELEMENT_BYTES,
            cta_layout_vmnk=cute.make_layout((1, tiling.cluster, tiling.across, 1)),
            defer_sync=True,
        )
        pipeline.pipeline_init_arrive(cluster_shape_mn=(tiling.cluster, tiling.across), is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=(tiling.cluster, tiling.across))

        if cutlass.const_expr(self.early):  # noqa: SIM102  decided when compiling
            if warp == 0:
                self.fetch_ahead(load_a, a, shared_a, load_b, b, shared_b, tiles)
        await_previous(self.early)
        if group == 0:
            cute.arch.setmaxregister_decrease(LOADING_REGISTERS)
            if warp == 0:
                self.load_tiles(loaded, load_a, a, shared_a, load_b, b, shared_b, tiles)
        else:
            cute.arch.setmaxregister_increase(MULTIPLYING_REGISTERS)
            self.multiply_tiles(
                loaded, mma, own_mma, shared_a, shared_b, shared_out, shared_bias, store_out, out, bias,
                epilogue, tiles, cute.size(a, mode=[1]), group - 1,
            )  # fmt: skip

    def place(self):
        """Of this block: its first tile, the distance to the next one, its row and column in the cluster, its part."""
        tiling = self.tiling
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        first, step = block // tiling.blocks, blocks // tiling.blocks
        none = Int32(0)
        return (
            first,
            step,
            rank % tiling.cluster if tiling.cluster > 1 else none,
            rank // tiling.cluster if tiling.across > 1 else none,
            rank if tiling.split > 1 else none,
        )

    def range_of(self, part, steps):
        """The steps along ``k`` of which this block computes the sum."""
        return steps * part // self.tiling.split, steps * (part + 1) // self.tiling.split

    def loads(self, load_a, a, shared_a, load_b, b, shared_b, row, column):
        """This block's share of what is loaded of ``a`` and ``b``: where to, by stage, and where from, by tile and step."""
        tiling = self.tiling
        # Rows that are not loaded keep old values. They only produce rows of the output that do not exist.
        a_tile = (tiling.loaded_rows, tiling.k)
        a, shared_a = cute.local_tile(a, a_tile, (None, None, None)), cute.local_tile(shared_a, a_tile, (0, 0, None))
        b = cute.local_tile(b, tiling.b_tile, (None, None, None))
        # Each block of a cluster loads its share of the tile that they share into all blocks of the cluster.
        of_a = cpasync.tma_partition(
            load_a, column, cute.make_layout(tiling.across), cute.group_modes(shared_a, 0, 2), cute.group_modes(a, 0, 2)
        )
        of_b = cpasync.tma_partition(
            load_b,
            row if tiling.b_shares > 1 else 0,
            cute.make_layout(tiling.b_shares),
            cute.group_modes(shared_b, 0, 2),
            cute.group_modes(b, 0, 2),
        )
        return *of_a, *of_b

    @cute.jit
    def fetch_ahead(self, load_a, a, shared_a, load_b, b, shared_b, tiles):
        """Bring what this block loads first of the weights into the L2 cache while the previous kernel still runs.

        Nothing is read yet, and what the previous kernel writes goes to the same cache: it does not matter whether this
        comes before or after.
        """
        tiling = self.tiling
        first, _, row, column, part = self.place()
        _, from_a, _, from_b = self.loads(load_a, a, shared_a, load_b, b, shared_b, row, column)
        begin, end = self.range_of(part, cute.ceil_div(cute.size(a, mode=[1]), tiling.k))
        m, n, batch = tile_at(first, tiles, tiling.group)
        for k in cutlass.range(begin, cutlass.min(end, begin + tiling.steps_ahead)):
            if cutlass.const_expr(tiling.swapped):
                cute.prefetch(load_a, from_a[None, m * tiling.cluster + row, k, batch])
            else:
                cute.prefetch(load_b, from_b[None, n * tiling.across + column, k, batch])

    @cute.jit
    def load_tiles(self, loaded, load_a, a, shared_a, load_b, b, shared_b, tiles):
        """One warp: bring the tiles of ``a`` and ``b``, in the order in which they are multiplied."""
        tiling = self.tiling
        first, step, row, column, part = self.place()
        to_a, from_a, to_b, from_b = self.loads(load_a, a, shared_a, load_b, b, shared_b, row, column)
        # The blocks that receive a tile of `a` are in the same row of the cluster, those of `b` in the same column.
        same_row = sum(1 << tiling.cluster * i for i in range(tiling.across))
        to_all_a = (Int32(same_row) << row).to(cutlass.Int16) if tiling.across > 1 else None
        same_column = (1 << tiling.cluster) - 1
        to_all_b = (Int32(same_column) << column * tiling.cluster).to(cutlass.Int16) if tiling.cluster > 1 else None
        begin, end = self.range_of(part, cute.ceil_div(cute.size(a, mode=[1]), tiling.k))
        of_weights = policy_of_weights(tiles[1 if tiling.swapped else 0] == 1)
        of_a, of_b = (of_weights, None) if tiling.swapped else (None, of_weights)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
        for index in cutlass.range(first, tiles[0] * tiles[1] * tiles[2], step):
            m, n, batch = tile_at(index, tiles, tiling.group)
            a_row = from_a[None, m * tiling.cluster + row, None, batch]
            b_row = from_b[None, n * tiling.across + column, None, batch]
            for k in cutlass.range(begin, end, unroll=1):  # see `multiply`
                loaded.producer_acquire(state)
                barrier = loaded.producer_get_barrier(state)
                to_stage = to_a[None, state.index], to_b[None, state.index]
                cute.copy(
                    load_a, a_row[None, k], to_stage[0], tma_bar_ptr=barrier, mcast_mask=to_all_a, cache_policy=of_a
                )
                b_copy = {"tma_bar_ptr": barrier, "mcast_mask": to_all_b, "cache_policy": of_b}
                if cutlass.const_expr(tiling.b_shares < tiling.cluster):
                    if k % tiling.cluster == row:
                        cute.copy(load_b, b_row[None, k], to_stage[1], **b_copy)
                else:
                    cute.copy(load_b, b_row[None, k], to_stage[1], **b_copy)
                state.advance()
        loaded.producer_tail(state)

    @cute.jit
    def multiply_tiles(
        self, loaded, mma, own_mma, shared_a, shared_b, shared_out, shared_bias, store_out, out, bias, epilogue, tiles,
        depth, group,
    ):  # fmt: skip
        """A warp group: multiply every other tile of the block, or its half of every tile, and write it."""
        tiling = self.tiling
        first, step, row, column, part = self.place()
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        whole = mma.get_slice(0)
        half = group if cutlass.const_expr(tiling.shared) else Int32(0)
        own_a = cute.local_tile(shared_a, (tiling.own_rows, tiling.k), (half, 0, None))
        a, b = mma.make_fragment_A(whole.partition_A(own_a)), mma.make_fragment_B(whole.partition_B(shared_b))
        sums = cute.make_rmem_tensor(mma.partition_shape_C((tiling.own_rows, tiling.n)), Float32)
        bias_of_group = shared_bias[None, group]
        biased = cute.size(bias) > 0 if cutlass.const_expr(bias is not None) else None
        begin, end = self.range_of(part, cute.ceil_div(depth, tiling.k))
        steps = end - begin
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
        freed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
        if cutlass.const_expr(not tiling.shared):
            if group == 1:
                self.turn(0).arrive()  # which is the first
            read = skip_stages(read, steps * group)
            freed = skip_stages(freed, steps * group)
            first, step = first + group * step, MULTIPLYING * step
        for index in cutlass.range(first, tiles[0] * tiles[1] * tiles[2], step):
            m, n, batch = tile_at(index, tiles, tiling.group)
            # Where this block writes, in blocks of columns of its own.
            n = (n * tiling.across + column) * tiling.split + part
            top = (m * tiling.cluster + row) * (tiling.m // WGMMA_ROWS) + half * tiling.parts
            start = top * WGMMA_ROWS if cutlass.const_expr(tiling.swapped) else n * tiling.own_columns
            early = self.fetch_bias(bias, start, thread)
            if cutlass.const_expr(not tiling.shared):
                self.turn(group).arrive_and_wait()
            read, freed = self.multiply(loaded, mma, sums, a, b, steps, read, freed, group)
            if cutlass.const_expr(not tiling.shared):
                # The next loaded tile belongs to the other warp group.
                read = skip_stages(read, steps)
                freed = skip_stages(freed, steps)
            if cutlass.const_expr(bias is not None):  # noqa: SIM102  decided when compiling
                if biased:
                    self.place_bias(early, bias_of_group, thread, group)
            own = sums
            if cutlass.const_expr(tiling.split > 1):
                own = self.add_parts(sums, shared_a, part, thread, half, cute.size(out, mode=[0]) - top * WGMMA_ROWS)
            self.write(
                own_mma, own, bias_of_group, biased, epilogue, shared_out, store_out, out, top, n, batch, thread, group
            )
        # Shared memory must outlive the stores that read it.
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def add_parts(self, sums, shared_a, part, thread, half, rows):
        """The complete sums of the columns that this block writes.

        Parts travel through the memory that tiles were loaded to.
        """
        tiling = self.tiling
        own = cute.size(sums) // tiling.split
        groups = MULTIPLYING if cutlass.const_expr(tiling.shared) else 1
        places = places_of_parts(own, tiling.split, WARP_GROUP, groups)
        storage = cute.recast_ptr(shared_a.iterator, dtype=Float32)
        storage = (storage + half * (own * WARP_GROUP) + thread * CHUNK).align(CHUNK * Float32.width // 8)
        # From here on, no block multiplies what was loaded.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        own_row = thread // cute.arch.WARP_SIZE * WARP_ROWS
        return add_parts(sums, storage, places, part, tiling.split, tiling.parts, WGMMA_ROWS, own_row, rows)

    @cute.jit
    def multiply(self, loaded, mma, sums, a, b, steps, read, freed, group):
        """The sums of one tile. While one product runs, the shared memory of the previous one is freed.

        Loops over ``k`` are not unrolled: LLVM would repeat their steps two to four times. On an H200 that is no faster, and
        a sixth of the time to compile a GEMM.
        """
        mma.set(warpgroup.Field.ACCUMULATE, False)
        loaded.consumer_wait(read)
        self.start_product(mma, sums, a, b, read.index, True)
        read.advance()
        for _ in cutlass.range(1, steps, unroll=1):
            loaded.consumer_wait(read)
            self.start_product(mma, sums, a, b, read.index, False)
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
    def start_product(self, mma, sums, a, b, stage, opening: cutlass.Constexpr):
        """Multiply the content of one stage. The first product of a tile overwrites the old sums."""
        warpgroup.fence()
        for i in cutlass.range_constexpr(cute.size(a, mode=[2])):
            at = (None, None, i, stage)
            cute.gemm(mma, sums, a[at], b[at], sums)
            if cutlass.const_expr(opening and i == 0):
                mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()

    @cute.jit
    def fetch_bias(self, bias, start, thread):
        """This thread's share of the tile's bias, loaded early so that it arrives while the tile is multiplied."""
        share = cute.ceil_div(self.tiling.biases, WARP_GROUP)
        early = cute.make_rmem_tensor(share, Float32)
        if cutlass.const_expr(bias is not None):
            for i in cutlass.range_constexpr(share):
                column = start + i * WARP_GROUP + thread
                early[i] = Float32(0)
                if column < cute.size(bias):
                    early[i] = Float32(bias[column])
        return early

    @cute.jit
    def place_bias(self, early, shared_bias, thread, group):
        """The place in shared memory from which each thread of the warp group reads the bias of its columns."""
        for i in cutlass.range_constexpr(cute.size(early)):
            if i * WARP_GROUP + thread < self.tiling.biases:
                shared_bias[i * WARP_GROUP + thread] = early[i]
        self.together(group).arrive_and_wait()

    @cute.jit
    def write(self, mma, sums, bias, biased, epilogue, shared_out, store_out, out, top, n, batch, thread, group):
        """Bias, epilogue, rounding; then through shared memory, so that stores write whole lines."""
        parts, slices, stages = self.tiling.parts, self.tiling.slices, self.tiling.epilogue_stages
        together = self.together(group)
        storing = cute.arch.make_warp_uniform(thread // cute.arch.WARP_SIZE) == 0
        copy = self.copy_to_shared(mma)
        mine = copy.get_slice(thread)
        target = mine.partition_D(shared_out)
        values = cute.make_rmem_tensor(cute.shape(mine.partition_S(shared_out))[:3], Float32)
        rounded = cute.make_rmem_tensor_like(values, self.dtype)
        out = cute.local_tile(out, (WGMMA_ROWS, self.tiling.slice_columns), (None, None, None))
        stored, stored_to = cpasync.tma_partition(
            store_out, 0, cute.make_layout(1), cute.group_modes(shared_out, 0, 2), cute.group_modes(out, 0, 2)
        )
        part = cute.make_layout(mma.partition_shape_C((WGMMA_ROWS, self.tiling.own_columns)))
        for p in cutlass.range_constexpr(parts):
            spread = mma.get_slice(thread).partition_C(self.spread_bias(bias, p))
            for i in cutlass.range_constexpr(slices):
                index = p * slices + i
                buffer = group * stages + index % stages
                values.store(self.values_of(sums, p, i, cute.size(part), values.layout))
                if cutlass.const_expr(biased is not None):  # noqa: SIM102  decided when compiling
                    # Most products are written as they are, and branch only once.
                    if biased or epilogue != 0:
                        if biased:
                            for v in cutlass.range_constexpr(cute.size(values)):
                                values[v] += spread[i * cute.size(values) + v]
                        self.activate(values, epilogue)
                rounded.store(values.load().to(self.dtype))
                if storing:  # the store that read this buffer last has finished
                    cute.arch.cp_async_bulk_wait_group(stores_in_flight(index, parts * slices, stages), read=True)
                together.arrive_and_wait()
                cute.copy(copy, rounded, target[None, None, None, buffer])
                cute.arch.fence_proxy("async.shared", space="cta")
                together.arrive_and_wait()
                if storing:
                    cute.copy(store_out, stored[None, buffer], stored_to[None, top + p, n * slices + i, batch])
                    cute.arch.cp_async_bulk_commit_group()

    def arrange(self, b: cute.Tensor, out: cute.Tensor) -> cute.Tensor:
        """``b`` in the order in which tiles have its rows."""
        return b

    def values_of(self, sums: cute.Tensor, part: int, index: int, count: int, layout: cute.Layout) -> cute.TensorSSA:
        """What one slice of a block of rows is made of. A thread has its sums of a slice one after the other.

        It has ``count`` of them for each block of rows that is written.
        """
        return cute.make_tensor(sums.iterator + part * count + index * cute.size(layout), layout).load()

    def spread_bias(self, bias, part: int) -> cute.Tensor:
        """The bias of each sum of a block of rows: the same for all rows of the output."""
        shape = (WGMMA_ROWS, self.tiling.own_columns)
        if self.tiling.swapped:
            return cute.make_tensor(bias.iterator + part * WGMMA_ROWS, cute.make_layout(shape, stride=(1, 0)))
        return cute.make_tensor(bias.iterator, cute.make_layout(shape, stride=(0, 1)))

    def together(self, group) -> pipeline.NamedBarrier:
        """The barrier at which the threads of a warp group wait for each other."""
        return pipeline.NamedBarrier(barrier_id=1 + group, num_threads=WARP_GROUP)

    def turn(self, group) -> pipeline.NamedBarrier:
        """The barrier at which a warp group waits until the other one gives it its turn to multiply.

        Before its turn, it must not wait for loads: the barrier of a stage only distinguishes one round of the stages
        from the next.
        """
        return pipeline.NamedBarrier(barrier_id=1 + MULTIPLYING + group, num_threads=MULTIPLYING * WARP_GROUP)

    def copy_to_shared(self, mma: cute.TiledMma) -> cute.TiledCopy:
        count = 2 if self.tiling.slice_columns % SLICES[-1] else 4
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(self.tiling.swapped, count), self.dtype)
        return cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, mma))
