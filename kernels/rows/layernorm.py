"""``out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias``, row by row, computed in f32, rounded once.

Memory is the limit: ``x`` is read once and ``out`` is written once, if a row fits into registers. The variance is
computed from the differences from the mean, so nothing cancels. A row that is too long for registers is therefore read
three times, the last two mostly from a cache. All rows share ``weight`` and ``bias``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._device import ARCHS, DTYPES, add
from .._rows import ALONE, HELD, LIMITED_TILINGS, PACKED, ROW_TILINGS, RowKernel, RowTensors, RowTiling
from ..contracts.rows import layernorm as contract

# If a row takes many threads, two or three blocks must fit on a multiprocessor, so that some load while others wait for a
# sum. Weights and biases are loaded late then, when registers are free. A row that just one block holds is better off
# without clusters. Measured on an H200: a matrix of 10116 x 4128 takes 49.3 us with as many threads as a row needs, and
# 70.8 us with 256.
TILINGS = {
    "vector": (
        *HELD,
        RowTiling(threads=576, unroll=4, blocks=2, counted=True),
        RowTiling(threads=512, unroll=4, blocks=3, shared=True),
        replace(ALONE, blocks=1),
        PACKED,
        ROW_TILINGS["vector"][-1],
    ),
    "scalar": tuple(
        replace(tiling, blocks=1) if tiling.threads == 1024 else tiling for tiling in LIMITED_TILINGS["scalar"]
    ),
}


class LayerNorm(RowKernel):
    reductions = 2

    @cute.kernel
    def kernel(self, x: cute.Tensor, weight: cute.Tensor, bias: cute.Tensor, out: cute.Tensor, eps, inverse):
        row, first, end = self.place(x)
        source, target = x[row, None], out[row, None]
        if cutlass.const_expr(self.tiling.looped):
            self.looped(source, weight, bias, target, eps, inverse, first, end)
        else:
            self.held(source, weight, bias, target, eps, inverse, first, end)

    @cute.jit
    def held(self, x: cute.Tensor, weight: cute.Tensor, bias: cute.Tensor, out: cute.Tensor, eps, inverse, first, end):
        scratch = self.scratch()
        (x, weight, bias, out), end, edges, edge_end, _ = self.cut([x, weight, bias, out], first, end)
        held = self.load(x, first)
        parameters = self.parameters(weight, bias, first)
        if cutlass.const_expr(self.tiling.blocks == 0):
            parameters = list(parameters)  # loaded now, if there are registers to keep them until then
        total = self.total(self.add_elements(self.full(0.0), held, first, end))
        if cutlass.const_expr(self.tiling.shifted):
            ends = self.ends(len(edges))
            last, last_parameters = ends.load(edges[0], first), list(ends.parameters(edges[1], edges[2], first))
            total += ends.total(ends.add_elements(ends.full(0.0), last, first, edge_end))
        mean = self.over_row(add, total, Float32(0), scratch, 0) * inverse
        total = self.total(self.add_squares(self.full(0.0), held, mean, first, end))
        if cutlass.const_expr(self.tiling.shifted):
            total += ends.total(ends.add_squares(ends.full(0.0), last, mean, first, edge_end))
        factor = cute.math.rsqrt(self.over_row(add, total, Float32(0), scratch, 1) * inverse + eps)
        self.store(held, parameters, mean, factor, out, first, end)
        if cutlass.const_expr(self.tiling.shifted):
            ends.store(last, last_parameters, mean, factor, edges[3], first, edge_end)

    @cute.jit
    def looped(self, x: cute.Tensor, weight: cute.Tensor, bias: cute.Tensor, out: cute.Tensor, eps, inverse, lane, end):
        scratch = self.scratch()
        steps = self.steps(cute.size(x))
        total = self.full(0.0)
        for step in cutlass.range(steps):
            first = step * self.span() + lane
            total = self.add_elements(total, self.load(x, first), first, end)
        mean = self.sum_over_row(total, scratch, 0) * inverse
        squares = self.full(0.0)
        # Backwards, then forwards: the caches still have what was read last.
        for step in cutlass.range(steps):
            first = (steps - 1 - step) * self.span() + lane
            squares = self.add_squares(squares, self.load(x, first), mean, first, end)
        factor = cute.math.rsqrt(self.sum_over_row(squares, scratch, 1) * inverse + eps)
        for step in cutlass.range(steps):
            first = step * self.span() + lane
            parameters = list(self.parameters(weight, bias, first))
            self.store(self.load(x, first), parameters, mean, factor, out, first, end)

    def parameters(self, weight: cute.Tensor, bias: cute.Tensor, first: Int32) -> Iterator[tuple[cute.Tensor, ...]]:
        """The weights and biases of the chunks that a thread holds, each loaded when the iterator reaches it."""
        for index in self.indices(first):
            yield self.beside(weight, index), self.beside(bias, index)

    @cute.jit
    def add_squares(self, squares: cute.TensorSSA, held: list[cute.Tensor], mean, first, end):
        for index, chunk in zip(self.indices(first), held, strict=True):
            if index < end:
                difference = chunk.load().to(Float32) - mean
                squares = squares + difference * difference
        return squares

    @cute.jit
    def store(self, held: list[cute.Tensor], parameters, mean, factor, out, first, end):
        for index, chunk, (weight, bias) in zip(self.indices(first), held, parameters, strict=True):
            normal = (chunk.load().to(Float32) - mean) * factor
            self.put_rounded(normal * weight.load().to(Float32) + bias.load().to(Float32), out, index, end)

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        weight: cute.Tensor,
        bias: cute.Tensor,
        out: cute.Tensor,
        eps: Float32,
        stream: CUstream,
    ):
        rows, columns = x.shape
        if rows > 0 and columns > 0:  # CUDA refuses an empty grid
            inverse = 1 / Float32(columns)
            self.launch(x, lambda own: own.kernel(x, weight, bias, out, eps, inverse), stream)


@aot.kernel(
    parameters=(
        aot.In("x"),
        aot.In("weight"),
        aot.In("bias"),
        aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x"),
        aot.In("eps", default=1e-5),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(TILINGS)},
    contract=contract,
    backward=aot.Backward("layernorm_backward", saves=("x", "weight", "eps"), gradients=("x", "weight", "bias")),
)
def layernorm(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """``out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`` for every row of ``x``, computed in f32."""
    rows = RowTensors(dtype, access == "vector")
    x = rows.matrix
    arguments = {
        "x": x, "weight": rows.row, "bias": rows.row, "out": x, "eps": aot.Scalar("f32"), "stream": aot.Stream()
    }  # fmt: skip
    return aot.Spec(LayerNorm(TILINGS[access], target, rows.chunk, rows.whole), arguments)
