"""The epilogue of a product that gates another one of the same rows.

The rows of both matrices lie one below the other in ``b``. A tile has as many rows of the one as of the other, so the same
thread has the sums of both for an element of the output, which is half as wide as the product.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32

import aot

from .._activations import RoundedSilu
from ..sm90.epilogue import Epilogue
from ..sm90.mainloop import Mainloop
from ..sm90.product import Product
from ..sm90.tiling import Tiling


@dataclass(frozen=True)
class Gated(Epilogue):
    """``silu(sums of the gate) * sums of what it gates``; for tilings that are ``gated``."""

    def values(self, sums, slice_index: int, values, of_part, state) -> None:
        start, apart = sums.iterator + slice_index * cute.size(values), cute.size(sums) // 2
        gate, gated = [cute.make_tensor(start + half * apart, values.layout).load() for half in range(2)]
        values.store(RoundedSilu.apply(gate) * gated)


class GatedGemm(Product):
    def __init__(self, tiling: Tiling, target: aot.Target) -> None:
        super().__init__(Mainloop(tiling), Gated(tiling), target)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, clusters: Int32, stream: CUstream):
        self.launch(a, b, out, (), None, clusters, stream)
