"""``out = op(x)`` over the last dimension, for a reduction that the caller names; f32 inside, rounded once.

Memory is the limit: ``x`` is read once, and ``out`` is small. The reduction is a number that dispatch passes, so all of
them share one kernel, in which every thread takes the same branch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._device import ARCHS, DTYPES, add, maximum
from .._rows import STREAMED_TILINGS, RowKernel, RowTensors, RowTiling
from ..contracts.rows import reduce as contract


def _tilings(access: str) -> tuple[RowTiling, ...]:
    """A row that 128 threads hold has as many, because counting them takes longer.

    Threads read six chunks at once of few long rows of odd widths: 98 x 11473 in bf16 take 3.0 us, and 3.8 us with four.
    """
    *others, longer, longest = STREAMED_TILINGS[access]
    longest = replace(longest, unroll=6) if longest.shifted else longest
    return *others, RowTiling(threads=128, unroll=4, shifted=longer.shifted), longer, longest


TILINGS = {access: _tilings(access) for access in STREAMED_TILINGS}

SUM, MAX, MEAN = range(3)  # the largest element is NaN if one is NaN
OPS = {"sum": SUM, "max": MAX, "mean": MEAN}


class Reduce(RowKernel):
    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor, op: Int32):
        row, lane, end = self.place(x)
        source = x[row, None]
        largest = op == MAX
        neutral = Float32(float("-inf")) if largest else Float32(0)
        value = neutral
        if largest:
            value = self.fold_row(partial(Reduce.fold, combine=maximum), value, source, lane, end)
        else:
            value = self.fold_row(partial(Reduce.fold, combine=add), value, source, lane, end)

        def combine(left: Float32, right: Float32) -> Float32:
            return Float32(cutlass.select_(largest, maximum(left, right), left + right))

        value = self.over_row(combine, value, neutral, self.scratch(), 0)
        value = value / Float32(cute.size(source)) if op == MEAN else value
        if lane == 0 and end > 0:
            out[row] = value.to(out.element_type)

    @cute.jit
    def fold(self, value: Float32, held: list[cute.Tensor], first: Int32, end: Int32, combine) -> Float32:
        for index, chunk in zip(self.indices(first), held, strict=True):
            if index < end:
                value = combine(value, self.tree(combine, chunk.load().to(Float32)))
        return value

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, op: Int32, stream: CUstream):
        rows, _ = x.shape
        if rows > 0:  # CUDA refuses an empty grid
            self.launch(x, lambda own: own.kernel(x, out, op), stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="(x.shape[0],)", dtype="x.dtype")),
    archs=ARCHS,
    choices={"op": OPS},
    axes={"dtype": DTYPES, "access": tuple(TILINGS)},
    contract=contract,
)
def reduce(target: aot.Target, op: int, dtype: str, access: str) -> aot.Spec:
    """``out = op(x)`` over the last dimension, which has an element at least; ``op`` is sum, max or mean."""
    rows = RowTensors(dtype, access == "vector")
    arguments = {
        "x": rows.matrix,
        "out": aot.Tensor(dtype, ("m",)),
        "op": aot.Constant(op),
        "stream": aot.Stream(),
    }
    return aot.Spec(Reduce(TILINGS[access], target, rows.chunk, rows.whole), arguments, ("n >= 1",))
