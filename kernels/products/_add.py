"""The epilogue of a product that is added to a matrix of its own dtype."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32

from .._gemm import batched
from ..sm90.product import Product
from ..sm90.streamed import Streamed


@dataclass(frozen=True)
class Add(Streamed):
    """``sums + addend``, added in f32."""

    def combine(self, sums: cute.TensorSSA, held: list[cute.TensorSSA]) -> list[cute.TensorSSA]:
        return [sums + held[0]]


class AddingGemm(Product):
    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, addend: cute.Tensor, out: cute.Tensor, clusters: Int32, stream: CUstream
    ):
        self.launch(a, b, out, self.epilogue.arrange(batched(addend), batched(out)), None, clusters, stream)
