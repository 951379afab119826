"""``out = silu(x[:, :n]) * x[:, n:]``, the gate of a feed-forward layer whose two halves lie side by side.

Memory is the limit: ``x`` is read once, ``out``, half as wide, written once; the arithmetic, in f32, hides
behind that.
"""

from __future__ import annotations

import math

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

from ._device import ARCHS, DTYPES, VECTOR_BYTES, Elementwise, ElementwiseTiling, extents
from .contracts import silu_and_mul as contract

TILINGS = {
    "vector": ElementwiseTiling(threads=256, unroll=2, vector=True),
    "scalar": ElementwiseTiling(threads=256, unroll=8, vector=False),
}


class SiluAndMul(Elementwise):
    def apply(self, gate: cute.TensorSSA, up: cute.TensorSSA) -> cute.TensorSSA:
        gate, up = gate.to(Float32), up.to(Float32)
        return gate * cute.math.rcp(1.0 + cute.math.exp2(-math.log2(math.e) * gate), approx=True, ftz=True) * up

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: CUstream):
        rows, columns = extents(out)
        layout = cute.make_layout((rows, columns), stride=x.stride)
        # The halves are as aligned as a chunk: `columns` is a whole number of them.
        up = (x.iterator + columns).align(x.iterator.alignment)
        self.launch([cute.make_tensor(x.iterator, layout), cute.make_tensor(up, layout)], out, stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="(x.shape[0], x.shape[1] // 2)", dtype="x.dtype")),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": TILINGS},
    reference=contract.reference,
    inputs=contract.inputs,
    cost=contract.cost,
)
def silu_and_mul(target: aot.Target, dtype: str, access: ElementwiseTiling) -> aot.Spec:
    """``out = silu(x[:, :n]) * x[:, n:]`` for ``x`` of ``(m, 2 n)``, computed in f32."""
    access.validate(target)
    function = SiluAndMul(access, 2, dtype)
    both = aot.Dim("both", divisible_by=function.chunk, bits=64)
    x = aot.Tensor(dtype, (aot.Dim("m", bits=64), both), align=VECTOR_BYTES if access.vector else None)
    return aot.Spec(function, {"x": x, "out": function.tensor, "stream": aot.Stream()}, ("both == 2 * n",))
