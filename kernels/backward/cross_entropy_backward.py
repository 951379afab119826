"""The gradient of ``cross_entropy``: ``grad_x = grad_loss * (softmax(x) - one_hot(target))``, row by row, computed in f32.

Memory is the limit: ``x`` is read once and ``grad_x`` is written once, if a row fits into registers. Rows that are too long
for a cluster of blocks are read twice, and so are many long rows. ``grad_x`` may be ``x``: nobody needs logits once their
gradient is known.
"""

from __future__ import annotations

from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64

import aot

from .._device import ARCHS, DTYPES, add, store
from .._rows import ROW_TILINGS, RowTensors, RowTiling
from ..contracts.backward import cross_entropy_backward as contract
from ..rows.softmax import LOWEST, Softmax, exponential

# Clusters that hold long rows wait for each other: if there are many rows, a block reads each twice. On an H200, 8192 rows of
# 128,256 take 1.4 ms, and 1.7 with clusters.
MANY = 256  # rows
*_HELD, _SHARED, _LOOPED = ROW_TILINGS["vector"]
TILINGS = {
    **ROW_TILINGS,
    "vector": (
        *_HELD,
        replace(_SHARED, most_rows=MANY),
        replace(_LOOPED, most_rows=MANY),
        RowTiling(threads=512, unroll=4, looped=True, blocks=2),
    ),
}


class CrossEntropyBackward(Softmax):
    @cute.kernel
    def gradient_kernel(
        self, grad_loss: cute.Tensor, x: cute.Tensor, classes: cute.Tensor, grad_x: cute.Tensor, ignored: Int64
    ):
        row, first, end = self.place(x)
        scale, wanted, columns = grad_loss[row], classes[row], cute.size(x[row, None])
        exists = wanted >= 0 and wanted < columns
        scale = scale if exists else Float32(float("nan"))
        if cutlass.const_expr(self.tiling.looped):
            self.looped_gradient(x[row, None], grad_x[row, None], scale, Int32(wanted), wanted == ignored, first, end)
        else:
            self.held_gradient(x[row, None], grad_x[row, None], scale, Int32(wanted), wanted == ignored, first, end)

    @cute.jit
    def held_gradient(self, x: cute.Tensor, out: cute.Tensor, scale: Float32, wanted: Int32, ignored, first, end):
        scratch = self.scratch()
        held = self.load(x, first)
        largest = self.largest(held, Float32(LOWEST))
        largest = self.over_row(cute.arch.fmax, largest, Float32(LOWEST), scratch, 0)
        powers = [exponential(chunk.load().to(Float32) - largest) for chunk in held]
        total = self.over_row(add, self.total(self.add_up(powers, first, end)), Float32(0), scratch, 1)
        self.store_gradient(powers, 1 / total, scale, wanted, ignored, out, first, end)

    @cute.jit
    def looped_gradient(self, x: cute.Tensor, out: cute.Tensor, scale: Float32, wanted: Int32, ignored, lane, end):
        steps = self.steps(cute.size(x))
        overall, total = self.read_once(x, steps, lane, end)
        for step in cutlass.range(steps):
            powers, first = self.read_again(x, steps, step, lane, overall)
            self.store_gradient(powers, 1 / total, scale, wanted, ignored, out, first, end)

    @cute.jit
    def store_gradient(
        self, powers: list[cute.TensorSSA], factor: Float32, scale: Float32, wanted: Int32, ignored, out, first, end
    ):
        for index, values in zip(self.indices(first), powers, strict=True):
            gradient = cute.make_rmem_tensor((self.chunk,), Float32)
            for i in cutlass.range_constexpr(self.chunk):
                hit = Float32(cutlass.select_(index * self.chunk + i == wanted, Float32(1), Float32(0)))
                gradient[i] = Float32(cutlass.select_(ignored, Float32(0), scale * (values[i] * factor - hit)))
            store(gradient.load(), out, index, end, self.chunk)

    @cute.jit
    def __call__(
        self,
        grad_loss: cute.Tensor,
        x: cute.Tensor,
        classes: cute.Tensor,
        grad_x: cute.Tensor,
        ignored: Int64,
        stream: CUstream,
    ):
        rows, _ = x.shape
        if rows > 0:  # CUDA refuses an empty grid
            self.launch(x, lambda own: own.gradient_kernel(grad_loss, x, classes, grad_x, ignored), stream)


@aot.kernel(
    parameters=(
        aot.In("grad_loss"),
        aot.In("x", "logits"),
        aot.In("target", "the class of each row, below the number of columns; others give NaN"),
        aot.Out("grad_x", shape="x.shape", dtype="x.dtype", may_be="x"),
        aot.In("ignore_index", "a row of this class has a gradient of zero", default=-100),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(TILINGS)},
    contract=contract,
)
def cross_entropy_backward(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """The gradient of ``cross_entropy`` by ``x``, computed in f32."""
    rows = RowTensors(dtype, access == "vector")
    arguments = {
        "grad_loss": aot.Tensor("f32", ("m",)),
        "x": rows.matrix,
        "target": aot.Tensor("i64", ("m",)),
        "grad_x": rows.matrix,
        "ignore_index": aot.Scalar("i64"),
        "stream": aot.Stream(),
    }
    return aot.Spec(CrossEntropyBackward(TILINGS[access], target, rows.chunk), arguments, ("n >= 1",))
