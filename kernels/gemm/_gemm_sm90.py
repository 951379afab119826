"""GEMM for sm_90a: TMA brings tiles into shared memory, wgmma multiplies them from there.

A block has one warp group that only loads and two that multiply. Blocks are persistent: each takes tiles until none is
left, and its two multiplying warp groups take turns. While one writes its tile, the other multiplies the next, so the
tensor cores do not wait for an epilogue. The blocks of a cluster are one above the other and share the tile of ``b``.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._device import await_previous
from .._versions import SmemAllocator, skip_stages
from ._gemm import PersistentGemm, batched, check_stages, tile_at

WARP_GROUP = 128  # threads
MULTIPLYING = 2  # warp groups
THREADS = (1 + MULTIPLYING) * WARP_GROUP
WGMMA_ROWS = 64  # rows of the tile that one instruction computes
EPILOGUE_COLUMNS = 64  # 128 bytes, the width of one swizzled TMA store
# Registers per thread: wgmma keeps its sums there; loading needs almost none.
LOADING_REGISTERS, MULTIPLYING_REGISTERS = 40, 232
MOST_SUMS = 128 * 128  # largest tile: 128 registers per thread
ELEMENT_BYTES = 2
BARRIER_BYTES = 8
ALIGNMENT = 1024  # of swizzled tiles in shared memory


@dataclass(frozen=True)
class Tiling:
    """A block computes ``m`` x ``n`` of the output, ``k`` at a time; ``cluster`` blocks share a tile of ``b``."""

    m: int
    n: int
    k: int = 64
    cluster: int = 1
    rows: int | None = None  # if ``a`` never has more rows than this, only these rows of its tile are loaded
    group: int = 4  # rows of clusters that are computed together: see ``tile_at``

    @property
    def label(self) -> str:
        return f"tile{self.loaded_rows}x{self.n}"

    @property
    def loaded_rows(self) -> int:
        return self.rows or self.m

    @property
    def stage_bytes(self) -> int:
        return (self.m + self.n) * self.k * ELEMENT_BYTES

    @property
    def parts(self) -> int:
        """The number of blocks of rows in a tile. One instruction computes one of them."""
        return self.m // WGMMA_ROWS

    @property
    def slices(self) -> int:
        """The number of slices of columns in a tile. One store writes one of them."""
        return self.n // EPILOGUE_COLUMNS

    @property
    def epilogue_stages(self) -> int:
        """Slices that a warp group has in shared memory: one is filled while another is stored."""
        return min(2, self.parts * self.slices)

    @property
    def epilogue_bytes(self) -> int:
        staged = WGMMA_ROWS * EPILOGUE_COLUMNS * self.epilogue_stages * ELEMENT_BYTES
        return MULTIPLYING * (staged + self.n * Float32.width // 8)

    def stages(self, target: aot.Target) -> int:
        """Tiles of ``a`` and ``b`` that fit into shared memory beside the epilogue's."""
        return (target.shared_memory - self.epilogue_bytes - ALIGNMENT) // (self.stage_bytes + 2 * BARRIER_BYTES)

    def validate(self, target: aot.Target) -> None:
        if self.m not in (64, 128) or self.n not in (64, 128, 256) or self.m * self.n > MOST_SUMS or self.k != 64:
            raise aot.DeclarationError(
                f"a tile of {self.m} x {self.n} x {self.k}",
                hint=f"m is 64 or 128, n 64, 128 or 256, m * n up to {MOST_SUMS}, k 64",
            )
        if self.rows is not None and (self.rows % 8 or self.rows > self.m or self.cluster > 1):
            raise aot.DeclarationError(
                f"{self.rows} rows of {self.m}, in clusters of {self.cluster}",
                hint="rows is a multiple of 8 up to m, without a cluster",
            )
        if not 1 <= self.cluster <= target.max_cluster:
            raise aot.DeclarationError(f"clusters of {self.cluster}; {target.arch} takes up to {target.max_cluster}")
        check_stages(self, target)


class Gemm(PersistentGemm):
    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, bias, clusters: Int32, stream: CUstream):
        tiling = self.tiling
        a, b, out = batched(a), batched(b), batched(out)
        self.dtype = a.element_type
        a_layout, b_layout = LayoutEnum.from_tensor(a), LayoutEnum.from_tensor(b)
        majors = a_layout.sm90_mma_major_mode(), b_layout.sm90_mma_major_mode()
        mma = hopper_helpers.make_trivial_tiled_mma(
            self.dtype, self.dtype, *majors, Float32, atom_layout_mnk=(1, 1, 1), tiler_mn=(WGMMA_ROWS, tiling.n)
        )
        tile = (tiling.m, tiling.n, tiling.k)
        a_staged = hopper_helpers.make_smem_layout_a(a_layout, tile, self.dtype, self.stages)
        b_staged = hopper_helpers.make_smem_layout_b(b_layout, tile, self.dtype, self.stages)
        # Buffers in order: for each warp group, its stages.
        out_tile = (WGMMA_ROWS, EPILOGUE_COLUMNS)
        out_staged = hopper_helpers.make_smem_layout_epi(
            self.dtype, LayoutEnum.ROW_MAJOR, out_tile, tiling.epilogue_stages * MULTIPLYING
        )
        a_tile = (tiling.loaded_rows, tiling.k)
        a_loaded = hopper_helpers.make_smem_layout_a(a_layout, (tiling.loaded_rows, tiling.n, tiling.k), self.dtype, 1)
        load_a, a_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), a, cute.select(a_loaded, mode=[0, 1]), a_tile
        )
        load_b, b_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SMulticastOp() if tiling.cluster > 1 else cpasync.CopyBulkTensorTileG2SOp(),
            b,
            cute.select(b_staged, mode=[0, 1]),
            (tiling.n, tiling.k),
            num_multicast=tiling.cluster,
        )
        store_out, out_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), out, cute.select(out_staged, mode=[0, 1]), out_tile
        )
        m, n, batch = out.shape
        tiles = (cute.ceil_div(m, tiling.m * tiling.cluster), cute.ceil_div(n, tiling.n), batch)
        count = tiles[0] * tiles[1] * tiles[2]
        if count > 0:  # CUDA refuses an empty grid
            self.kernel(
                mma, load_a, a_tiles, load_b, b_tiles, store_out, out_tiles, bias, a_staged, b_staged, out_staged, tiles
            ).launch(
                grid=[tiling.cluster, cutlass.min(count, clusters), 1],
                block=[THREADS, 1, 1],
                cluster=[tiling.cluster, 1, 1],
                min_blocks_per_mp=1,
                use_pdl=self.early,
                stream=stream,
            )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        load_a: cute.CopyAtom,
        a: cute.Tensor,
        load_b: cute.CopyAtom,
        b: cute.Tensor,
        store_out: cute.CopyAtom,
        out: cute.Tensor,
        bias,
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
        shared_bias = shared.allocate_tensor(Float32, cute.make_layout((tiling.n, MULTIPLYING)), 16)
        # Each warp that multiplies a tile, in each block that receives it, reports when the stage is free again.
        consumers = tiling.cluster * (WARP_GROUP // cute.arch.WARP_SIZE)
        loaded = pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=self.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, consumers),
            tx_count=(tiling.loaded_rows + tiling.n) * tiling.k * ELEMENT_BYTES,
            cta_layout_vmnk=cute.make_layout((1, tiling.cluster, 1, 1)),
            defer_sync=True,
        )
        pipeline.pipeline_init_arrive(cluster_shape_mn=(tiling.cluster, 1), is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=(tiling.cluster, 1))

        await_previous(self.early)
        if group == 0:
            cute.arch.setmaxregister_decrease(LOADING_REGISTERS)
            if warp == 0:
                self.load_tiles(loaded, load_a, a, shared_a, load_b, b, shared_b, tiles)
        else:
            cute.arch.setmaxregister_increase(MULTIPLYING_REGISTERS)
            self.multiply_tiles(
                loaded, mma, shared_a, shared_b, shared_out, shared_bias, store_out, out, bias, tiles,
                cute.size(a, mode=[1]), group - 1,
            )  # fmt: skip

    @cute.jit
    def load_tiles(self, loaded, load_a, a, shared_a, load_b, b, shared_b, tiles):
        """One warp: bring the tiles of ``a`` and ``b``, in the order in which they are multiplied."""
        tiling = self.tiling
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        _, first, _ = cute.arch.block_idx()
        _, step, _ = cute.arch.grid_dim()
        # Rows that are not loaded keep old values. They only produce rows of the output that do not exist.
        a_tile = (tiling.loaded_rows, tiling.k)
        a, shared_a = cute.local_tile(a, a_tile, (None, None, None)), cute.local_tile(shared_a, a_tile, (0, 0, None))
        b = cute.local_tile(b, (tiling.n, tiling.k), (None, None, None))
        alone = cute.make_layout(1)
        to_a, from_a = cpasync.tma_partition(
            load_a, 0, alone, cute.group_modes(shared_a, 0, 2), cute.group_modes(a, 0, 2)
        )
        # Each block of a cluster loads its share of the tile of ``b`` into all blocks of the cluster.
        to_b, from_b = cpasync.tma_partition(
            load_b, rank, cute.make_layout(tiling.cluster), cute.group_modes(shared_b, 0, 2), cute.group_modes(b, 0, 2)
        )
        everyone = Int32((1 << tiling.cluster) - 1).to(cutlass.Int16) if tiling.cluster > 1 else None
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
        for index in cutlass.range(first, tiles[0] * tiles[1] * tiles[2], step):
            m, n, batch = tile_at(index, tiles, tiling.group)
            a_row, b_row = from_a[None, m * tiling.cluster + rank, None, batch], from_b[None, n, None, batch]
            for k in cutlass.range(cute.size(a, mode=[3])):
                loaded.producer_acquire(state)
                barrier = loaded.producer_get_barrier(state)
                cute.copy(load_a, a_row[None, k], to_a[None, state.index], tma_bar_ptr=barrier)
                cute.copy(load_b, b_row[None, k], to_b[None, state.index], tma_bar_ptr=barrier, mcast_mask=everyone)
                state.advance()
        loaded.producer_tail(state)

    @cute.jit
    def multiply_tiles(
        self, loaded, mma, shared_a, shared_b, shared_out, shared_bias, store_out, out, bias, tiles, depth, group
    ):
        """A warp group: multiply every other tile of the block, and write it."""
        tiling = self.tiling
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        _, first, _ = cute.arch.block_idx()
        _, step, _ = cute.arch.grid_dim()
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        whole = mma.get_slice(0)
        a, b = mma.make_fragment_A(whole.partition_A(shared_a)), mma.make_fragment_B(whole.partition_B(shared_b))
        sums = cute.make_rmem_tensor(mma.partition_shape_C((tiling.m, tiling.n)), Float32)
        spread = None
        if cutlass.const_expr(bias is not None):
            # The bias of each sum: the same for all rows.
            every_row = cute.make_layout((WGMMA_ROWS, tiling.n), stride=(0, 1))
            bias_of_group = shared_bias[None, group]
            spread = mma.get_slice(thread).partition_C(cute.make_tensor(bias_of_group.iterator, every_row))
        steps = cute.ceil_div(depth, tiling.k)
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
        freed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
        if group == 1:
            self.turn(0).arrive()  # which is the first
        read = skip_stages(read, steps * group)
        freed = skip_stages(freed, steps * group)
        for index in cutlass.range(first + group * step, tiles[0] * tiles[1] * tiles[2], MULTIPLYING * step):
            m, n, batch = tile_at(index, tiles, tiling.group)
            early = self.fetch_bias(bias, n, thread)
            self.turn(group).arrive_and_wait()
            read, freed = self.multiply(loaded, mma, sums, a, b, steps, read, freed, group)
            # The next loaded tile belongs to the other warp group.
            read = skip_stages(read, steps)
            freed = skip_stages(freed, steps)
            if cutlass.const_expr(bias is not None):
                self.place_bias(early, bias_of_group, thread, group)
            row = m * tiling.cluster + rank
            self.write(mma, sums, spread, shared_out, store_out, out, row, n, batch, thread, group)
        # Shared memory must outlive the stores that read it.
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def multiply(self, loaded, mma, sums, a, b, steps, read, freed, group):
        """The sums of one tile. While one product runs, the shared memory of the previous one is freed."""
        mma.set(warpgroup.Field.ACCUMULATE, False)
        loaded.consumer_wait(read)
        self.start_product(mma, sums, a, b, read.index, True)
        read.advance()
        for _ in cutlass.range(1, steps):
            loaded.consumer_wait(read)
            self.start_product(mma, sums, a, b, read.index, False)
            read.advance()
            warpgroup.wait_group(1)
            loaded.consumer_release(freed)
            freed.advance()
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
    def fetch_bias(self, bias, n, thread):
        """This thread's share of the tile's bias, loaded early so that it arrives while the tile is multiplied."""
        share = cute.ceil_div(self.tiling.n, WARP_GROUP)
        early = cute.make_rmem_tensor(share, Float32)
        if cutlass.const_expr(bias is not None):
            for i in cutlass.range_constexpr(share):
                column = n * self.tiling.n + i * WARP_GROUP + thread
                early[i] = Float32(0)
                if column < cute.size(bias):
                    early[i] = Float32(bias[column])
        return early

    @cute.jit
    def place_bias(self, early, shared_bias, thread, group):
        """The place in shared memory from which each thread of the warp group reads the bias of its columns."""
        for i in cutlass.range_constexpr(cute.size(early)):
            if i * WARP_GROUP + thread < self.tiling.n:
                shared_bias[i * WARP_GROUP + thread] = early[i]
        self.together(group).arrive_and_wait()

    @cute.jit
    def write(self, mma, sums, bias, shared_out, store_out, out, row, n, batch, thread, group):
        """Bias, epilogue, rounding; then through shared memory, so that stores write whole lines."""
        parts, slices, stages = self.tiling.parts, self.tiling.slices, self.tiling.epilogue_stages
        together = self.together(group)
        storing = cute.arch.make_warp_uniform(thread // cute.arch.WARP_SIZE) == 0
        copy = self.copy_to_shared(mma)
        mine = copy.get_slice(thread)
        target = mine.partition_D(shared_out)
        values = cute.make_rmem_tensor(cute.shape(mine.partition_S(shared_out))[:3], Float32)
        rounded = cute.make_rmem_tensor_like(values, self.dtype)
        out = cute.local_tile(out, (WGMMA_ROWS, EPILOGUE_COLUMNS), (None, None, None))
        stored, stored_to = cpasync.tma_partition(
            store_out, 0, cute.make_layout(1), cute.group_modes(shared_out, 0, 2), cute.group_modes(out, 0, 2)
        )
        part = cute.make_layout(mma.partition_shape_C((WGMMA_ROWS, self.tiling.n)))
        for p in cutlass.range_constexpr(parts):
            source = copy.retile(cute.make_tensor(sums.iterator + p * cute.size(part), part))
            for i in cutlass.range_constexpr(slices):
                buffer = group * stages + (p * slices + i) % stages
                for v in cutlass.range_constexpr(cute.size(values)):
                    values[v] = source[i * cute.size(values) + v]
                    if cutlass.const_expr(bias is not None):
                        values[v] += bias[i * cute.size(values) + v]
                rounded.store(self.epilogue.apply(values.load()).to(self.dtype))
                if storing:  # the store that read this buffer last has finished
                    cute.arch.cp_async_bulk_wait_group(stages - 1, read=True)
                together.arrive_and_wait()
                cute.copy(copy, rounded, target[None, None, None, buffer])
                cute.arch.fence_proxy("async.shared", space="cta")
                together.arrive_and_wait()
                if storing:
                    cute.copy(store_out, stored[None, buffer], stored_to[None, row * parts + p, n * slices + i, batch])
                    cute.arch.cp_async_bulk_commit_group()

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
        matrices = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), self.dtype)
        return cute.make_tiled_copy_S(matrices, cute.make_tiled_copy_C_atom(matrices, mma))
