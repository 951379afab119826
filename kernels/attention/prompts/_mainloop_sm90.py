"""The mainloop of attention on sm_90a: what a consumer warp group does with blocks of keys and values.

A warp group has 64 rows and needs nothing from the others. It takes one block of tokens after the other:

* ``scores = queries @ keys.T`` is the first product. Its accumulators stay in registers.
* The running softmax turns scores into weights: see ``_softmax``.
* ``sums += weights @ values`` is the second product. Weights are its left operand, straight from registers.

The tensor cores must not wait for the softmax. Two things see to that:

* **Within a warp group**, the first product of the next block starts before the second product of this one. While the
  second runs, the softmax of the next block is computed: see :meth:`Consumer.step`.
* **Between warp groups**, products are issued in pingpong order: while one warp group computes its softmax, the products
  of the others run.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, pipeline
from cutlass.cute.nvgpu import warpgroup

from ...sm90.hardware import WGMMA_ROWS, Barriers
from ...sm90.softmax import start_product, weights_before_wait
from .._softmax import round_to, scale_sums, softmax_step


@dataclass(frozen=True)
class Consumer:
    """What a consumer warp group multiplies with. ``view`` below masks scores: ``view.mask(scores, softmax, block, border)``."""

    keys: pipeline.PipelineTmaAsync
    values: pipeline.PipelineTmaAsync
    score_mma: cute.TiledMma
    sum_mma: cute.TiledMma
    query: cute.Tensor
    key: cute.Tensor
    value: cute.Tensor
    weights: cute.Tensor
    sums: cute.Tensor
    barriers: Barriers
    group: Int32

    def new_scores(self) -> cute.Tensor:
        tokens = cute.size(self.weights) * 128 // WGMMA_ROWS
        return cute.make_rmem_tensor(self.score_mma.partition_shape_C((WGMMA_ROWS, tokens)), Float32)

    @cute.jit
    def skip(self, k_state, v_state):
        """Leave a block to the other warp groups, but not the order of turns: none of this one's rows sees it.

        The stage must be full before it is released: else a release of this round might count for the round before.
        """
        self.keys.consumer_wait(k_state)
        self.barriers.turn(self.group).arrive_and_wait()
        self.pass_turn()
        self.keys.consumer_release(k_state)
        k_state.advance()
        self.values.consumer_wait(v_state)
        self.values.consumer_release(v_state)
        v_state.advance()
        return k_state, v_state

    def pass_turn(self) -> None:
        self.barriers.turn((self.group + 1) % self.barriers.groups).arrive()

    @cute.jit
    def first(self, view, softmax, block, k_state):
        """The first block has no second product of an earlier one to overlap with."""
        scores = self.new_scores()
        self.keys.consumer_wait(k_state)
        start_product(self.score_mma, scores, self.query, self.key[None, None, None, k_state.index], True)
        warpgroup.wait_group(0)
        self.keys.consumer_release(k_state)
        k_state.advance()
        view.mask(scores, softmax, block, "first")
        softmax_step(scores, softmax)
        round_to(self.weights, scores)
        return k_state

    @cute.jit
    def step(self, view, softmax, block, k_state, v_state, border: cutlass.Constexpr):
        """Add the values of the last block to the sums. Meanwhile, turn the scores of the next block into weights."""
        scores = self.new_scores()
        # Not after the turn: a warp group that waits for loads in its turn keeps the others from the tensor cores.
        self.keys.consumer_wait(k_state)
        self.barriers.turn(self.group).arrive_and_wait()
        start_product(self.score_mma, scores, self.query, self.key[None, None, None, k_state.index], True)
        self.values.consumer_wait(v_state)
        start_product(self.sum_mma, self.sums, self.weights, self.value[None, None, None, v_state.index], False)
        self.pass_turn()
        warpgroup.wait_group(1)  # for the scores, not for the sums
        self.keys.consumer_release(k_state)
        k_state.advance()
        view.mask(scores, softmax, block, border)
        factors, grown = softmax_step(scores, softmax)
        weights_before_wait(softmax.totals)
        warpgroup.wait_group(0)  # the last weights are no longer read: the next ones take their registers
        self.values.consumer_release(v_state)
        v_state.advance()
        round_to(self.weights, scores)
        if grown:
            scale_sums(self.sums, factors)
        return k_state, v_state

    @cute.jit
    def last(self, v_state):
        """Add the values of the last block."""
        self.values.consumer_wait(v_state)
        start_product(self.sum_mma, self.sums, self.weights, self.value[None, None, None, v_state.index], False)
        warpgroup.wait_group(0)
        self.values.consumer_release(v_state)
        v_state.advance()
        return v_state


def make_consumer(keys, values, mmas, queries, shared_k, shared_v, barriers: Barriers, group: Int32) -> Consumer:
    """``queries``: the rows of this warp group in shared memory. ``shared_k`` and ``shared_v``: the stages."""
    score_mma, sum_mma = mmas
    whole_scores, whole_sums = score_mma.get_slice(0), sum_mma.get_slice(0)
    query = score_mma.make_fragment_A(whole_scores.partition_A(queries))
    key = score_mma.make_fragment_B(whole_scores.partition_B(shared_k))
    value = sum_mma.make_fragment_B(whole_sums.partition_B(shared_v))
    columns, tokens = (cute.size(shared_v, mode=[i]) for i in range(2))
    weights = cute.make_rmem_tensor(sum_mma.partition_shape_A((WGMMA_ROWS, tokens)), shared_v.element_type)
    sums = cute.make_rmem_tensor(sum_mma.partition_shape_C((WGMMA_ROWS, columns)), Float32)
    return Consumer(keys, values, score_mma, sum_mma, query, key, value, weights, sums, barriers, group)
