"""The gradient of ``softmax`` by its result: ``grad_x = out * (grad_out - sum(grad_out * out))``, row by row, in f32.

Memory is the limit: ``grad_out`` and ``out`` are read once and ``grad_x`` is written once, if a row fits into registers. A
row that is too long for a block is read twice, the second time mostly from a cache.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

from .._device import ARCHS, DTYPES, store
from .._rows import ROW_TILINGS, RowKernel, RowTensors
from ..contracts.backward import softmax_backward as contract


class SoftmaxBackward(RowKernel):
    @cute.kernel
    def kernel(self, grad_out: cute.Tensor, out: cute.Tensor, grad_x: cute.Tensor):
        row, first, end = self.place(out)
        sources, target = [grad_out[row, None], out[row, None]], grad_x[row, None]
        if cutlass.const_expr(self.tiling.looped):
            self.looped(sources, target, first, end)
        else:
            self.held(sources, target, first, end)

    @cute.jit
    def held(self, sources: list[cute.Tensor], target: cute.Tensor, first, end):
        held = [self.load(source, first) for source in sources]
        total = self.sum_over_row(self.add_up(self.full(0.0), held, first, end), self.scratch())
        self.store(held, total, target, first, end)

    @cute.jit
    def looped(self, sources: list[cute.Tensor], target: cute.Tensor, lane, end):
        steps = self.steps(cute.size(target))
        products = self.full(0.0)
        for step in cutlass.range(steps):
            first = step * self.span() + lane
            products = self.add_up(products, [self.load(source, first) for source in sources], first, end)
        total = self.sum_over_row(products, self.scratch())
        # Backwards: the caches still have what was read last.
        for step in cutlass.range(steps):
            first = (steps - 1 - step) * self.span() + lane
            self.store([self.load(source, first) for source in sources], total, target, first, end)

    @cute.jit
    def add_up(self, products: cute.TensorSSA, held: list[list[cute.Tensor]], first, end):
        for index, grad, out in zip(self.indices(first), *held, strict=True):
            if index < end:
                products = products + grad.load().to(Float32) * out.load().to(Float32)
        return products

    @cute.jit
    def store(self, held: list[list[cute.Tensor]], total: Float32, target: cute.Tensor, first, end):
        for index, grad, out in zip(self.indices(first), *held, strict=True):
            values = (grad.load().to(Float32) - total) * out.load().to(Float32)
            store(values, target, index, end, self.chunk)

    @cute.jit
    def __call__(self, grad_out: cute.Tensor, out: cute.Tensor, grad_x: cute.Tensor, stream: CUstream):
        rows, columns = out.shape
        if rows > 0 and columns > 0:  # CUDA refuses an empty grid
            self.launch(out, lambda own: own.kernel(grad_out, out, grad_x), stream)


@aot.kernel(
    parameters=(aot.In("grad_out"), aot.In("out"), aot.Out("grad_x", shape="out.shape", dtype="out.dtype")),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(ROW_TILINGS)},
    contract=contract,
)
def softmax_backward(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """The gradient of ``softmax`` by ``x``, from its result, computed in f32."""
    rows = RowTensors(dtype, access == "vector")
    matrix = rows.matrix
    arguments = {"grad_out": matrix, "out": matrix, "grad_x": matrix, "stream": aot.Stream()}
    return aot.Spec(SoftmaxBackward(ROW_TILINGS[access], target, rows.chunk), arguments)
