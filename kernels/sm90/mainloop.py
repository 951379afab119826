"""The mainloop of a product: a producer warp loads tiles of ``a`` and ``b``, consumer warp groups multiply them.

There are two. :class:`Mainloop` lets the tensor cores sum a whole tile. :class:`PromotedMainloop` adds their sums to f32
registers every few steps, because the tensor cores truncate sums of f8 and of TF32 products: of f8 products, they drop what
is below 2**-13 of the largest addend.

What a mainloop guarantees: consumers multiply stages in the order in which the producer loads them; a stage is released
only when the instructions that read it have ended; and :meth:`Mainloop.multiply` returns with complete sums.

A subclass may load more operands, such as scales. It then states how many warps and threads take part, allocates shared
memory for them, and gives the other warps of the producer's group their work (:meth:`Mainloop.assist`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.utils import hopper_helpers

import aot

from .._device import policy_of_weights
from . import hardware as hw
from .pipeline import consumer_state, producer_state
from .scheduler import Block, Tile, TileScheduler, Work, this_block
from .tiling import Tiling


class Types(NamedTuple):
    """What the operands are, known when compiling."""

    a: Any  # dtype
    b: Any
    a_layout: Any  # row- or column-major
    b_layout: Any
    out: Any


class Loads(NamedTuple):
    """How TMA copies both operands, from where, and the stages that it copies to."""

    copy_a: cute.CopyAtom
    a: cute.Tensor
    shared_a: cute.Tensor
    copy_b: cute.CopyAtom
    b: cute.Tensor
    shared_b: cute.Tensor


class Ready(NamedTuple):
    """Stages as consumers read them: the pipeline, or pipelines, they come through, and the operands in them."""

    full: Any
    a: cute.Tensor
    b: cute.Tensor
    stages: int
    scales: Any = None  # of blocks, if they come with each stage


class Consumer(NamedTuple):
    """A thread of a consumer warp group."""

    group: Int32
    thread: Int32  # of its warp group
    half: Int32  # which half of the rows of a tile its group has; 0 if it has all
    side: Int32  # the same for columns


# LLVM decides. Mainloops whose stages hold little work, or that make consumers wait for more than tiles, were up to 11%
# slower on an H200 if the producer's loop was not unrolled: the producer is then what the others wait for.
UNROLLED = -1


@dataclass(frozen=True)
class Mainloop:
    """The tensor cores sum a whole tile."""

    tiling: Tiling

    threads = hw.THREADS
    registers = hw.PRODUCER_REGISTERS, hw.CONSUMER_REGISTERS
    producers = 1  # arrivals that make a stage full, beside its bytes
    barriers = hw.Barriers()

    # Shared memory.

    @property
    def reading_warps(self) -> int:
        """Warps of a block that read each loaded stage."""
        return self.tiling.reading_warps

    @property
    def stage_head_bytes(self) -> int:
        """What a stage needs before the tiles, which are aligned: its mbarriers."""
        return 2 * hw.BARRIER_BYTES

    @property
    def extra_bytes(self) -> int:
        """Shared memory beside stages and epilogue."""
        return 0

    most_stages = 64
    # How often LLVM repeats a step of the producer's loop over ``k``; see UNROLLED.
    unrolled_loads = 1

    def stages(self, target: aot.Target, epilogue_bytes: int) -> int:
        """Stages that fit into shared memory beside the epilogue's, and beside partial sums."""
        others = epilogue_bytes + self.tiling.partial_bytes + self.extra_bytes
        fits = [
            stages
            for stages in range(1, self.most_stages + 1)
            if -(-stages * self.stage_head_bytes // hw.ALIGNMENT) * hw.ALIGNMENT
            + stages * self.tiling.stage_bytes
            + others
            <= target.shared_memory
        ]
        return max(fits, default=0)

    def validate(self, target: aot.Target, stages: int, epilogue_bytes: int) -> None:
        """Raise :class:`aot.DeclarationError` unless the tile fits into shared memory."""
        tiling = self.tiling
        if stages < 2:
            raise aot.DeclarationError(
                f"two stages of {tiling.stage_bytes} bytes and {epilogue_bytes} for the epilogue; "
                f"a block of {target.arch} has {target.shared_memory}"
            )
        if not tiling.own_partials and tiling.partial_sums * Float32.width // 8 > stages * tiling.stage_bytes:
            raise aot.DeclarationError(f"the sums of {tiling.m} x {tiling.n} do not fit into the stages")

    def allocate_head(self, shared, stages: int):
        """What comes with each stage and lies before the tiles: here, nothing."""

    def ready(self, shared, full, loads: Loads, head, stages: int) -> Ready:
        """What consumers read: here, stages as they were loaded."""
        return Ready(full, loads.shared_a, loads.shared_b, stages)

    # The instruction.

    def instruction(self, types: Types, columns: int) -> cute.TiledMma:
        """The instruction that multiplies 64 rows with this number of columns."""
        majors = types.a_layout.sm90_mma_major_mode(), types.b_layout.sm90_mma_major_mode()
        return hopper_helpers.make_trivial_tiled_mma(
            types.a, types.b, *majors, Float32, (1, 1, 1), (hw.WGMMA_ROWS, columns)
        )

    # Producing.

    def steps(self, part, depth):
        """The steps along ``k`` of which a block computes the sum; beyond the last one, TMA loads zeros."""
        at_once, split = max(self.tiling.promoted, 1), self.tiling.split_k
        sums = cute.ceil_div(depth, self.tiling.k * at_once)
        return sums * part // split * at_once, sums * (part + 1) // split * at_once

    def tiles_of_a(self, loads: Loads, tile: Tile, block: Block):
        """This block's share of what is loaded of ``a`` for a tile: where to, by stage, and where from, by step.

        Rows that are not loaded keep old values. They only produce rows of the output that do not exist.
        """
        tiling = self.tiling
        shape = (tiling.loaded_rows, tiling.k)
        rows = cute.domain_offset((tile.top, 0), loads.a[None, None, tile.batch])
        source, shared_a = cute.local_tile(rows, shape, (0, None)), cute.local_tile(loads.shared_a, shape, (0, 0, None))
        return cpasync.tma_partition(
            loads.copy_a,
            block.column,
            cute.make_layout(tiling.cluster_n),
            cute.group_modes(shared_a, 0, 2),
            cute.group_modes(source, 0, 2),
        )

    def tiles_of_b(self, loads: Loads, block: Block):
        """The same for ``b``: where to, by stage, and where from, by tile, step and batch."""
        tiling = self.tiling
        source = cute.local_tile(loads.b, (tiling.b_tile, tiling.k), (None, None, None))
        return cpasync.tma_partition(
            loads.copy_b,
            block.row if tiling.b_shares > 1 else 0,
            cute.make_layout(tiling.b_shares),
            cute.group_modes(loads.shared_b, 0, 2),
            cute.group_modes(source, 0, 2),
        )

    @cute.jit
    def prefetch(self, loads: Loads, scheduler: TileScheduler, work: Work):
        """Prefetch the weights that this block loads first into the L2 cache while the previous kernel still runs.

        Nothing is read yet, and what the previous kernel writes goes to the same cache: it does not matter whether this
        comes before or after.
        """
        tiling, block = self.tiling, this_block(self.tiling)
        begin, end = self.steps(block.part, work.depth)
        tile = scheduler.first_tile(work, block)
        if cutlass.const_expr(tiling.swapped):
            copy, (_, source) = loads.copy_a, self.tiles_of_a(loads, tile, block)
        else:
            copy, (_, tiles) = loads.copy_b, self.tiles_of_b(loads, block)
            source = tiles[None, tile.n, None, tile.b_batch]
        for k in cutlass.range(begin, cutlass.min(end, begin + tiling.prefetched_steps)):
            cute.prefetch(copy, source[None, k])

    @cute.jit
    def produce(self, full, loads: Loads, scheduler: TileScheduler, work: Work):
        """One warp: load the tiles of ``a`` and ``b``, in the order in which they are multiplied.

        Loops over ``k`` are not unrolled, here and in :meth:`multiply`. LLVM would unroll them two to four times. On an H200,
        that is no faster for operands of 16 bits and of f8, and a product takes a sixth longer to compile.
        """
        tiling, block = self.tiling, this_block(self.tiling)
        begin, end = self.steps(block.part, work.depth)
        to_b, tiles_of_b = self.tiles_of_b(loads, block)
        # The blocks that receive a tile of `a` are in the same row of the cluster, those of `b` in the same column.
        same_row = sum(1 << tiling.cluster_m * i for i in range(tiling.cluster_n))
        to_row = (Int32(same_row) << block.row).to(cutlass.Int16) if tiling.cluster_n > 1 else None
        same_column = (1 << tiling.cluster_m) - 1
        shift = block.column * tiling.cluster_m
        to_column = (Int32(same_column) << shift).to(cutlass.Int16) if tiling.cluster_m > 1 else None
        of_weights = policy_of_weights(scheduler.weights_read_once(work.tiles, work.offsets))
        of_a, of_b = (of_weights, None) if tiling.swapped else (None, of_weights)
        state = producer_state(full.num_stages)
        first, before = Int32(0), Int32(0)
        for index in cutlass.range(block.first, work.count, block.step):
            tile, first, before = scheduler.find(index, work, block, first, before)
            to_a, from_a = self.tiles_of_a(loads, tile, block)
            from_b = tiles_of_b[None, tile.n, None, tile.b_batch]
            for k in cutlass.range(begin, end, unroll=self.unrolled_loads):
                # Wait until the stage is empty, then tell its mbarrier how many bytes will arrive. Consumers of other blocks
                # release it, too: what this block multicasts must not overwrite what they still read.
                full.producer_acquire(state)
                barrier = full.producer_get_barrier(state)
                a_stage, b_stage = to_a[None, state.index], to_b[None, state.index]
                cute.copy(
                    loads.copy_a, from_a[None, k], a_stage, tma_bar_ptr=barrier, mcast_mask=to_row, cache_policy=of_a
                )
                b_copy = {"tma_bar_ptr": barrier, "mcast_mask": to_column, "cache_policy": of_b}
                if cutlass.const_expr(tiling.b_shares < tiling.cluster_m):  # blocks multicast whole tiles, by turns
                    if k % tiling.cluster_m == block.row:
                        cute.copy(loads.copy_b, from_b[None, k], b_stage, **b_copy)
                else:
                    cute.copy(loads.copy_b, from_b[None, k], b_stage, **b_copy)
                state.advance()
        # A block must not end while others still release its stages.
        full.producer_tail(state)

    def assist(self, warp, loads: Loads, full, ready: Ready, scheduler: TileScheduler, work: Work) -> None:
        """What warps do that neither issue copies nor multiply: here, nothing."""

    # Consuming.

    @property
    def product_rows(self) -> int:
        """Rows of a tile that a warp group multiplies at once."""
        return self.tiling.own_rows

    @cute.jit
    def fragments(self, mma, ready: Ready, consumer: Consumer):
        """What a warp group multiplies, by blocks of :attr:`product_rows` of its own."""
        tiling, whole, rows = self.tiling, mma.get_slice(0), self.product_rows
        blocks = tiling.own_rows // rows
        own_b = cute.local_tile(ready.b, (tiling.own_columns, tiling.k), (consumer.side, 0, None))
        b = mma.make_fragment_B(whole.partition_B(own_b))
        operands = []
        for i in cutlass.range_constexpr(blocks):
            own_a = cute.local_tile(ready.a, (rows, tiling.k), (consumer.half * blocks + i, 0, None))
            operands.append((mma.make_fragment_A(whole.partition_A(own_a)), b))
        return operands

    @cute.jit
    def accumulators(self, mma):
        """Registers of the tensor cores, and those that have the sums in the end."""
        sums = cute.make_rmem_tensor(mma.partition_shape_C((self.tiling.own_rows, self.tiling.own_columns)), Float32)
        return sums, sums

    def states(self, ready: Ready):
        """Of the stages that are read, and of those that are released; the latter lags behind by a step."""
        return consumer_state(ready.stages), consumer_state(ready.stages)

    @cute.jit
    def start_product(self, beginning, adding, sums, operands, stage, opening: cutlass.Constexpr):
        """Multiply the content of one stage. The first product of a sum overwrites the old one."""
        a, b = operands
        # wgmma reads accumulators asynchronously: what threads did with these registers must have ended.
        warpgroup.fence()
        for i in cutlass.range_constexpr(cute.size(a, mode=[2])):
            at = (None, None, i, stage)
            if cutlass.const_expr(opening and i == 0):
                cute.gemm(beginning, sums, a[at], b[at], sums)
            else:
                cute.gemm(adding, sums, a[at], b[at], sums)
        warpgroup.commit_group()

    @cute.jit
    def multiply(self, ready: Ready, mmas, accumulators, operands, steps, read, released, consumer: Consumer):
        """The sums of one tile. While one product runs, the stage of the previous one is released."""
        full, (beginning, adding), (sums, _) = ready.full, mmas, accumulators
        full.consumer_wait(read)
        self.start_product(beginning, adding, sums, operands[0], read.index, True)
        read.advance()
        for _ in cutlass.range(1, steps, unroll=1):
            full.consumer_wait(read)
            self.start_product(beginning, adding, sums, operands[0], read.index, False)
            read.advance()
            warpgroup.wait_group(1)  # for the product before the one that was just started: its stage is free
            full.consumer_release(released)
            released.advance()
        if cutlass.const_expr(not self.tiling.cooperative):
            # The last product has started. After it, the tensor cores belong to the other warp group.
            self.barriers.turn(1 - consumer.group).arrive()
        warpgroup.wait_group(0)  # the sums are complete
        full.consumer_release(released)
        released.advance()
        return read, released


@dataclass(frozen=True)
class PromotedMainloop(Mainloop):
    """Every ``tiling.promoted`` steps, sums are added up in f32 registers, while the other warp group multiplies."""

    @property
    def product_rows(self) -> int:
        return hw.WGMMA_ROWS  # one block of rows after the other, so that few registers are added at a time

    @property
    def steps_unrolled(self) -> int:
        """Additions in the body of the loop.

        With two blocks of rows, ptxas needs fewer registers if two are in it: then it has none in memory.
        """
        return self.tiling.parts

    @cute.jit
    def accumulators(self, mma):
        tiling = self.tiling
        sums = cute.make_rmem_tensor(mma.partition_shape_C((hw.WGMMA_ROWS, tiling.own_columns)), Float32)
        return sums, cute.make_rmem_tensor(mma.partition_shape_C((tiling.own_rows, tiling.own_columns)), Float32)

    @cute.jit
    def multiply(self, ready: Ready, mmas, accumulators, operands, steps, read, released, consumer: Consumer):
        at_once = self.tiling.promoted
        _, promoted = accumulators
        promoted.fill(0.0)
        for first in cutlass.range(0, steps, self.steps_unrolled * at_once, unroll=1):
            for i in cutlass.range_constexpr(self.steps_unrolled):
                if first + i * at_once < steps:
                    read, released = self.add_steps(ready, mmas, accumulators, operands, read, released, consumer)
        if cutlass.const_expr(not self.tiling.cooperative):
            # No product of this warp group runs. The other one multiplies while this one stores.
            self.barriers.turn(1 - consumer.group).arrive()
        return read, released

    @cute.jit
    def add_steps(self, ready: Ready, mmas, accumulators, operands, read, released, consumer: Consumer):
        """Multiply the content of one or more stages, release them, and add the product to the sums in f32."""
        full, (sums, promoted), stages, count = ready.full, accumulators, [], self.tiling.promoted
        first, factors = read.index, None
        for _ in cutlass.range_constexpr(count):
            stages.append(read.clone())
            read.advance()
        for part in cutlass.range_constexpr(len(operands)):
            for i in cutlass.range_constexpr(count):
                if cutlass.const_expr(part == 0):
                    full.consumer_wait(stages[i])
                    if cutlass.const_expr(i == 0):
                        # Not after the products: ptxas puts the loads before the last of these, which then waits for
                        # them. Products with scales of blocks were slower by 4% in the mean on an H200, some by a fifth.
                        factors = self.factors(ready, first, consumer)
                self.start_product(*mmas, sums, operands[part], stages[i].index, i == 0)
            if cutlass.const_expr(part < len(operands) - 1):
                warpgroup.wait_group(0)  # the sums of these rows; the next ones are multiplied with the same stages
            else:
                for i in cutlass.range_constexpr(count):
                    warpgroup.wait_group(count - 1 - i)  # each stage is released as soon as it is read
                    full.consumer_release(stages[i])
            self.promote(promoted, sums, factors, part)
        self.release_factors(first)
        return read, released

    def factors(self, ready: Ready, stage, consumer: Consumer):
        """What sums of a step are multiplied with before they are added: here, nothing."""

    def release_factors(self, stage) -> None:
        """The factors of a stage are no longer read."""

    @cute.jit
    def promote(self, promoted, sums, factors, part: cutlass.Constexpr):
        """Add what the tensor cores summed for a block of rows."""
        start = part * cute.size(sums)
        for v in cutlass.range_constexpr(cute.size(sums)):
            promoted[start + v] = promoted[start + v] + sums[v]
