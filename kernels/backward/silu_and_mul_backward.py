"""The gradient of ``silu_and_mul``: of the gate in the left half of each row, and of what it multiplies in the right.

Memory is the limit: ``grad_out`` and both halves of ``x`` are read once, and both halves of ``grad_x`` are written once.
"""

from __future__ import annotations

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int64

import aot

from .._device import ARCHS, DTYPES, VECTOR_BYTES, fetch, load, store
from .._elementwise import ELEMENTWISE_TILINGS, Elementwise, ElementwiseTiling, extents
from ..contracts.backward import silu_and_mul_backward as contract
from ._derivatives import Silu, sigmoid


class SiluAndMulBackward(Elementwise):
    """Walks the left half of ``grad_x``. Its right half comes along as the last of the sources, and is written too."""

    lines = False  # rows of halves have gaps

    def apply(self, *values: cute.TensorSSA) -> cute.TensorSSA:
        """The gradient of the gate."""
        grad, gate, up = [value.to(Float32) for value in values]
        return Silu.apply(grad * up, gate)

    def apply_right(self, grad: cute.TensorSSA, gate: cute.TensorSSA) -> cute.TensorSSA:
        gate = gate.to(Float32)
        return grad.to(Float32) * (gate * sigmoid(gate))

    @cute.jit
    def move(self, sources: list[cute.Tensor], target: cute.Tensor, indices: list[Int64], end, size, numbers):
        if indices[0] < end:
            get = fetch if len(indices) == 1 else load
            loaded = [[get(source, index, size, self.tiling.cached) for source in sources[:-1]] for index in indices]
            for index, chunks in zip(indices, loaded, strict=True):
                values = [chunk.load() for chunk in chunks]
                store(self.apply(*values), target, index, end, size)
                store(self.apply_right(values[0], values[1]), sources[-1], index, end, size)

    @cute.jit
    def __call__(self, grad_out: cute.Tensor, x: cute.Tensor, grad_x: cute.Tensor, stream: CUstream):
        rows, columns = extents(grad_out)
        gate, up = self.halves(x, rows, columns)
        left, right = self.halves(grad_x, rows, columns)
        self.launch([grad_out, gate, up, right], left, stream)

    def halves(self, tensor: cute.Tensor, rows: Int64, columns: Int64) -> tuple[cute.Tensor, cute.Tensor]:
        layout = cute.make_layout((rows, columns), stride=tensor.stride)
        # Both halves are aligned to a chunk, because `columns` is a multiple of a chunk.
        right = (tensor.iterator + columns).align(tensor.iterator.alignment)
        return cute.make_tensor(tensor.iterator, layout), cute.make_tensor(right, layout)


@aot.kernel(
    parameters=(aot.In("grad_out"), aot.In("x"), aot.Out("grad_x", shape="x.shape", dtype="x.dtype", may_be="x")),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": ELEMENTWISE_TILINGS},
    contract=contract,
)
def silu_and_mul_backward(target: aot.Target, dtype: str, access: ElementwiseTiling) -> aot.Spec:
    """The gradient of ``silu_and_mul`` by ``x``, computed in f32."""
    made = SiluAndMulBackward(access, target, 2, dtype)
    both = aot.Dim("both", divisible_by=made.chunk, bits=64)
    x = aot.Tensor(dtype, (aot.Dim("m", bits=64), both), align=VECTOR_BYTES if access.vector else None)
    arguments = {"grad_out": made.tensor, "x": x, "grad_x": x, "stream": aot.Stream()}
    return aot.Spec(made, arguments, ("both == 2 * n",))
