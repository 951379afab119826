"""``out = exp(x - max(x)) / sum(exp(x - max(x)))``, row by row, computed in f32 and rounded once.

Memory is the limit: ``x`` is read once and ``out`` is written once, if a row fits into registers. A row that is too long
for registers is read twice. In the first pass each thread keeps the largest value so far and the sum relative to it, and
scales the sum down when it finds a larger value.
"""

from __future__ import annotations

import math

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

from .._device import ARCHS, DTYPES, add
from .._rows import LIMITED_TILINGS, RowKernel, RowTensors
from ..contracts.rows import softmax as contract

# Below every finite value. For a row of -inf the largest value is then finite, so x - largest is NaN only if x is.
LOWEST = -3.4028234663852886e38


def exponential(x):
    return cute.math.exp2(x * math.log2(math.e))


class Softmax(RowKernel):
    reductions = 2

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor):
        row, first, end = self.place(x)
        if cutlass.const_expr(self.tiling.looped):
            self.looped(x[row, None], out[row, None], first, end)
        else:
            self.held(x[row, None], out[row, None], first, end)

    @cute.jit
    def held(self, x: cute.Tensor, out: cute.Tensor, first, end):
        scratch = self.scratch()
        (x, out), end, (edge, edge_out), edge_end, _ = self.cut([x, out], first, end)
        held = self.load(x, first)
        largest = Float32(LOWEST)
        if cutlass.const_expr(self.tiling.shifted):
            ends = self.ends(2)
            last = ends.load(edge, first)
            largest = ends.largest(last, largest)
        largest = self.over_row(cute.arch.fmax, self.largest(held, largest), Float32(LOWEST), scratch, 0)
        powers = [exponential(chunk.load().to(Float32) - largest) for chunk in held]
        total = self.total(self.add_up(powers, first, end))
        if cutlass.const_expr(self.tiling.shifted):
            last_powers = [exponential(chunk.load().to(Float32) - largest) for chunk in last]
            total += ends.total(ends.add_up(last_powers, first, edge_end))
        total = self.over_row(add, total, Float32(0), scratch, 1)
        self.store(powers, 1 / total, out, first, end)
        if cutlass.const_expr(self.tiling.shifted):
            ends.store(last_powers, 1 / total, edge_out, first, edge_end)

    @cute.jit
    def looped(self, x: cute.Tensor, out: cute.Tensor, lane, end):
        steps = self.steps(cute.size(x))
        overall, total = self.read_once(x, steps, lane, end)
        for step in cutlass.range(steps):
            powers, first = self.read_again(x, steps, step, lane, overall)
            self.store(powers, 1 / total, out, first, end)

    @cute.jit
    def read_once(self, x: cute.Tensor, steps, lane, end):
        """The largest value of a row that registers do not hold, and the sum of the powers relative to it."""
        scratch = self.scratch()
        largest, total = Float32(LOWEST), Float32(0)
        for step in cutlass.range(steps):
            first = step * self.span() + lane
            largest, total = self.accumulate(self.load(x, first), largest, total, first, end)
        return self.combine(largest, total, scratch)

    def read_again(self, x: cute.Tensor, steps, step, lane, overall: Float32):
        """The powers of a step, and where it begins. Backwards: the caches still have what was read last."""
        first = (steps - 1 - step) * self.span() + lane
        return [exponential(chunk.load().to(Float32) - overall) for chunk in self.load(x, first)], first

    @cute.jit
    def accumulate(self, held: list[cute.Tensor], largest: Float32, total: Float32, first, end):
        """The largest value so far and the sum of the powers relative to it, with what a thread holds now."""
        before, largest = largest, self.largest(held, largest)
        powers = [exponential(chunk.load().to(Float32) - largest) for chunk in held]
        added = self.add_up(powers, first, end).reduce(cute.ReductionOp.ADD, Float32(0), 0)
        return largest, total * exponential(before - largest) + added

    @cute.jit
    def combine(self, largest: Float32, total: Float32, scratch):
        """The largest value of a row and the sum of the powers relative to it, from those of its threads."""
        overall = self.over_row(cute.arch.fmax, largest, Float32(LOWEST), scratch, 0)
        return overall, self.over_row(add, total * exponential(largest - overall), Float32(0), scratch, 1)

    def largest(self, held: list[cute.Tensor], largest: Float32) -> Float32:
        """The largest value, ignoring NaN. Chunks past the end repeat one of the row, so all of them count."""
        for chunk in held:
            values = chunk.load().to(Float32)
            for i in range(self.chunk):
                largest = cute.arch.fmax(largest, values[i])
        return largest

    @cute.jit
    def add_up(self, powers: list[cute.TensorSSA], first, end):
        total = self.full(0.0)
        for index, values in zip(self.indices(first), powers, strict=True):
            if index < end:
                total = total + values
        return total

    @cute.jit
    def store(self, powers: list[cute.TensorSSA], factor: Float32, out: cute.Tensor, first, end):
        for index, values in zip(self.indices(first), powers, strict=True):
            self.put_rounded(values * factor, out, index, end)

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: CUstream):
        rows, columns = x.shape
        if rows > 0 and columns > 0:  # CUDA refuses an empty grid
            self.launch(x, lambda own: own.kernel(x, out), stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x")),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(LIMITED_TILINGS)},
    contract=contract,
    backward=aot.Backward("softmax_backward", saves="out", gradients="x"),
)
def softmax(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """``out = softmax(x)`` over the last dimension, computed in f32."""
    rows = RowTensors(dtype, access == "vector")
    arguments = {"x": rows.matrix, "out": rows.matrix, "stream": aot.Stream()}
    return aot.Spec(Softmax(LIMITED_TILINGS[access], target, rows.chunk, rows.whole), arguments)
