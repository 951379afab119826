"""The epilogue of a product that is the gradient of a gated one: it becomes the gradients of the gate and of what it gates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32, Int64

from ..sm90.product import Product
from ..sm90.streamed import Streamed


@dataclass(frozen=True)
class GatedGradient(Streamed):
    """With sums ``h``: ``h * up * silu'(gate)`` and ``h * silu(gate)``."""

    matrices = 2

    def combine(self, sums: cute.TensorSSA, held: list[cute.TensorSSA]) -> list[cute.TensorSSA]:
        gate, up = held
        passed = cute.math.rcp(1.0 + cute.math.exp2(-math.log2(math.e) * gate, fastmath=True), approx=True, ftz=True)
        return [sums * up * (passed * (1.0 + gate * (1.0 - passed))), sums * (gate * passed)]


class GatedGradientGemm(Product):
    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, product: cute.Tensor, grad_product: cute.Tensor, clusters: Int32,
        stream: CUstream,
    ):  # fmt: skip
        source, target = self.halves(product), self.halves(grad_product)
        self.launch(a, b, target[None, None, 0], self.epilogue.arrange(source, target), None, clusters, stream)

    def halves(self, matrix: cute.Tensor) -> cute.Tensor:
        rows, columns = matrix.shape
        apart = cute.assume(Int64(columns // 2), divby=self.epilogue.chunk)
        layout = cute.make_layout((rows, columns // 2, 2), stride=(*matrix.stride, apart))
        return cute.make_tensor(matrix.iterator, layout)
