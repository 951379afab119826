"""The gradients of ``rmsnorm``, computed in f32 and rounded once.

With ``r = 1 / sqrt(mean(x^2) + eps)`` of a row and ``h = grad_out * weight``:
``grad_x = r * (h - x * r^2 * mean(h * x))`` and ``grad_weight = sum over rows of grad_out * x * r``.

Memory is the limit. One pass over ``grad_out`` and ``x`` computes both, if a block holds a row (see ``_fused``). For longer
rows ``grad_weight`` takes a pass of its own (see ``_norms``). ``r`` is computed again instead of being kept by the forward
kernel, because ``x`` is read anyway.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._device import ARCHS, DTYPES, store
from .._rows import ROW_TILINGS, RowTensors
from ..contracts.backward import rmsnorm_backward as contract
from ._fused import FusedRmsNormBackward
from ._norms import NormBackward, groups_of, partial_output, partial_tensor

# Shorter rows of whole chunks are those of `_fused`.
TILINGS = {**ROW_TILINGS, "vector": ROW_TILINGS["vector"][-3:]}


class RmsNormBackward(NormBackward):
    reductions = 2

    def __init__(self, access: str, target: aot.Target, chunk: int) -> None:
        super().__init__(TILINGS[access], target, chunk)
        self.fused = FusedRmsNormBackward(target, chunk) if access == "vector" else None

    def extents(self, matrices: list[cute.Tensor], grad_x: cute.Tensor) -> cute.Tensor:
        return grad_x

    @cute.jit
    def held(self, sources: list[cute.Tensor], target: cute.Tensor, eps, inverse, first, end) -> list[Float32]:
        scratch = self.scratch()
        held = [self.load(source, first) for source in sources]
        squares, products = self.add_up(self.full(0.0), self.full(0.0), held, first, end)
        factor, mean = self.finish(squares, products, scratch, eps, inverse)
        self.store(held, factor, mean, target, first, end)
        return [factor]

    @cute.jit
    def looped(self, sources: list[cute.Tensor], target: cute.Tensor, eps, inverse, lane, end) -> list[Float32]:
        scratch = self.scratch()
        steps = self.steps(cute.size(target))
        squares, products = self.full(0.0), self.full(0.0)
        for step in cutlass.range(steps):
            first = step * self.span() + lane
            held = [self.load(source, first) for source in sources]
            squares, products = self.add_up(squares, products, held, first, end)
        factor, mean = self.finish(squares, products, scratch, eps, inverse)
        # Backwards: the caches still have what was used last.
        for step in cutlass.range(steps):
            first = (steps - 1 - step) * self.span() + lane
            self.store([self.load(source, first) for source in sources], factor, mean, target, first, end)
        return [factor]

    @cute.jit
    def add_up(self, squares: cute.TensorSSA, products: cute.TensorSSA, held: list[list[cute.Tensor]], first, end):
        for index, grad, x, weight in zip(self.indices(first), *held[:3], strict=True):
            if index < end:
                values = x.load().to(Float32)
                squares = squares + values * values
                products = products + grad.load().to(Float32) * weight.load().to(Float32) * values
        return squares, products

    @cute.jit
    def finish(self, squares: cute.TensorSSA, products: cute.TensorSSA, scratch, eps, inverse):
        """``r``, and ``r^2 * mean(h * x)``."""
        factor = cute.math.rsqrt(self.sum_over_row(squares, scratch, 0) * inverse + eps)
        return factor, self.sum_over_row(products, scratch, 1) * inverse * factor * factor

    @cute.jit
    def store(self, held: list[list[cute.Tensor]], factor: Float32, mean: Float32, target, first, end):
        for index, grad, x, weight, *added in zip(self.indices(first), *held, strict=True):
            weighted = grad.load().to(Float32) * weight.load().to(Float32)
            values = factor * (weighted - x.load().to(Float32) * mean)
            for gradient in added:
                values = values + gradient.load().to(Float32)
            store(values, target, index, end, self.chunk)

    def terms(self, grad: cute.TensorSSA, x: cute.TensorSSA, statistics: list[cute.Tensor], row: Int32):
        return [grad * x * statistics[0][row]]

    @cute.jit
    def launch_all(self, matrices, weight, grad_x, grad_weight, factor, partial, eps, stream: CUstream):
        """``matrices``: the gradient of the result, ``x``, and a gradient to add, if there is one."""
        rows, columns = grad_x.shape
        apart = (matrices, weight, grad_x, [grad_weight], [factor], [partial], eps, stream)
        if columns > 0:  # CUDA refuses an empty grid
            if cutlass.const_expr(self.fused is None):
                self.launch_apart(*apart)
            else:
                if columns <= self.fused.widest:
                    if rows > 0:
                        self.fused.launch(matrices, weight, grad_x, factor, partial, eps, stream)
                    self.launch_finish([partial], [grad_weight], stream)
                else:
                    self.launch_apart(*apart)

    @cute.jit
    def __call__(
        self,
        grad_out: cute.Tensor,
        x: cute.Tensor,
        weight: cute.Tensor,
        grad_x: cute.Tensor,
        grad_weight: cute.Tensor,
        factor: cute.Tensor,
        partial: cute.Tensor,
        eps: Float32,
        stream: CUstream,
    ):
        self.launch_all([grad_out, x], weight, grad_x, grad_weight, factor, partial, eps, stream)


@aot.kernel(
    parameters=(
        aot.In("grad_out"),
        aot.In("x"),
        aot.In("weight"),
        aot.Out("grad_x", shape="x.shape", dtype="x.dtype"),
        aot.Out("grad_weight", shape="weight.shape", dtype="weight.dtype"),
        aot.Out("factor", "scratch: 1 / sqrt(mean(x^2) + eps) of each row", shape="(x.shape[0],)", dtype="f32"),
        partial_output("partial"),
        aot.In("eps", default=1e-6),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(ROW_TILINGS)},
    contract=contract,
)
def rmsnorm_backward(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """The gradients of ``rmsnorm`` by ``x`` and ``weight``, computed in f32. The order of all sums is fixed."""
    rows = RowTensors(dtype, access == "vector")
    x = rows.matrix
    arguments = {
        "grad_out": x, "x": x, "weight": rows.row, "grad_x": x, "grad_weight": rows.row,
        "factor": aot.Tensor("f32", ("m",)), "partial": partial_tensor(rows), "eps": aot.Scalar("f32"),
        "stream": aot.Stream(),
    }  # fmt: skip
    guards = (f"groups == {groups_of('m', 'n')}",)
    return aot.Spec(RmsNormBackward(access, target, rows.chunk), arguments, guards)
