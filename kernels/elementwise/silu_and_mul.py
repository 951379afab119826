"""``out = silu(x[:, :n]) * x[:, n:]``, the gate of a feed-forward layer whose two halves lie side by side.

Memory is the limit: ``x`` is read once, and ``out``, which is half as wide, is written once. The arithmetic, in f32, runs
in the meantime.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

from .._device import ARCHS, DTYPES, VECTOR_BYTES
from ..contracts import silu_and_mul as contract
from ._elementwise import ELEMENTWISE_TILINGS, Elementwise, ElementwiseTiling, extents
from .activation import Silu


class SiluAndMul(Elementwise):
    lines = False  # a row of `out` is half as long as one of `x`

    def apply(self, gate: cute.TensorSSA, up: cute.TensorSSA) -> cute.TensorSSA:
        return Silu.apply(gate.to(Float32)) * up.to(Float32)

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: CUstream):
        rows, columns = extents(out)
        layout = cute.make_layout((rows, columns), stride=x.stride)
        # Both halves are aligned to a chunk, because `columns` is a multiple of a chunk.
        up = (x.iterator + columns).align(x.iterator.alignment)
        halves = [cute.make_tensor(x.iterator, layout), cute.make_tensor(up, layout)]
        if cutlass.const_expr(self.tiling.vector):
            self.launch(halves, out, stream)
        else:
            self.launch_anywhere(halves, out, stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="(x.shape[0], x.shape[1] // 2)", dtype="x.dtype")),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": ELEMENTWISE_TILINGS},
    reference=contract.reference,
    inputs=contract.inputs,
    cost=contract.cost,
    backward=aot.Backward("silu_and_mul_backward", saves="x", gradients="x"),
)
def silu_and_mul(target: aot.Target, dtype: str, access: ElementwiseTiling) -> aot.Spec:
    """``out = silu(x[:, :n]) * x[:, n:]`` for ``x`` of ``(m, 2 n)``, computed in f32."""
    made = SiluAndMul(access, target, 2, dtype)
    both = aot.Dim("both", divisible_by=made.chunk, bits=64)
    x = aot.Tensor(dtype, (aot.Dim("m", bits=64), both), align=VECTOR_BYTES if access.vector else None)
    return aot.Spec(made, {"x": x, "out": made.tensor, "stream": aot.Stream()}, ("both == 2 * n",))
