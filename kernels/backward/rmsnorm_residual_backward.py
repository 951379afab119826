"""The gradients of ``rmsnorm_residual``: those of ``rmsnorm`` at ``residual_out``, plus the gradient that arrives there.

``x`` and ``residual`` are added and nothing else, so they have the same gradient: one tensor, ``grad_sum``.
"""

from __future__ import annotations

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

from .._device import ARCHS, DTYPES
from .._rows import ROW_TILINGS, RowTensors
from ..contracts.backward import rmsnorm_residual_backward as contract
from ._norms import groups_of, partial_output, partial_tensor
from .rmsnorm_backward import RmsNormBackward


class RmsNormResidualBackward(RmsNormBackward):
    @cute.jit
    def __call__(
        self,
        grad_out: cute.Tensor,
        grad_residual_out: cute.Tensor,
        residual_out: cute.Tensor,
        weight: cute.Tensor,
        grad_sum: cute.Tensor,
        grad_weight: cute.Tensor,
        factor: cute.Tensor,
        partial: cute.Tensor,
        eps: Float32,
        stream: CUstream,
    ):
        matrices = [grad_out, residual_out, grad_residual_out]
        self.launch_all(matrices, weight, grad_sum, grad_weight, factor, partial, eps, stream)


@aot.kernel(
    parameters=(
        aot.In("grad_out"),
        aot.In("grad_residual_out"),
        aot.In("residual_out", "what `rmsnorm_residual` gave"),
        aot.In("weight"),
        aot.Out("grad_sum", "of `x` and of `residual`", shape="residual_out.shape", dtype="residual_out.dtype"),
        aot.Out("grad_weight", shape="weight.shape", dtype="weight.dtype"),
        aot.Out(
            "factor", "scratch: 1 / sqrt(mean(residual_out^2) + eps) of each row", shape="(residual_out.shape[0],)",
            dtype="f32",
        ),
        partial_output("partial", "residual_out"),
        aot.In("eps", default=1e-6),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(ROW_TILINGS)},
    contract=contract,
)  # fmt: skip
def rmsnorm_residual_backward(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """The gradients of ``rmsnorm_residual``, computed in f32. The order of all sums is fixed."""
    rows = RowTensors(dtype, access == "vector")
    x = rows.matrix
    arguments = {
        "grad_out": x, "grad_residual_out": x, "residual_out": x, "weight": rows.row, "grad_sum": x,
        "grad_weight": rows.row, "factor": aot.Tensor("f32", ("m",)), "partial": partial_tensor(rows),
        "eps": aot.Scalar("f32"), "stream": aot.Stream(),
    }  # fmt: skip
    guards = (f"groups == {groups_of('m', 'n')}",)
    return aot.Spec(RmsNormResidualBackward(access, target, rows.chunk), arguments, guards)
