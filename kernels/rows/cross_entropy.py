"""``loss = log(sum(exp(x))) - x[target]``, row by row, computed in f32: the cross entropy of logits and a class.

Memory is the limit: ``x`` is read once. As in the first pass of softmax over a long row, each thread keeps the largest
value so far and the sum of powers relative to it. Nothing is kept of a row, so rows may be as long as they like.
"""

from __future__ import annotations

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64

import aot

from .._device import ARCHS, DTYPES
from .._rows import STREAMED_TILINGS, RowTensors
from ..contracts.rows import cross_entropy as contract
from .softmax import LOWEST, Softmax


class CrossEntropy(Softmax):
    @cute.kernel
    def loss_kernel(self, x: cute.Tensor, classes: cute.Tensor, loss: cute.Tensor, ignored: Int64):
        row, lane, end = self.place(x)
        source = x[row, None]
        wanted, columns = classes[row], cute.size(source)
        largest, total = self.fold_row(CrossEntropy.fold, (Float32(LOWEST), Float32(0)), source, lane, end)
        exists = wanted >= 0 and wanted < columns
        logit = source[wanted if exists else Int64(0)].to(Float32)  # is on its way while the row is added up
        largest, total = self.combine(largest, total, self.scratch())
        if lane == 0 and end > 0:
            value = (largest - logit) + cute.math.log(total)
            value = value if exists else Float32(float("nan"))
            loss[row] = Float32(0) if wanted == ignored else value

    def fold(self, value: tuple[Float32, Float32], held: list[cute.Tensor], first: Int32, end: Int32) -> tuple:
        return self.accumulate(held, *value, first, end)

    @cute.jit
    def __call__(self, x: cute.Tensor, classes: cute.Tensor, loss: cute.Tensor, ignored: Int64, stream: CUstream):
        rows, _ = x.shape
        if rows > 0:  # CUDA refuses an empty grid
            self.launch(x, lambda own: own.loss_kernel(x, classes, loss, ignored), stream)


@aot.kernel(
    parameters=(
        aot.In("x", "logits"),
        aot.In("target", "the class of each row, below the number of columns; others give NaN"),
        aot.Out("loss", shape="(x.shape[0],)", dtype="f32"),
        aot.In("ignore_index", "a row of this class has a loss of zero", default=-100),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(STREAMED_TILINGS)},
    contract=contract,
    backward=aot.Backward("cross_entropy_backward", saves=("x", "target", "ignore_index"), gradients="x"),
)
def cross_entropy(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """``loss = log(sum(exp(x))) - x[target]`` for every row of ``x``, which must not be empty, computed in f32."""
    rows = RowTensors(dtype, access == "vector")
    arguments = {
        "x": rows.matrix,
        "target": aot.Tensor("i64", ("m",)),
        "loss": aot.Tensor("f32", ("m",)),
        "ignore_index": aot.Scalar("i64"),
        "stream": aot.Stream(),
    }
    return aot.Spec(CrossEntropy(STREAMED_TILINGS[access], target, rows.chunk, rows.whole), arguments, ("n >= 1",))
