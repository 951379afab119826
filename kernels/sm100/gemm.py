"""GEMM for sm_100f: TMA loads tiles into shared memory, tcgen05 multiplies them into tensor memory.

A block has one warp that loads, one that starts the products, and four that write. It is persistent and keeps two tiles
in tensor memory: while one is written, the next is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, pipeline
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.utils import LayoutEnum, blackwell_helpers

import aot

from .._activations import Activation
from .._buffers import stores_in_flight
from .._device import await_previous, launched_early
from .._gemm import EpilogueGemm, batched
from .._scheduler import swizzled_batch
from .._versions import SmemAllocator, TmemAllocator

ROWS = 128  # of a tile: the lanes of tensor memory
TENSOR_MEMORY_COLUMNS = 512
SUM_STAGES = 2
WRITING_WARPS, MULTIPLYING_WARP, LOADING_WARP = 4, 4, 5
WRITING_THREADS = WRITING_WARPS * cute.arch.WARP_SIZE
THREADS = 6 * cute.arch.WARP_SIZE
SLICE_COLUMNS = 64  # 128 bytes, the width of one swizzled TMA store
ELEMENT_BYTES = 2
ALIGNMENT = 1024  # of swizzled tiles in shared memory
RESERVED_BYTES = 1024  # barriers, and the address of the tensor memory


@dataclass(frozen=True)
class Tiling:
    """A block computes 128 x ``n`` of the output, ``k`` at a time."""

    n: int
    k: int = 64
    group: int = 16  # rows of tiles that are computed together: see ``swizzled_batch``

    m = ROWS

    @property
    def label(self) -> str:
        return f"tile{self.m}x{self.n}"

    @property
    def stage_bytes(self) -> int:
        return (self.m + self.n) * self.k * ELEMENT_BYTES

    @property
    def slice_stages(self) -> int:
        """Slices of the output in shared memory: one is filled while another is stored."""
        return min(2, self.n // SLICE_COLUMNS)

    @property
    def epilogue_bytes(self) -> int:
        return self.m * SLICE_COLUMNS * self.slice_stages * ELEMENT_BYTES + self.n * Float32.width // 8

    def stages(self, target: aot.Target) -> int:
        """Tiles of ``a`` and ``b`` that fit into shared memory beside the epilogue's."""
        return (target.shared_memory - self.epilogue_bytes - ALIGNMENT - RESERVED_BYTES) // self.stage_bytes

    def validate(self, target: aot.Target) -> None:
        if self.n % SLICE_COLUMNS or self.n * SUM_STAGES > TENSOR_MEMORY_COLUMNS or self.k != 64:
            raise aot.DeclarationError(
                f"a tile of {self.m} x {self.n} x {self.k}",
                hint=f"n is a multiple of {SLICE_COLUMNS} up to {TENSOR_MEMORY_COLUMNS // SUM_STAGES}, k 64",
            )
        if self.stages(target) < 2:
            raise aot.DeclarationError(
                f"two stages of {self.stage_bytes} bytes and {self.epilogue_bytes} for the epilogue; "
                f"a block of {target.arch} has {target.shared_memory}"
            )


class Gemm(EpilogueGemm):
    def __init__(self, tiling: Tiling, target: aot.Target, epilogues: Sequence[type[Activation]]) -> None:
        super().__init__(tiling, target, epilogues)
        self.stages = tiling.stages(target)
        self.early = launched_early(target)

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        out: cute.Tensor,
        bias,
        epilogue: Int32,
        multiprocessors: Int32,
        stream: CUstream,
    ):
        tiling = self.tiling
        a, b, out = batched(a), batched(b), batched(out)
        self.dtype = a.element_type
        mma = cute.make_tiled_mma(
            tcgen05.MmaF16BF16Op(
                self.dtype,
                Float32,
                (tiling.m, tiling.n, 16),
                tcgen05.CtaGroup.ONE,
                tcgen05.OperandSource.SMEM,
                LayoutEnum.from_tensor(a).mma_major_mode(),
                LayoutEnum.from_tensor(b).mma_major_mode(),
            )
        )
        tile = (tiling.m, tiling.n, tiling.k)
        a_staged = blackwell_helpers.make_smem_layout_a(mma, tile, self.dtype, self.stages)
        b_staged = blackwell_helpers.make_smem_layout_b(mma, tile, self.dtype, self.stages)
        out_tile = (tiling.m, SLICE_COLUMNS)
        out_staged = blackwell_helpers.make_smem_layout_epi(
            self.dtype, LayoutEnum.ROW_MAJOR, out_tile, tiling.slice_stages
        )
        alone = (1, 1, 1, 1)
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        load_a, a_tiles = cute.nvgpu.make_tiled_tma_atom_A(
            load, a, cute.select(a_staged, mode=[0, 1, 2]), tile, mma, alone
        )
        load_b, b_tiles = cute.nvgpu.make_tiled_tma_atom_B(
            load, b, cute.select(b_staged, mode=[0, 1, 2]), tile, mma, alone
        )
        store_out, out_tiles = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), out, cute.select(out_staged, mode=[0, 1]), out_tile
        )
        m, n, batch = out.shape
        tiles = (cute.ceil_div(m, tiling.m), cute.ceil_div(n, tiling.n), batch)
        count = tiles[0] * tiles[1] * tiles[2]
        if count > 0:  # CUDA refuses an empty grid
            self.kernel(
                mma,
                load_a,
                a_tiles,
                load_b,
                b_tiles,
                store_out,
                out_tiles,
                bias,
                epilogue,
                a_staged,
                b_staged,
                out_staged,
                tiles,
            ).launch(
                grid=[cutlass.min(count, multiprocessors), 1, 1],
                block=[THREADS, 1, 1],
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
        epilogue: Int32,
        a_staged: cute.ComposedLayout,
        b_staged: cute.ComposedLayout,
        out_staged: cute.ComposedLayout,
        tiles: tuple[Int32, Int32, Int32],
    ):
        tiling = self.tiling
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == LOADING_WARP:
            for atom in (load_a, load_b, store_out):
                cpasync.prefetch_descriptor(atom)

        shared = SmemAllocator()
        load_barriers = shared.allocate_array(cutlass.Int64, 2 * self.stages)
        sum_barriers = shared.allocate_array(cutlass.Int64, 2 * SUM_STAGES)
        # Barrier 1 is that of the writing warps, see ``write_tiles``. At barrier 2, these and the warp that multiplies wait until
        # tensor memory is allocated.
        memory = TmemAllocator(
            shared.allocate_array(Int32, 1),
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=2, num_threads=WRITING_THREADS + 32),
            allocator_warp_id=0,
        )
        shared_a, shared_b, shared_out = [
            shared.allocate_tensor(self.dtype, staged.outer, ALIGNMENT, swizzle=staged.inner)
            for staged in (a_staged, b_staged, out_staged)
        ]
        shared_bias = shared.allocate_tensor(Float32, cute.make_layout(tiling.n), 16)
        one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        alone = cute.make_layout((1, 1, 1, 1))
        loader, multiplier = pipeline.PipelineTmaUmma.create(
            barrier_storage=load_barriers,
            num_stages=self.stages,
            producer_group=one,
            consumer_group=one,
            tx_count=tiling.stage_bytes,
            cta_layout_vmnk=alone,
        ).make_participants()
        summed, written = pipeline.PipelineUmmaAsync.create(
            barrier_storage=sum_barriers,
            num_stages=SUM_STAGES,
            producer_group=one,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, WRITING_WARPS),
            cta_layout_vmnk=alone,
        ).make_participants()

        layout = mma.make_fragment_C(cute.append(mma.partition_shape_C((tiling.m, tiling.n)), SUM_STAGES)).layout
        await_previous(self.early)
        if warp == LOADING_WARP:
            self.produce(loader, mma, load_a, a, shared_a, load_b, b, shared_b, tiles)
        elif warp == MULTIPLYING_WARP:
            memory.wait_for_alloc()
            sums = cute.make_tensor(memory.retrieve_ptr(Float32), layout)
            self.mainloop(multiplier, summed, mma, sums, shared_a, shared_b, tiles, cute.size(a, mode=[1]))
        else:
            memory.allocate(TENSOR_MEMORY_COLUMNS)
            memory.wait_for_alloc()
            pointer = memory.retrieve_ptr(Float32)
            self.write_tiles(
                written, mma, cute.make_tensor(pointer, layout), shared_out, shared_bias, store_out, out, bias, epilogue,
                tiles,
            )  # fmt: skip
            # The warp that allocated tensor memory frees it. All four have read the last sums: they met after that.
            memory.relinquish_alloc_permit()
            memory.free(pointer)

    @cute.jit
    def produce(self, loader, mma, load_a, a, shared_a, load_b, b, shared_b, tiles):
        """The producer warp: load the tiles of ``a`` and ``b``, in the order in which they are multiplied."""
        tiling = self.tiling
        mine = mma.get_slice(0)
        a = mine.partition_A(cute.local_tile(a, (tiling.m, tiling.k), (None, None, None)))
        b = mine.partition_B(cute.local_tile(b, (tiling.n, tiling.k), (None, None, None)))
        to_a, from_a = cpasync.tma_partition(
            load_a, 0, cute.make_layout(1), cute.group_modes(shared_a, 0, 3), cute.group_modes(a, 0, 3)
        )
        to_b, from_b = cpasync.tma_partition(
            load_b, 0, cute.make_layout(1), cute.group_modes(shared_b, 0, 3), cute.group_modes(b, 0, 3)
        )
        first, _, _ = cute.arch.block_idx()
        step, _, _ = cute.arch.grid_dim()
        for index in cutlass.range(first, tiles[0] * tiles[1] * tiles[2], step):
            m, n, batch = swizzled_batch(index, tiles, tiling.group)
            a_row, b_row = from_a[None, m, None, batch], from_b[None, n, None, batch]
            for k in cutlass.range(cute.size(a_row, mode=[1])):
                stage = loader.acquire_and_advance()
                cute.copy(load_a, a_row[None, k], to_a[None, stage.index], tma_bar_ptr=stage.barrier)
                cute.copy(load_b, b_row[None, k], to_b[None, stage.index], tma_bar_ptr=stage.barrier)
        loader.tail()  # until the last stages are released: their mbarriers must outlive what arrives there

    @cute.jit
    def mainloop(self, multiplier, summed, mma, sums, shared_a, shared_b, tiles, depth):
        """One warp, of which one thread starts the products of all."""
        a, b = mma.make_fragment_A(shared_a), mma.make_fragment_B(shared_b)
        first, _, _ = cute.arch.block_idx()
        step, _, _ = cute.arch.grid_dim()
        for _ in cutlass.range(first, tiles[0] * tiles[1] * tiles[2], step):
            free = summed.acquire_and_advance()  # the sums of the tile before the last one were read
            target = sums[None, None, None, free.index]
            mma.set(tcgen05.Field.ACCUMULATE, False)
            for _ in cutlass.range(cute.ceil_div(depth, self.tiling.k)):
                stage = multiplier.wait_and_advance()
                for i in cutlass.range_constexpr(cute.size(a, mode=[2])):
                    at = (None, None, i, stage.index)
                    cute.gemm(mma, target, a[at], b[at], target)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                stage.release()  # arrives when the products that were started have read the stage
            free.commit()  # arrives when they have ended
        summed.tail()  # until the sums were read

    @cute.jit
    def write_tiles(self, written, mma, sums, shared_out, shared_bias, store_out, out, bias, epilogue, tiles):
        """Four warps: bias, epilogue, rounding; then through shared memory, so that stores write whole lines."""
        tiling = self.tiling
        thread, _, _ = cute.arch.thread_idx()
        together = pipeline.NamedBarrier(barrier_id=1, num_threads=WRITING_THREADS)
        storing = cute.arch.make_warp_uniform(thread // cute.arch.WARP_SIZE) == 0
        slices = tiling.n // SLICE_COLUMNS
        slice_shape = (tiling.m, SLICE_COLUMNS)
        # Of each stage of sums: rows, columns of a slice, slices.
        sums = cute.flat_divide(sums[(None, None), 0, 0, None], slice_shape)[None, None, 0, None, None]
        atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(SLICE_COLUMNS)), Float32)
        from_memory = tcgen05.make_tmem_copy(atom, sums[None, None, 0, 0])
        mine = from_memory.get_slice(thread)
        source = mine.partition_S(sums)
        # The bias of each sum: the same for all rows.
        every_row = cute.make_layout((tiling.m, tiling.n), stride=(0, 1))
        spread = cute.flat_divide(cute.make_tensor(shared_bias.iterator, every_row), slice_shape)[None, None, 0, None]
        spread = mine.partition_D(spread)
        values = cute.make_rmem_tensor(spread[None, None, None, 0].shape, Float32)
        store = blackwell_helpers.get_smem_store_op(LayoutEnum.ROW_MAJOR, self.dtype, Float32, from_memory)
        to_shared = cute.make_tiled_copy_D(store, from_memory)
        rounded = cute.make_rmem_tensor(to_shared.retile(values).shape, self.dtype)
        target = to_shared.get_slice(thread).partition_D(shared_out)
        out = cute.local_tile(out, slice_shape, (None, None, None))
        stored, stored_to = cpasync.tma_partition(
            store_out, 0, cute.make_layout(1), cute.group_modes(shared_out, 0, 2), cute.group_modes(out, 0, 2)
        )
        first, _, _ = cute.arch.block_idx()
        step, _, _ = cute.arch.grid_dim()
        for index in cutlass.range(first, tiles[0] * tiles[1] * tiles[2], step):
            m, n, batch = swizzled_batch(index, tiles, tiling.group)
            if cute.size(bias) > 0:
                self.place_bias(bias, n, shared_bias, thread)
                together.arrive_and_wait()  # all of the bias is there; that of the last tile was read before its last store
            full = written.wait_and_advance()
            for i in cutlass.range_constexpr(slices):
                cute.copy(from_memory, source[None, None, None, i, full.index], values)
                if cute.size(bias) > 0:
                    values.store(values.load() + spread[None, None, None, i].load())
                if storing:  # the store that read this buffer last has finished
                    cute.arch.cp_async_bulk_wait_group(stores_in_flight(i, slices, tiling.slice_stages), read=True)
                together.arrive_and_wait()  # and the other warps know it
                self.activate(values, epilogue)
                rounded.store(to_shared.retile(values).load().to(self.dtype))
                buffer = i % tiling.slice_stages
                cute.copy(to_shared, rounded, target[None, None, None, buffer])
                # TMA reads shared memory through another proxy: each thread fences its writes, and all meet before the store.
                cute.arch.fence_view_async_shared()
                together.arrive_and_wait()
                if storing:
                    cute.copy(store_out, stored[None, buffer], stored_to[None, m, n * slices + i, batch])
                    cute.arch.cp_async_bulk_commit_group()
            # Loads from tensor memory are asynchronous: they must have ended before the sums may be overwritten. One lane of each
            # warp says so.
            cute.arch.fence_view_async_tmem_load()
            with cute.arch.elect_one():
                full.release()
        # Shared memory must outlive the stores that read it.
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def place_bias(self, bias, n, shared_bias, thread):
        for i in cutlass.range_constexpr(cute.ceil_div(self.tiling.n, WRITING_THREADS)):
            place = i * WRITING_THREADS + thread
            column = n * self.tiling.n + place
            if place < self.tiling.n:
                shared_bias[place] = Float32(bias[column]) if column < cute.size(bias) else Float32(0)
