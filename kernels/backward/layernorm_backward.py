"""The gradients of ``layernorm``, computed in f32 and rounded once.

With ``r = 1 / sqrt(variance(x) + eps)`` of a row, ``d = x - mean(x)`` and ``h = grad_out * weight``:
``grad_x = r * (h - mean(h) - d * r^2 * mean(h * d))``, ``grad_weight = sum over rows of grad_out * d * r`` and
``grad_bias = sum over rows of grad_out``.

Memory is the limit. ``grad_x`` takes one pass over ``grad_out`` and ``x``, if a row fits into registers, otherwise ``x``
is read three times, mostly from a cache. The gradients of the parameters take another pass (see ``_norms``).
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._device import ARCHS, DTYPES, store
from .._rows import ROW_TILINGS, RowTensors, RowTiling
from ..contracts.backward import layernorm_backward as contract
from ._norms import NormBackward, groups_of, partial_output, partial_tensor

# A loop keeps three sums and reads three tensors: two chunks of each at a time, so that registers suffice.
TILINGS = {
    **ROW_TILINGS,
    "vector": (*ROW_TILINGS["vector"][:-1], RowTiling(threads=512, unroll=2, looped=True, shared=True)),
}


class LayerNormBackward(NormBackward):
    reductions = 4

    @cute.jit
    def held(self, sources: list[cute.Tensor], target: cute.Tensor, eps, inverse, first, end):
        scratch = self.scratch()
        held = [self.load(source, first) for source in sources]
        mean = self.sum_over_row(self.add_elements(self.full(0.0), held[1], first, end), scratch, 0) * inverse
        sums = self.add_products(self.full(0.0), self.full(0.0), self.full(0.0), held, mean, first, end)
        factor, weighted_mean, slope = self.finish(sums, scratch, eps, inverse)
        self.store(held, mean, factor, weighted_mean, slope, target, first, end)
        return mean, factor

    @cute.jit
    def looped(self, sources: list[cute.Tensor], target: cute.Tensor, eps, inverse, lane, end):
        scratch = self.scratch()
        steps = self.steps(cute.size(target))
        total = self.full(0.0)
        for step in cutlass.range(steps):
            first = step * self.span() + lane
            total = self.add_elements(total, self.load(sources[1], first), first, end)
        mean = self.sum_over_row(total, scratch, 0) * inverse
        squares, weighted, products = self.full(0.0), self.full(0.0), self.full(0.0)
        # Backwards, then forwards: the caches still have what was read last.
        for step in cutlass.range(steps):
            first = (steps - 1 - step) * self.span() + lane
            held = [self.load(source, first) for source in sources]
            squares, weighted, products = self.add_products(squares, weighted, products, held, mean, first, end)
        factor, weighted_mean, slope = self.finish((squares, weighted, products), scratch, eps, inverse)
        for step in cutlass.range(steps):
            first = step * self.span() + lane
            held = [self.load(source, first) for source in sources]
            self.store(held, mean, factor, weighted_mean, slope, target, first, end)
        return mean, factor

    @cute.jit
    def add_products(self, squares, weighted, products, held: list[list[cute.Tensor]], mean, first, end):
        """Sums of ``d * d``, of ``h``, and of ``h * d``."""
        for index, grad, x, weight in zip(self.indices(first), *held, strict=True):
            if index < end:
                difference = x.load().to(Float32) - mean
                squares = squares + difference * difference
                term = grad.load().to(Float32) * weight.load().to(Float32)
                weighted = weighted + term
                products = products + term * difference
        return squares, weighted, products

    @cute.jit
    def finish(self, sums, scratch, eps, inverse):
        """``r``, ``mean(h)``, and ``r^2 * mean(h * d)``."""
        squares, weighted, products = sums
        factor = cute.math.rsqrt(self.sum_over_row(squares, scratch, 1) * inverse + eps)
        weighted_mean = self.sum_over_row(weighted, scratch, 2) * inverse
        return factor, weighted_mean, self.sum_over_row(products, scratch, 3) * inverse * factor * factor

    @cute.jit
    def store(self, held: list[list[cute.Tensor]], mean, factor, weighted_mean, slope, target, first, end):
        for index, grad, x, weight in zip(self.indices(first), *held, strict=True):
            centered = grad.load().to(Float32) * weight.load().to(Float32) - weighted_mean
            difference = x.load().to(Float32) - mean
            store(factor * (centered - difference * slope), target, index, end, self.chunk)

    def terms(self, grad: cute.TensorSSA, x: cute.TensorSSA, statistics: list[cute.Tensor], row: Int32):
        means, factors = statistics
        return [grad * (x - means[row]) * factors[row], grad]

    @cute.jit
    def __call__(
        self,
        grad_out: cute.Tensor,
        x: cute.Tensor,
        weight: cute.Tensor,
        grad_x: cute.Tensor,
        grad_weight: cute.Tensor,
        grad_bias: cute.Tensor,
        mean: cute.Tensor,
        factor: cute.Tensor,
        partial_weight: cute.Tensor,
        partial_bias: cute.Tensor,
        eps: Float32,
        stream: CUstream,
    ):
        _, columns = x.shape
        sums, partials = [grad_weight, grad_bias], [partial_weight, partial_bias]
        if columns > 0:  # CUDA refuses an empty grid
            self.launch_apart([grad_out, x], weight, grad_x, sums, [mean, factor], partials, eps, stream)


@aot.kernel(
    parameters=(
        aot.In("grad_out"),
        aot.In("x"),
        aot.In("weight"),
        aot.Out("grad_x", shape="x.shape", dtype="x.dtype"),
        aot.Out("grad_weight", shape="weight.shape", dtype="weight.dtype"),
        aot.Out("grad_bias", shape="weight.shape", dtype="weight.dtype"),
        aot.Out("mean", "scratch: mean(x) of each row", shape="(x.shape[0],)", dtype="f32"),
        aot.Out("factor", "scratch: 1 / sqrt(variance(x) + eps) of each row", shape="(x.shape[0],)", dtype="f32"),
        partial_output("partial_weight"),
        partial_output("partial_bias"),
        aot.In("eps", default=1e-5),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(TILINGS)},
    contract=contract,
)
def layernorm_backward(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """The gradients of ``layernorm`` by ``x``, ``weight`` and ``bias``, in f32. The order of all sums is fixed."""
    rows = RowTensors(dtype, access == "vector")
    x, row, statistic, partial = rows.matrix, rows.row, aot.Tensor("f32", ("m",)), partial_tensor(rows)
    arguments = {
        "grad_out": x, "x": x, "weight": row, "grad_x": x, "grad_weight": row, "grad_bias": row, "mean": statistic,
        "factor": statistic, "partial_weight": partial, "partial_bias": partial, "eps": aot.Scalar("f32"),
        "stream": aot.Stream(),
    }  # fmt: skip
    guards = (f"groups == {groups_of('m', 'n')}",)
    return aot.Spec(LayerNormBackward(TILINGS[access], target, rows.chunk), arguments, guards)
