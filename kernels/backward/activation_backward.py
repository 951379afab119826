"""The gradient of ``activation``: ``grad_x = grad_out * op'(x)``, for an activation that the caller names.

Memory is the limit: ``grad_out`` and ``x`` are read once and ``grad_x`` is written once. The arithmetic, in f32, runs in
the meantime.
"""

from __future__ import annotations

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

from .._device import ARCHS, DTYPES
from .._elementwise import ELEMENTWISE_TILINGS, Elementwise, ElementwiseTiling
from ..contracts.backward import activation_backward as contract
from ._derivatives import Derivative, Gelu, GeluTanh, Relu, Silu

OPS = {"relu": Relu, "gelu": Gelu, "gelu_tanh": GeluTanh, "silu": Silu}


class ActivateBackward(Elementwise):
    def __init__(
        self, tiling: ElementwiseTiling, target: aot.Target, rank: int, dtype: str, op: type[Derivative]
    ) -> None:
        super().__init__(tiling, target, rank, dtype)
        self.op = op

    def apply(self, grad: cute.TensorSSA, x: cute.TensorSSA) -> cute.TensorSSA:
        return self.op.apply(grad.to(Float32), x.to(Float32))

    @cute.jit
    def __call__(self, grad_out: cute.Tensor, x: cute.Tensor, grad_x: cute.Tensor, stream: CUstream):
        self.launch([grad_out, x], grad_x, stream)


@aot.kernel(
    parameters=(
        aot.In("grad_out"),
        aot.In("x"),
        aot.Out("grad_x", shape="x.shape", dtype="x.dtype", may_be=("grad_out", "x")),
    ),
    archs=ARCHS,
    choices={"op": OPS},
    axes={"rank": (1, 2), "dtype": DTYPES, "access": ELEMENTWISE_TILINGS},
    contract=contract,
)
def activation_backward(
    target: aot.Target, op: type[Derivative], rank: int, dtype: str, access: ElementwiseTiling
) -> aot.Spec:
    """The gradient of ``activation`` by ``x``, where ``op`` is relu, gelu (by erf), gelu_tanh or silu."""
    made = ActivateBackward(access, target, rank, dtype, op)
    arguments = {"grad_out": made.tensor, "x": made.tensor, "grad_x": made.tensor, "stream": aot.Stream()}
    return aot.Spec(made, arguments)
