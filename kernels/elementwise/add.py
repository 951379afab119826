"""``out = x + y``: the smallest kernel here, and the place to start reading.

Memory is the limit: every element of ``x`` and ``y`` is read once, and every element of ``out`` is written once.
"""

from __future__ import annotations

import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot

from .._device import ARCHS, DTYPES
from .._elementwise import ELEMENTWISE_TILINGS, Elementwise, ElementwiseTiling
from ..contracts.elementwise import add as contract


class Add(Elementwise):
    def apply(self, x: cute.TensorSSA, y: cute.TensorSSA) -> cute.TensorSSA:
        return x + y

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, out: cute.Tensor, stream: CUstream):
        self.launch([x, y], out, stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.In("y"), aot.Out("out", shape="x.shape", dtype="x.dtype", may_be=("x", "y"))),
    archs=ARCHS,
    axes={"rank": (1, 2), "dtype": DTYPES, "access": ELEMENTWISE_TILINGS},
    contract=contract,
    backward=aot.Composed(x="grad_out", y="grad_out"),
)
def add(target: aot.Target, rank: int, dtype: str, access: ElementwiseTiling) -> aot.Spec:
    """``out = x + y``, element by element."""
    made = Add(access, target, rank, dtype)
    return aot.Spec(made, {"x": made.tensor, "y": made.tensor, "out": made.tensor, "stream": aot.Stream()})
