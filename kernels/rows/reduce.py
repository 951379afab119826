"""``out = op(x)`` over the last dimension, for a reduction that the caller names; f32 inside, rounded once.

Memory is the limit: ``x`` is read once, and ``out`` is small. The kernel is compiled for each reduction. To add one,
write a class and add a line to ``OPS``.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

from .._device import ARCHS, DTYPES
from ..contracts import reduce as contract
from ._rows import STREAMED_TILINGS, RowKernel, RowTensors, RowTiling, add, maximum, row_specs


class Reduction:
    """How two values combine, the neutral element, and what is done with the final value."""

    initial = 0.0
    combine = staticmethod(add)

    @staticmethod
    def finish(value: Float32, columns) -> Float32:
        return value


class Sum(Reduction):
    pass


class Mean(Reduction):
    @staticmethod
    def finish(value: Float32, columns) -> Float32:
        return value / Float32(columns)


class Max(Reduction):
    """The largest element; NaN if one is NaN."""

    initial = float("-inf")
    combine = staticmethod(maximum)


OPS = {"sum": Sum, "max": Max, "mean": Mean}


class Reduce(RowKernel):
    def __init__(self, tiling: RowTiling, target: aot.Target, chunk: int, op: type[Reduction]) -> None:
        super().__init__(tiling, target, chunk)
        self.op = op

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor):
        row, lane, end = self.place(x)
        source = x[row, None]
        value = Float32(self.op.initial)
        if cutlass.const_expr(self.tiling.looped):
            for step in cutlass.range(self.steps(cute.size(source))):
                first = step * self.span() + lane
                value = self.fold(value, self.load_past_cache(source, first), first, end)
        else:
            value = self.fold(value, self.load_past_cache(source, lane), lane, end)
        value = self.op.finish(
            self.over_row(self.op.combine, value, Float32(self.op.initial), self.scratch(), 0), cute.size(source)
        )
        if lane == 0 and end > 0:
            out[row] = value.to(out.element_type)

    @cute.jit
    def fold(self, value: Float32, held: list[cute.Tensor], first, end):
        for index, chunk in zip(self.indices(first), held, strict=True):
            if index < end:
                value = self.op.combine(value, self.tree(chunk.load().to(Float32)))
        return value

    def tree(self, values: cute.TensorSSA) -> Float32:
        """The values of a chunk, combined in pairs: fewer dependent steps and smaller errors."""
        left = [values[i] for i in range(self.chunk)]
        while len(left) > 1:
            left = [self.op.combine(left[i], left[i + 1]) for i in range(0, len(left), 2)]
        return left[0]

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: CUstream):
        rows, _ = x.shape
        if rows > 0:  # CUDA refuses an empty grid
            self.kernel(x, out).launch(**self.grid(x), stream=stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="(x.shape[0],)", dtype="x.dtype")),
    archs=ARCHS,
    choices={"op": OPS},
    axes={"dtype": DTYPES, "access": tuple(STREAMED_TILINGS)},
    reference=contract.reference,
    inputs=contract.inputs,
    cost=contract.cost,
)
def reduce(target: aot.Target, op: type[Reduction], dtype: str, access: str) -> list[aot.Spec]:
    """``out = op(x)`` over the last dimension, which has an element at least; ``op`` is sum, max or mean."""
    rows = RowTensors(dtype, access == "vector")
    arguments = {
        "x": rows.matrix,
        "out": aot.Tensor(dtype, ("m",)),
        "stream": aot.Stream(),
    }
    make = lambda tiling, target, chunk: Reduce(tiling, target, chunk, op)  # noqa: E731
    return row_specs(target, STREAMED_TILINGS[access], rows.chunk, make, arguments, ("n >= 1",))
