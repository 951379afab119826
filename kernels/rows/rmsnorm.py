"""``out = x / sqrt(mean(x^2) + eps) * weight``, row by row, computed in f32 and rounded once.

Memory is the limit: ``x`` is read once and ``out`` is written once, if a row fits into registers until the sum of its
squares is known. So a row gets as many threads as can hold it, four chunks each, in several blocks if need be. A row that
is too long for them all is read twice, the second time mostly from a cache. All rows share ``weight``, which stays in the caches.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._device import ARCHS, DTYPES, add
from .._rows import PACKED_TILINGS, RowKernel, RowTensors
from ..contracts.rows import rmsnorm as contract


class RmsNorm(RowKernel):
    """``take`` returns the values of a row for the first pass, ``again`` the tensor of the second pass of a loop."""

    def take(self, sources: list[cute.Tensor], first: Int32, end: Int32) -> list[cute.Tensor]:
        """The chunks that a thread holds."""
        return self.load(sources[0], first)

    def again(self, sources: list[cute.Tensor]) -> cute.Tensor:
        return sources[0]

    @cute.kernel
    def kernel(
        self, read: list[cute.Tensor], weight: cute.Tensor, out: cute.Tensor, kept: list[cute.Tensor], eps, inverse
    ):
        """The sources of a row are those of the matrices that are ``read``, then of those where its values are ``kept``."""
        row, first, end = self.place(read[0])
        sources = [matrix[row, None] for matrix in (*read, *kept)]
        self.scale(sources, weight, out[row, None], eps, inverse, first, end)

    @cute.jit
    def scale(self, sources: list[cute.Tensor], weight: cute.Tensor, out: cute.Tensor, eps, inverse, first, end):
        if cutlass.const_expr(self.tiling.looped):
            self.scale_looped(sources, weight, out, eps, inverse, first, end)
        else:
            self.scale_held(sources, weight, out, eps, inverse, first, end)

    @cute.jit
    def scale_held(self, sources: list[cute.Tensor], weight: cute.Tensor, out: cute.Tensor, eps, inverse, first, end):
        rows, end, edges, edge_end, _ = self.cut([*sources, weight, out], first, end)
        held = self.take(rows[:-2], first, end)
        weights = (self.beside(rows[-2], index) for index in self.indices(first))
        if cutlass.const_expr(self.tiling.unroll <= 4):
            weights = list(weights)  # loaded now, if there are registers to keep them until then
        if cutlass.const_expr(self.tiling.shifted):
            ends = self.ends(len(edges))
            last, last_weights = ends.take(edges[:-2], first, edge_end), ends.load(edges[-2], first)
        total = self.total(self.add_squares(self.full(0.0), held, first, end))
        if cutlass.const_expr(self.tiling.shifted):
            total += ends.total(ends.add_squares(ends.full(0.0), last, first, edge_end))
        factor = self.factor(total, eps, inverse)
        self.store(held, weights, factor, rows[-1], first, end)
        if cutlass.const_expr(self.tiling.shifted):
            ends.store(last, last_weights, factor, edges[-1], first, edge_end)

    @cute.jit
    def scale_looped(self, sources: list[cute.Tensor], weight: cute.Tensor, out: cute.Tensor, eps, inverse, lane, end):
        steps = self.steps(cute.size(out))
        squares = self.full(0.0)
        for step in cutlass.range(steps):
            first = step * self.span() + lane
            squares = self.add_squares(squares, self.take(sources, first, end), first, end)
        factor = self.factor(self.total(squares), eps, inverse)
        # Backwards: the caches still have what was used last.
        for step in cutlass.range(steps):
            first = (steps - 1 - step) * self.span() + lane
            self.store(self.load(self.again(sources), first), self.load(weight, first), factor, out, first, end)

    @cute.jit
    def add_squares(self, squares: cute.TensorSSA, held: list[cute.Tensor], first, end):
        for index, chunk in zip(self.indices(first), held, strict=True):
            if index < end:
                values = chunk.load().to(Float32)
                squares = squares + values * values
        return squares

    @cute.jit
    def factor(self, total: Float32, eps: Float32, inverse: Float32) -> Float32:
        total = self.over_row(add, total, Float32(0), self.scratch(), 0)
        return cute.math.rsqrt(total * inverse + eps)

    @cute.jit
    def store(self, held: list[cute.Tensor], weights: list[cute.Tensor], factor, out, first, end):
        for index, chunk, weight in zip(self.indices(first), held, weights, strict=True):
            values = chunk.load().to(Float32) * factor * weight.load().to(Float32)
            self.put_rounded(values, out, index, end)

    @cute.jit
    def launch_any(self, read: list[cute.Tensor], weight, out, kept: list[cute.Tensor], eps: Float32, stream: CUstream):
        rows, columns = read[0].shape
        if rows > 0 and columns > 0:  # CUDA refuses an empty grid
            inverse = 1 / Float32(columns)
            self.launch(read[0], lambda own: own.kernel(read, weight, out, kept, eps, inverse), stream)

    @cute.jit
    def __call__(self, x: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, eps: Float32, stream: CUstream):
        self.launch_any([x], weight, out, [], eps, stream)


@aot.kernel(
    parameters=(
        aot.In("x"),
        aot.In("weight"),
        aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x"),
        aot.In("eps", default=1e-6),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(PACKED_TILINGS)},
    contract=contract,
    backward=aot.Backward("rmsnorm_backward", saves=("x", "weight", "eps"), gradients=("x", "weight")),
)
def rmsnorm(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """``out = x / sqrt(mean(x^2) + eps) * weight`` for every row of ``x``, computed in f32."""
    rows = RowTensors(dtype, access == "vector")
    x = rows.matrix
    arguments = {"x": x, "weight": rows.row, "out": x, "eps": aot.Scalar("f32"), "stream": aot.Stream()}
    return aot.Spec(RmsNorm(PACKED_TILINGS[access], target, rows.chunk, rows.whole), arguments)
