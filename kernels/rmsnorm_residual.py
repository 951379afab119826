"""``residual_out = x + residual`` and ``out = rmsnorm(residual_out) * weight``, in one pass.

Memory is the limit: both inputs are read once and both outputs written once, as long as a row waits in
registers for the sum of its squares. The sum ``x + residual`` is rounded before its squares are added, so
that ``out`` is the norm of what ``residual_out`` says. A row too long for a block is read again from there.
``residual_out`` may be ``residual``, and ``out`` may be ``x``: a thread reads what it will overwrite.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

from ._device import ARCHS, DTYPES, ROW_TILINGS, VECTOR_BYTES, chunk_elements, row_specs
from .contracts import rmsnorm_residual as contract
from .rmsnorm import RmsNorm


class RmsNormResidual(RmsNorm):
    @cute.kernel
    def residual_kernel(
        self,
        x: cute.Tensor,
        residual: cute.Tensor,
        weight: cute.Tensor,
        out: cute.Tensor,
        residual_out: cute.Tensor,
        eps: Float32,
        inverse: Float32,
    ):
        row, first, end = self.place(x)
        x, residual, out, residual_out = x[row, None], residual[row, None], out[row, None], residual_out[row, None]
        if cutlass.const_expr(self.tiling.looped):
            self.add_looped(x, residual, weight, out, residual_out, eps, inverse, first, end)
        else:
            self.add_held(x, residual, weight, out, residual_out, eps, inverse, first, end)

    @cute.jit
    def add_held(self, x, residual, weight, out, residual_out, eps, inverse, first, end):
        sums = self.sums(self.load_once(x, first), self.load_once(residual, first))
        weights = self.load(weight, first)
        self.keep(sums, residual_out, first, end)
        factor = self.factor(self.add_squares(self.full(0.0), sums, first, end), eps, inverse)
        self.store(sums, weights, factor, out, first, end)

    @cute.jit
    def add_looped(self, x, residual, weight, out, residual_out, eps, inverse, lane, end):
        steps = self.steps(cute.size(x))
        squares = self.full(0.0)
        for step in cutlass.range(steps):
            first = step * self.tiling.chunks + lane
            sums = self.sums(self.load_once(x, first), self.load_once(residual, first))
            self.keep(sums, residual_out, first, end)
            squares = self.add_squares(squares, sums, first, end)
        factor = self.factor(squares, eps, inverse)
        # Backwards: what was written last is what the caches still have. A thread reads only what it wrote,
        # but for chunks past the end, which it does not use.
        for step in cutlass.range(steps):
            first = (steps - 1 - step) * self.tiling.chunks + lane
            self.store(self.load(residual_out, first), self.load(weight, first), factor, out, first, end)

    def sums(self, left: list[cute.Tensor], right: list[cute.Tensor]) -> list[cute.Tensor]:
        """Chunks added and rounded."""
        made = []
        for one, other in zip(left, right, strict=True):
            chunk = cute.make_rmem_tensor(self.chunk, one.element_type)
            chunk.store((one.load().to(Float32) + other.load().to(Float32)).to(one.element_type))
            made.append(chunk)
        return made

    @cute.jit
    def keep(self, sums: list[cute.Tensor], row: cute.Tensor, first, end):
        for index, chunk in zip(self.indices(first), sums, strict=True):
            if index < end:
                cute.autovec_copy(chunk, cute.local_tile(row, (self.chunk,), (index,)))

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        residual: cute.Tensor,
        weight: cute.Tensor,
        out: cute.Tensor,
        residual_out: cute.Tensor,
        eps: Float32,
        stream: CUstream,
    ):
        rows, columns = x.shape
        if rows > 0 and columns > 0:  # CUDA refuses an empty grid
            self.residual_kernel(x, residual, weight, out, residual_out, eps, 1 / Float32(columns)).launch(
                **self.grid(rows), stream=stream
            )


@aot.kernel(
    parameters=(
        aot.In("x"),
        aot.In("residual"),
        aot.In("weight"),
        aot.Out("out", shape="x.shape", dtype="x.dtype", may_be=("x", "residual")),
        aot.Out("residual_out", shape="x.shape", dtype="x.dtype", may_be=("x", "residual")),
        aot.In("eps", default=1e-6),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(ROW_TILINGS)},
    reference=contract.reference,
    inputs=contract.inputs,
    cost=contract.cost,
)
def rmsnorm_residual(target: aot.Target, dtype: str, access: str) -> list[aot.Spec]:
    """``residual_out = x + residual``, and ``out = rmsnorm(residual_out) * weight``, row by row."""
    chunk = chunk_elements(dtype, access == "vector")
    columns, align = aot.Dim("n", divisible_by=chunk), VECTOR_BYTES if access == "vector" else None
    x, weight = aot.Tensor(dtype, ("m", columns), align=align), aot.Tensor(dtype, (columns,), align=align)
    arguments = {
        "x": x, "residual": x, "weight": weight, "out": x, "residual_out": x, "eps": aot.Scalar("f32"),
        "stream": aot.Stream(),
    }  # fmt: skip
    return row_specs(target, ROW_TILINGS[access], chunk, RmsNormResidual, arguments)
