"""The ``k`` largest elements of each row, in descending order, and their indices; of equal elements the first ones.

A row belongs to a warp. Its lanes hold the row, and ``k`` times the largest element that is left is taken. Elements are
ordered by integers (:func:`order_key`) and by their index, so the result is the same in every run.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64

import aot

from .._device import ARCHS, DTYPES, WARP, KernelObject, await_previous, launched_early
from ..contracts import top_k as contract
from ._order import NO_KEY, order_key

LAST = 0x7FFFFFFF  # no element has a larger index
ROWS = 4  # of a block
HELD, GROUP = 16, 4  # elements of a row in a lane, and how many of them are skipped together if the row has none there


class TopK(KernelObject):
    """Rows of at most ``WARP * HELD`` elements, of which at most ``WARP`` are taken."""

    def __init__(self, target: aot.Target) -> None:
        self.early = launched_early(target)

    @cute.kernel
    def kernel(self, x: cute.Tensor, values: cute.Tensor, indices: cute.Tensor, k: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rows, columns = x.shape
        lane, row = thread % WARP, block * ROWS + thread // WARP
        await_previous(self.early)
        source = x[cutlass.min(row, rows - 1), None]
        keys = cute.make_rmem_tensor(HELD, Int32)
        for i in cutlass.range_constexpr(HELD):
            index = i * WARP + lane
            key = order_key(source[cutlass.min(index, columns - 1)].to(Float32))
            keys[i] = key if index < columns else Int32(NO_KEY)
        taken = Int32(0)  # the index that this lane writes
        for turn in cutlass.range(k):
            index = self.largest(keys, columns, lane)
            taken = index if lane == turn else taken
            self.remove(keys, columns, lane, index)
        if row < rows and lane < k:
            values[row, lane] = source[taken]
            indices[row, lane] = Int64(taken)

    @cute.jit
    def largest(self, keys: cute.Tensor, columns: Int32, lane: Int32) -> Int32:
        """The index of the largest key that the lanes of a warp have, the first one of equal keys."""
        key, index = keys[0], lane
        for group in cutlass.range_constexpr(0, HELD, GROUP):
            if group * WARP < columns:
                for i in cutlass.range_constexpr(group, group + GROUP):
                    if keys[i] > key:
                        key, index = keys[i], i * WARP + lane
        top = cute.arch.warp_redux_sync(key, "max")
        return cute.arch.warp_redux_sync(index if key == top else Int32(LAST), "min")

    @cute.jit
    def remove(self, keys: cute.Tensor, columns: Int32, lane: Int32, index: Int32):
        for group in cutlass.range_constexpr(0, HELD, GROUP):
            if group * WARP < columns:
                for i in cutlass.range_constexpr(group, group + GROUP):
                    if i * WARP + lane == index:
                        keys[i] = Int32(NO_KEY)

    @cute.jit
    def __call__(self, x: cute.Tensor, values: cute.Tensor, indices: cute.Tensor, k: Int32, stream: CUstream):
        rows, _ = x.shape
        if rows > 0:  # CUDA refuses an empty grid
            self.kernel(x, values, indices, k).launch(
                grid=[cute.ceil_div(rows, ROWS), 1, 1], block=[WARP * ROWS, 1, 1], use_pdl=self.early, stream=stream
            )


@aot.kernel(
    parameters=(
        aot.In("x"),
        aot.Out("values", shape="(x.shape[0], k)", dtype="x.dtype"),
        aot.Out("indices", shape="(x.shape[0], k)", dtype="i64"),
        aot.In("k", f"how many, from 1 to {WARP}, and at most as many as `x` has columns"),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES},
    reference=contract.reference,
    inputs=contract.inputs,
    cost=contract.cost,
)
def top_k(target: aot.Target, dtype: str) -> aot.Spec:
    """The ``k`` largest elements of every row of ``x``, of at most 512 columns, and their indices; NaN is the largest."""
    values, indices = (aot.Tensor(kind, ("m", "taken")) for kind in (dtype, "i64"))
    x = aot.Tensor(dtype, ("m", "n"))
    arguments = {"x": x, "values": values, "indices": indices, "k": aot.Scalar("i32"), "stream": aot.Stream()}
    guards = ("taken == k", "k >= 1", "k <= n", f"k <= {WARP}", f"n <= {WARP * HELD}")
    return aot.Spec(TopK(target), arguments, guards)
