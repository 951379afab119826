"""``out = op(x)`` for an activation that the caller names.

Memory is the limit: ``x`` is read once and ``out`` is written once. The arithmetic, in f32, runs in the meantime.
The activation is a number that dispatch passes, so all of them share one kernel, in which every thread takes the same
branch. To add one, write a class in ``_activations.py`` and add a line to ``OPS``.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._activations import ROUNDED, Gelu, GeluTanh, Relu, Silu
from .._device import ARCHS, DTYPES
from .._elementwise import ELEMENTWISE_TILINGS, Elementwise, ElementwiseTiling
from ..contracts.elementwise import activation as contract

OPS = {"relu": Relu, "gelu": Gelu, "gelu_tanh": GeluTanh, "silu": Silu}


class Activate(Elementwise):
    def __init__(self, tiling: ElementwiseTiling, target: aot.Target, rank: int, dtype: str) -> None:
        super().__init__(tiling, target, rank, dtype)
        self.ops = tuple(op if dtype == "f32" else ROUNDED.get(op, op) for op in OPS.values())

    @cute.jit
    def apply(self, x: cute.TensorSSA, op: Int32) -> cute.TensorSSA:
        x = x.to(Float32)
        result = x
        for number in cutlass.range_constexpr(len(self.ops)):
            if op == number:
                result = self.ops[number].apply(x)
        return result

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, op: Int32, stream: CUstream):
        self.launch([x], out, stream, (op,))


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x")),
    archs=ARCHS,
    choices={"op": {name: number for number, name in enumerate(OPS)}},
    axes={"rank": (1, 2), "dtype": DTYPES, "access": ELEMENTWISE_TILINGS},
    contract=contract,
    backward=aot.Backward("activation_backward", saves="x", gradients="x"),
)
def activation(target: aot.Target, op: int, rank: int, dtype: str, access: ElementwiseTiling) -> aot.Spec:
    """``out = op(x)``, element by element, where ``op`` is relu, gelu (by erf), gelu_tanh or silu."""
    made = Activate(access, target, rank, dtype)
    return aot.Spec(made, {"x": made.tensor, "out": made.tensor, "op": aot.Constant(op), "stream": aot.Stream()})
