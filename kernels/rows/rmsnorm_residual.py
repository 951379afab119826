"""``residual_out = x + residual`` and ``out = rmsnorm(residual_out) * weight``, in one pass.

Memory is the limit: both inputs are read once and both outputs are written once, if a row fits into registers until the
sum of its squares is known. The sum ``x + residual`` is rounded before its squares are added, so ``out`` is the norm of
the values in ``residual_out``. A row that is too long for registers is read again from there. ``residual_out`` may be
``residual``, and ``out`` may be ``x``, because each thread reads an element before it overwrites it.
"""

from __future__ import annotations

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._device import ARCHS, DTYPES
from .._rows import WIDE_TILINGS, RowTensors
from ..contracts.rows import rmsnorm_residual as contract
from .rmsnorm import RmsNorm


class RmsNormResidual(RmsNorm):
    """The sources of a row are ``x``, ``residual`` and ``residual_out``. The values are written to ``residual_out``."""

    def take(self, sources: list[cute.Tensor], first: Int32, end: Int32) -> list[cute.Tensor]:
        x, residual, residual_out = sources
        held = [
            self.rounded_sum(*pair) for pair in zip(self.load(x, first), self.load_beside(residual, first), strict=True)
        ]
        self.keep(held, residual_out, first, end)
        return held

    def again(self, sources: list[cute.Tensor]) -> cute.Tensor:
        # A thread reads only what it wrote, except for chunks past the end, which it does not use.
        return sources[2]

    def rounded_sum(self, left: cute.Tensor, right: cute.Tensor) -> cute.Tensor:
        chunk = cute.make_rmem_tensor((self.chunk,), left.element_type)
        chunk.store((left.load().to(Float32) + right.load().to(Float32)).to(left.element_type))
        return chunk

    @cute.jit
    def keep(self, held: list[cute.Tensor], row: cute.Tensor, first, end):
        for index, chunk in zip(self.indices(first), held, strict=True):
            self.put(chunk, row, index, end)

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
        self.launch_any([x, residual], weight, out, [residual_out], eps, stream)


GRADIENTS = "rmsnorm_residual_backward(grad_out, grad_residual_out, residual_out, weight, eps)"


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
    axes={"dtype": DTYPES, "access": tuple(WIDE_TILINGS)},
    contract=contract,
    backward=aot.Composed(x=f"{GRADIENTS}[0]", residual=f"{GRADIENTS}[0]", weight=f"{GRADIENTS}[1]"),
)
def rmsnorm_residual(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """``residual_out = x + residual``, and ``out = rmsnorm(residual_out) * weight``, row by row."""
    rows = RowTensors(dtype, access == "vector")
    x = rows.matrix
    arguments = {
        "x": x, "residual": x, "weight": rows.row, "out": x, "residual_out": x, "eps": aot.Scalar("f32"),
        "stream": aot.Stream(),
    }  # fmt: skip
    return aot.Spec(RmsNormResidual(WIDE_TILINGS[access], target, rows.chunk, rows.whole), arguments)
