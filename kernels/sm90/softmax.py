"""Both products of attention on Hopper: wgmma before and after the softmax, which is in ``attention/_softmax.py``.

A product is started here and waited for elsewhere, with ``warpgroup.wait_group``. Until then, nobody may touch its
accumulators and the registers of its left operand, nor release the stage that it reads. It is guaranteed that what threads
wrote to these registers before counts. The order in which the assembler waits is not: see :func:`weights_before_wait`.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.utils import hopper_helpers

from .hardware import WGMMA_ROWS


def score_product(dtype, tokens: int, queries=warpgroup.OperandSource.SMEM) -> cute.TiledMma:
    """``queries @ keys.T`` of one warp group, with queries from shared memory or from registers."""
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, OperandMajorMode.K, OperandMajorMode.K, Float32, (1, 1, 1), (WGMMA_ROWS, tokens), queries
    )


def value_product(dtype, columns: int, weights=warpgroup.OperandSource.RMEM) -> cute.TiledMma:
    """``weights @ values`` of one warp group, with weights from registers or from shared memory."""
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, OperandMajorMode.K, OperandMajorMode.MN, Float32, (1, 1, 1), (WGMMA_ROWS, columns), weights
    )


def issue_product(
    mma: cute.TiledMma, sums: cute.Tensor, a: cute.Tensor, b: cute.Tensor, fresh: bool, first: int = 0
) -> None:
    """``sums += a @ b.T``, or ``sums = a @ b.T`` if ``fresh``, without a commit. ``b`` may have more steps along k, ``first`` before."""
    atom = cute.make_mma_atom(mma.op)
    atom.set(warpgroup.Field.ACCUMULATE, not fresh)
    warpgroup.fence()  # registers that were written before are operands now
    for i in range(cute.size(a, mode=[2])):
        cute.gemm(atom, sums, a[None, None, i], b[None, None, first + i], sums)
        atom.set(warpgroup.Field.ACCUMULATE, True)


def start_product(
    mma: cute.TiledMma, sums: cute.Tensor, a: cute.Tensor, b: cute.Tensor, fresh: bool, first: int = 0
) -> None:
    """The same as a group of its own, for ``warpgroup.wait_group``."""
    issue_product(mma, sums, a, b, fresh, first)
    warpgroup.commit_group()


def left_operand(rounded: cute.Tensor, depth: int) -> cute.Tensor:
    """Registers in the order of accumulators as the left operand: two columns, two rows, two blocks of eight columns; then along k."""
    order = cute.make_layout(((2, 2, 2), 1, depth // 16), stride=((1, 2, 4), 0, 8))
    return cute.make_tensor(rounded.iterator, order)


@cute.jit
def weights_before_wait(totals):
    """Call this between a softmax and the wait for a product that runs beside it. ``totals`` are sums of weights.

    The condition is never true. Without it, the assembler waits for the product before it computes most of the weights.
    With it, all of them must be there first, because their sums are.
    """
    if totals[0] + totals[1] < 0.0:
        cute.arch.sync_warp()


@cute.jit
def all_before_wait(weights):
    """The same for weights that nobody adds up. No weight is negative, so the condition is never true."""
    bits = cute.recast_tensor(weights, Int32)
    any_bits = bits[0]
    for i in cutlass.range_constexpr(1, cute.size(bits)):
        any_bits = any_bits | bits[i]
    if any_bits < 0:
        cute.arch.sync_warp()
