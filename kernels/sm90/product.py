"""A Hopper product: a scheduler, a mainloop and an epilogue in one persistent kernel.

For each tile: the scheduler tells the producer and the consumers where it is; the producer warp loads the operands, step by
step, into stages; consumer warp groups multiply them; with split-K, the blocks of a cluster add up their partial sums; the
epilogue transforms and stores the result. Blocks take tiles until none is left.

It is guaranteed that nothing is read before the previous kernel in the stream has ended, apart from a prefetch into the L2
cache; that elements of the output are written once, and others not at all; and that equal calls have equal results.

A subclass gives ``__call__`` the arguments of its operation and passes them to :meth:`Product.launch`.
"""

from __future__ import annotations

import math

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

import aot

from .._device import KernelObject, await_previous, launched_early
from .._gemm import batched
from .._versions import SmemAllocator
from .epilogue import Epilogue, Place, Store
from .hardware import ALIGNMENT, CONSUMERS, WARP, WARP_GROUP
from .mainloop import Consumer, Loads, Mainloop, Ready, Types
from .pipeline import init_barriers, skip_stages, tma_pipeline
from .scheduler import GroupedScheduler, TileScheduler, Work, this_block
from .split_k import allocate_partials, reduce_parts


class Product(KernelObject):
    """``out = epilogue(a @ b.T)``; if ``grouped``, rows of ``a`` belong to experts, each with a ``b`` of its own."""

    def __init__(self, mainloop: Mainloop, epilogue: Epilogue, target: aot.Target, grouped: bool = False) -> None:
        self.tiling, self.mainloop, self.epilogue = mainloop.tiling, mainloop, epilogue
        self.scheduler = (GroupedScheduler if grouped else TileScheduler)(mainloop.tiling)
        self.tiling.validate(target)
        self.stages = mainloop.stages(target, epilogue.shared_bytes)
        self.early = launched_early(target)
        mainloop.validate(target, self.stages, epilogue.shared_bytes)
        assert not (grouped and self.tiling.split_k > 1)

    def arrange(self, b: cute.Tensor, out: cute.Tensor) -> cute.Tensor:
        """``b`` with the rows of a gating matrix as another mode, beside those of what it gates."""
        if not self.tiling.gated:
            return b
        columns, rows = out.shape[1], b.stride[0]
        layout = cute.make_layout(
            ((columns, 2), *b.shape[1:]),
            stride=((rows, columns * rows), *b.stride[1:]),
        )
        return cute.make_tensor(b.iterator, layout)

    def tma_load(self, matrix: cute.Tensor, staged, tile: tuple, blocks: int, shares: int):
        """How TMA loads a tile for a number of ``blocks`` in ``shares``, and the matrix as TMA addresses it."""
        multicast = cpasync.CopyBulkTensorTileG2SMulticastOp() if blocks > 1 else cpasync.CopyBulkTensorTileG2SOp()
        layout = cute.select(staged, mode=[0, 1])
        return cpasync.make_tiled_tma_atom(multicast, matrix, layout, tile, num_multicast=shares)

    @cute.jit
    def launch(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, arguments, offsets, clusters: Int32, stream: CUstream
    ):
        tiling, scheduler, epilogue = self.tiling, self.scheduler, self.epilogue
        a, b, out = batched(a), batched(b), batched(out)
        if cutlass.const_expr(tiling.swapped):
            a, b, out = b, a, cute.make_tensor(out.iterator, cute.select(out.layout, mode=[1, 0, 2]))
        b = self.arrange(b, out)
        layouts = LayoutEnum.from_tensor(a), LayoutEnum.from_tensor(b)
        self.types = Types(a.element_type, b.element_type, *layouts, out.element_type)
        tile = (tiling.m, tiling.n, tiling.k)
        loaded = (tiling.loaded_rows, tiling.n, tiling.k)
        a_staged = hopper_helpers.make_smem_layout_a(layouts[0], tile, a.element_type, self.stages)
        a_loaded = hopper_helpers.make_smem_layout_a(layouts[0], loaded, a.element_type, 1)
        b_staged = hopper_helpers.make_smem_layout_b(layouts[1], tile, b.element_type, self.stages)
        out_staged = epilogue.staged(out.element_type)
        load_a, a_tiles = self.tma_load(a, a_loaded, (tiling.loaded_rows, tiling.k), tiling.cluster_n, tiling.cluster_n)
        load_b, b_tiles = self.tma_load(b, b_staged, (tiling.b_tile, tiling.k), tiling.cluster_m, tiling.b_shares)
        store_out, out_tiles = epilogue.tma_store(out, out_staged)
        tiles = scheduler.tiles(out)
        if math.prod(tiles) > 0:  # CUDA refuses an empty grid
            count = scheduler.most_tiles(tiles, offsets)
            # Split-K clusters compute one tile each. Other clusters are persistent: as many as fit on the device.
            running = count if cutlass.const_expr(tiling.split_k > 1) else cutlass.min(count, clusters)
            self.kernel(
                load_a, a_tiles, load_b, b_tiles, store_out, out_tiles, out, arguments, offsets, a_staged, b_staged,
                out_staged, tiles,
            ).launch(
                grid=[running * tiling.blocks, 1, 1],
                block=[self.mainloop.threads, 1, 1],
                cluster=[tiling.blocks, 1, 1],
                min_blocks_per_mp=1,
                use_pdl=self.early,
                stream=stream,
            )  # fmt: skip

    @cute.kernel
    def kernel(
        self, load_a: cute.CopyAtom, a: cute.Tensor, load_b: cute.CopyAtom, b: cute.Tensor, store_out, out_tiles, out,
        arguments, offsets, a_staged: cute.ComposedLayout, b_staged: cute.ComposedLayout, out_staged, tiles,
    ):  # fmt: skip
        tiling, mainloop, epilogue, scheduler = self.tiling, self.mainloop, self.epilogue, self.scheduler
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(thread // WARP)
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:  # the first copies need not wait until their descriptors arrive from memory
            for atom in (load_a, load_b, store_out):
                if cutlass.const_expr(atom is not None):
                    cpasync.prefetch_descriptor(atom)

        shared = SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, 2 * self.stages)
        head = mainloop.allocate_head(shared, self.stages)
        shared_a, shared_b = [
            shared.allocate_tensor(dtype, staged.outer, ALIGNMENT, swizzle=staged.inner)
            for dtype, staged in ((self.types.a, a_staged), (self.types.b, b_staged))
        ]
        loads = Loads(load_a, a, shared_a, load_b, b, shared_b)
        store = Store(store_out, out_tiles, epilogue.allocate_staged(shared, self.types.out, out_staged), out)
        floats = epilogue.allocate(shared)
        partials = allocate_partials(shared, tiling)
        # Each warp that reads a tile, in each block that receives it, reports when the stage is free again.
        receivers = tiling.cluster_m + tiling.cluster_n - 1
        full = tma_pipeline(
            barriers, self.stages, tiling.loaded_bytes, receivers * mainloop.reading_warps, mainloop.producers,
            (tiling.cluster_m, tiling.cluster_n),
        )  # fmt: skip
        ready = mainloop.ready(shared, full, loads, head, self.stages)
        # Blocks that write to each other's shared memory must have started; if they wait for each other before, they have.
        met = tiling.blocks if tiling.own_partials else tiling.cluster_m * tiling.cluster_n
        init_barriers(met)

        work = Work(tiles, Int32(0), cute.size(a, mode=[1]), offsets, arguments)
        # Offsets tell where the first tile of experts is, and the previous kernel may still write them.
        if cutlass.const_expr(self.early and not scheduler.grouped):  # noqa: SIM102  decided when compiling
            if warp == 0:
                mainloop.prefetch(loads, scheduler, work)
        await_previous(self.early)
        work = work._replace(count=scheduler.count(tiles, offsets))
        # Warp groups part here. All warps of a group change their registers together: see ``hardware``.
        if group == 0:
            cute.arch.setmaxregister_decrease(mainloop.registers[0])
            if warp == 0:
                mainloop.produce(full, loads, scheduler, work)
            mainloop.assist(warp, loads, full, ready, scheduler, work)
        else:
            self.consume_or_assist(loads, full, ready, floats, partials, store, work, group - 1)

    @cute.jit
    def consume_or_assist(self, loads, full, ready: Ready, floats, partials, store: Store, work: Work, group):
        """Warp groups beyond the consumers assist the mainloop, with as few registers as the producer's."""
        if cutlass.const_expr(self.mainloop.threads == (1 + CONSUMERS) * WARP_GROUP):
            cute.arch.setmaxregister_increase(self.mainloop.registers[1])
            self.consume(ready, floats, partials, store, work, group)
        else:
            if group < CONSUMERS:
                cute.arch.setmaxregister_increase(self.mainloop.registers[1])
                self.consume(ready, floats, partials, store, work, group)
            else:
                cute.arch.setmaxregister_decrease(self.mainloop.registers[0])
                warp = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP)
                self.mainloop.assist(warp, loads, full, ready, self.scheduler, work)

    def instruction(self, columns: int) -> cute.TiledMma:
        return self.mainloop.instruction(self.types, columns)

    @cute.jit
    def consume(self, ready: Ready, floats, partials, store: Store, work: Work, group):
        """A consumer warp group: multiply every other tile of the block, or its half of every tile, and store it."""
        tiling, mainloop, epilogue = self.tiling, self.mainloop, self.epilogue
        block = this_block(tiling)
        thread = cute.arch.thread_idx()[0] % WARP_GROUP
        half = group if cutlass.const_expr(tiling.own_rows < tiling.m) else Int32(0)
        side = group if cutlass.const_expr(tiling.sides > 1) else Int32(0)
        consumer = Consumer(group, thread, half, side)
        # Two of the same kind: one begins new sums, the other adds to them. The last is for what is stored of the sums.
        beginning, adding, writing = [
            self.instruction(columns) for columns in (tiling.own_columns, tiling.own_columns, tiling.written_columns)
        ]
        beginning.set(warpgroup.Field.ACCUMULATE, False)
        adding.set(warpgroup.Field.ACCUMULATE, True)
        operands = mainloop.fragments(beginning, ready, consumer)
        accumulators = mainloop.accumulators(beginning)
        begin, end = mainloop.steps(block.part, work.depth)
        steps = end - begin
        read, released = mainloop.states(ready)
        first_tile, step = block.first, block.step
        if cutlass.const_expr(not tiling.cooperative):
            # Pingpong: the first turn is that of group 0, and group 1 hands it over. Stages are loaded in the order of tiles,
            # so a group passes over those of the other group's tiles.
            if group == 1:
                mainloop.barriers.turn(0).arrive()
            read, released = skip_stages(read, steps * group), skip_stages(released, steps * group)
            first_tile, step = first_tile + group * step, CONSUMERS * step
        first, before = Int32(0), Int32(0)
        for index in cutlass.range(first_tile, work.count, step):
            tile, first, before = self.scheduler.find(index, work, block, first, before)
            n = (tile.n * tiling.sides + side) * tiling.owners + block.part
            place = Place(
                tile.top + half * tiling.own_rows, n, tile.batch, tile.b_batch, tile.limit, group, thread,
                tiling.written_columns,
            )  # fmt: skip
            state = epilogue.begin(work.arguments, floats, place)
            if cutlass.const_expr(not tiling.cooperative):
                mainloop.barriers.turn(group).arrive_and_wait()
            read, released = mainloop.multiply(
                ready, (beginning, adding), accumulators, operands, steps, read, released, consumer
            )
            if cutlass.const_expr(not tiling.cooperative):
                # The next loaded tile belongs to the other warp group.
                read, released = skip_stages(read, steps), skip_stages(released, steps)
            epilogue.summed(state, floats, place)
            sums = accumulators[1]
            if cutlass.const_expr(tiling.split_k > 1):
                rows = cute.size(store.out, mode=[0]) - place.top
                memory = ready.a if cutlass.const_expr(partials is None) else partials
                slot = group if cutlass.const_expr(tiling.cooperative) else Int32(0)
                sums = reduce_parts(sums, memory, tiling, block.part, thread, slot, rows)
            if block.part < tiling.owners:
                epilogue.write(writing, self.instruction, sums, state, floats, store, place)
        epilogue.finish()
