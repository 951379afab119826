"""Products of 16 bits that are added to a matrix of f32."""

from __future__ import annotations

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32

from ..sm90.product import Product


class AccumulatingGemm(Product):
    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, addend, clusters: Int32, stream: CUstream):
        self.launch(a, b, out, (addend,), None, clusters, stream)
