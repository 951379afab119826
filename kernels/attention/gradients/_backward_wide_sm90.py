"""Gradients of attention for sm_90a with wide heads: the two consumer warp groups have the same 64 keys, and different products.

The accumulators of ``grad_k`` and ``grad_v`` for 64 keys of 256 elements take half of the registers of a warp group each. So one
group, *values*, computes ``P`` and ``grad_v``; the other, *keys*, computes ``dS`` and ``grad_k``. For each block of 64 queries:

* values: ``scores = k @ q.T``, which become ``P``. It hands ``P``, rounded, over in shared memory, and adds ``grad_v += P @ grad_out``.
* keys: ``slopes = v @ grad_out.T``, which become ``dS`` with ``P``. It writes ``dS`` to shared memory, and adds ``grad_k += dS @ q``.
* Both compute half of the columns of ``grad_q = dS.T @ k``, and hand them on in two rounds, because shared memory has no room
  for more. For the same reason, ``grad_out`` has one stage.

While one group computes exponentials, the other multiplies. As in ``_backward_sm90``, the sums of ``grad_q`` are f32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import warpgroup
from cutlass.pipeline import NamedBarrier

import aot

from ..._versions import SmemAllocator
from ...sm90.hardware import (
    BARRIER_BYTES,
    CONSUMER_REGISTERS,
    CONSUMERS,
    WARP_GROUP,
    WGMMA_ROWS,
    accumulator_row,
)
from ...sm90.pipeline import consumer_state
from ...sm90.softmax import score_product, start_product, value_product
from .._softmax import scale_sums
from ..prompts._attention import ELEMENT_BYTES, Tile
from ..prompts._store_sm90 import Place
from ._backward import CHUNK, SLAB, column_of, require_room
from ._backward_fused_sm90 import FusedBackward, Memory
from ._backward_tma_sm90 import STAGES, thread_of_group, turned
from ._grad_q_sm90 import PART, Adder, query_product


@dataclass(frozen=True)
class Tiling:
    """64 keys against 64 queries at a time."""

    dim: int
    value_dim: int
    givers = 2
    # What is handed on of ``grad_q``, for ``Adder``.
    queries = PART
    rounds = 2
    slope_stages = 1
    slices = 1
    between = 0
    turned = False  # its columns are columns

    @property
    def label(self) -> str:
        return f"wide{self.rows}x{self.columns}"

    @property
    def rows(self) -> int:
        return WGMMA_ROWS

    @property
    def columns(self) -> int:
        return self.queries

    @property
    def parts(self) -> tuple[int, int]:
        """Columns of ``grad_q`` that the warp groups compute."""
        return self.dim // CONSUMERS, self.dim // CONSUMERS

    @property
    def shared_bytes(self) -> int:
        elements = self.rows * self.columns
        return (
            (self.rows + STAGES * self.columns) * self.dim * ELEMENT_BYTES
            + (self.rows + self.columns) * self.value_dim * ELEMENT_BYTES
            + 2 * elements * ELEMENT_BYTES  # ``P`` and ``dS``
            + self.columns * (self.dim // self.rounds) * 4  # of ``grad_q``
            + 2 * STAGES * self.columns * 4
            + 32 * BARRIER_BYTES
        )

    def validate(self, target: aot.Target) -> None:
        if self.dim % (CONSUMERS * PART):
            raise aot.DeclarationError(f"{self.dim} elements", hint=f"they come in {CONSUMERS * PART}s")
        require_room(self, f"rows and {STAGES} stages", target)


class Products(NamedTuple):
    scores: cute.TiledMma  # and slopes
    grad_k: cute.TiledMma
    grad_v: cute.TiledMma
    grad_q: cute.TiledMma


@dataclass(frozen=True)
class Consumer:
    """What a consumer warp group multiplies: ``left @ right.T``, then what becomes of it times ``across``, then ``dS.T @ k``."""

    scores: cute.TiledMma
    sum_mma: cute.TiledMma
    query_mma: cute.TiledMma
    left: cute.Tensor
    right: cute.Tensor
    across: cute.Tensor
    slopes: cute.Tensor
    key_part: cute.Tensor
    sums: cute.Tensor
    weights: cute.Tensor  # what this thread hands over, or gets, of ``P``
    adder: Adder
    place: Place


class WideBackward(FusedBackward):
    value_stages = 1

    def slabs(self) -> tuple[Any, tuple[int, int]]:
        count = self.tiling.dim // self.tiling.rounds // SLAB
        return cute.make_layout((PART, SLAB, count), stride=(SLAB, 1, PART * SLAB)), (PART, SLAB)

    def products(self) -> Products:
        tiling, dtype = self.tiling, self.dtype
        return Products(
            score_product(dtype, tiling.columns),
            *(value_product(dtype, width) for width in (tiling.dim, tiling.value_dim)),
            query_product(dtype, tiling.parts[0]),
        )

    # The consumers.

    @cute.jit
    def consume(self, mmas, memory, operands, scoring, scale, statistics, side, tile, group):
        cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
        shared = memory.shared
        if group == 1:
            consumer = self.consumer(mmas, memory, of_keys=False)
            self.add_values(consumer, memory.pipes, shared, scoring, side, tile)
            stored = (consumer.sums, consumer.sum_mma, shared.row_values, operands.value_gradient)
            self.store_all(consumer.place, [stored], side, tile)
        else:
            consumer = self.consumer(mmas, memory, of_keys=True)
            self.add_keys(consumer, memory.pipes, shared, memory.slopes, side, tile)
            scale_sums(consumer.sums, [scale, scale])
            stored = (consumer.sums, consumer.sum_mma, shared.rows, operands.gradient)
            self.store_all(consumer.place, [stored], side, tile)

    def shared_weights(self, allocator: SmemAllocator) -> cute.Tensor:
        """``P`` in shared memory. The accumulators of a thread are those of the same thread of the other group."""
        own = WGMMA_ROWS * self.tiling.columns // WARP_GROUP
        layout = cute.make_layout((CHUNK, own // CHUNK, WARP_GROUP), stride=(1, CHUNK * WARP_GROUP, CHUNK))
        return allocator.allocate_tensor(self.dtype, layout, 128)[None, None, thread_of_group()]

    def consumer(self, mmas: Products, memory: Memory, of_keys: bool) -> Consumer:
        _, shared, slopes, adder, weights = memory
        i = int(of_keys)
        sum_mma, query_mma = (mmas.grad_v, mmas.grad_k)[i], mmas.grad_q
        left, right = shared[i][None, None, 0], shared[2 + i]  # keys with queries, or values with ``grad_out``
        across = turned(shared[3 - i])
        keys = cute.local_tile(turned(shared.rows), (self.tiling.parts[0], self.tiling.rows), (i, 0, 0))
        shape = sum_mma.partition_shape_C((WGMMA_ROWS, cute.size(across, mode=[0])))
        return Consumer(
            mmas.scores,
            sum_mma,
            query_mma,
            mmas.scores.make_fragment_A(mmas.scores.get_slice(0).partition_A(left)),
            mmas.scores.make_fragment_B(mmas.scores.get_slice(0).partition_B(right)),
            sum_mma.make_fragment_B(sum_mma.get_slice(0).partition_B(across)),
            query_mma.make_fragment_A(query_mma.get_slice(0).partition_A(slopes.memory)),
            query_mma.make_fragment_B(query_mma.get_slice(0).partition_B(keys)),
            cute.make_rmem_tensor(shape, Float32),
            weights,
            adder,
            Place(Int32(i), thread_of_group(), Int32(0), Int32(0), 1),
        )

    def weights_handed(self) -> NamedBarrier:
        """Where the group of values hands ``P`` to the group of keys."""
        after_adder = self.barriers.free + 1 + 2 * CONSUMERS
        return NamedBarrier(barrier_id=after_adder, num_threads=CONSUMERS * WARP_GROUP)

    def scored(self, consumer: Consumer) -> cute.Tensor:
        shape = consumer.scores.partition_shape_C((WGMMA_ROWS, self.tiling.columns))
        return cute.make_rmem_tensor(shape, Float32)

    def start_queries(self, consumer: Consumer) -> cute.Tensor:
        """Start this group's columns of ``grad_q``."""
        shape = consumer.query_mma.partition_shape_C((WGMMA_ROWS, self.tiling.parts[0]))
        grad_q = cute.make_rmem_tensor(shape, Float32)
        start_product(consumer.query_mma, grad_q, consumer.slopes[None, None, None, 0], consumer.key_part, True)
        return grad_q

    def hand(self, consumer: Consumer, grad_q: cute.Tensor, tile: Tile) -> None:
        """Hand this group's columns of ``grad_q`` to the warp that adds them."""
        place, rounds = consumer.place, self.tiling.rounds
        odd = (accumulator_row(place.thread) + (tile.first_query if self.ragged else 0)) % 2
        size = cute.size(grad_q) // rounds
        for i in range(rounds):
            some = cute.make_tensor(grad_q.iterator + i * size, cute.make_layout(size))
            consumer.adder.hand(some, place, place.group * (self.tiling.parts[0] // rounds // SLAB), odd)

    @cute.jit
    def add_values(self, consumer, pipes, shared, scoring, side, tile):
        """The sums of ``grad_v``, and the first columns of ``grad_q``."""
        blocks, state, value_state = side.blocks(tile), consumer_state(STAGES), consumer_state(self.value_stages)
        consumer.sums.fill(0.0)
        row = tile.index * self.tiling.rows + accumulator_row(consumer.place.thread)
        outer, inner = side.loops(tile, blocks)
        for i in cutlass.range(outer, unroll=1):
            for j in cutlass.range(inner, unroll=1):
                block, _ = side.columns_at(tile, blocks, i, j)
                stage, scores = state.index, self.scored(consumer)
                pipes.columns.consumer_wait(state)
                start_product(consumer.scores, scores, consumer.left, consumer.right[None, None, None, stage], True)
                lse = self.statistics_of_columns(shared.statistics, 0, stage)
                warpgroup.wait_group(0)  # for the scores
                cute.arch.sync_warp()  # all lanes have read the statistics
                pipes.columns.consumer_release(state)
                side.mask(scores, tile, blocks, block, row)
                for n in cutlass.range_constexpr(cute.size(scores)):
                    scores[n] = cute.math.exp2(scores[n] * scoring.scale - lse[column_of(n)], fastmath=True)
                weights = self.rounded(consumer.sum_mma, scores)
                handed = cute.make_tensor(weights.iterator, cute.make_layout(consumer.weights.shape))
                cute.autovec_copy(handed, consumer.weights)
                # The group of keys waits here and reads ``P``; this one goes on. It writes the next ``P`` after
                # ``barriers_of_all``, before which the other group has read this one.
                self.weights_handed().arrive()
                pipes.column_values.consumer_wait(value_state)
                start_product(consumer.sum_mma, consumer.sums, weights, consumer.across[None, None, None, 0], False)
                self.barriers_of_all().arrive_and_wait()  # ``dS`` is there
                grad_q = self.start_queries(consumer)
                warpgroup.wait_group(1)  # for ``grad_v``, not for ``grad_q``
                pipes.column_values.consumer_release(value_state)
                warpgroup.wait_group(0)
                self.hand(consumer, grad_q, tile)
                state.advance()
                value_state.advance()

    @cute.jit
    def add_keys(self, consumer, pipes, shared, shared_slopes, side, tile):
        """The sums of ``grad_k``, and the other columns of ``grad_q``."""
        blocks, state, value_state = side.blocks(tile), consumer_state(STAGES), consumer_state(self.value_stages)
        consumer.sums.fill(0.0)
        outer, inner = side.loops(tile, blocks)
        for _ in cutlass.range(outer, unroll=1):
            for _turn in cutlass.range(inner, unroll=1):
                stage, slopes = state.index, self.scored(consumer)
                pipes.column_values.consumer_wait(value_state)
                start_product(consumer.scores, slopes, consumer.left, consumer.right[None, None, None, 0], True)
                pipes.columns.consumer_wait(state)
                delta = self.statistics_of_columns(shared.statistics, 1, stage)
                warpgroup.wait_group(0)  # for the slopes
                pipes.column_values.consumer_release(value_state)
                self.weights_handed().arrive_and_wait()  # ``P`` is there
                weights = cute.make_rmem_tensor(consumer.weights.shape, self.dtype)
                cute.autovec_copy(consumer.weights, weights)
                for i in cutlass.range_constexpr(cute.size(slopes)):
                    slopes[i] = weights[i].to(Float32) * (slopes[i] - delta[column_of(i)])
                gradients = self.rounded(consumer.sum_mma, slopes)
                shared_slopes.write(gradients, consumer.scores, consumer.place.thread, 0, 0, 0, self.tiling.columns)
                cute.arch.fence_proxy("async.shared", space="cta")  # wgmma reads what threads have written
                self.barriers_of_all().arrive_and_wait()  # all of this group have written, and the other one knows
                grad_q = self.start_queries(consumer)
                across = consumer.across[None, None, None, stage]
                start_product(consumer.sum_mma, consumer.sums, gradients, across, False)
                warpgroup.wait_group(1)  # for ``grad_q``, not for ``grad_k``
                self.hand(consumer, grad_q, tile)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()  # all lanes have read the statistics
                pipes.columns.consumer_release(state)
                state.advance()
                value_state.advance()
