"""The epilogue of a product that gates another one of the same rows.

The rows of both matrices lie one below the other in ``b``. A tile has as many rows of the one as of the other, so the same
thread has the sums of both for an element of the output, which is half as wide as the product.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

from .._activations import RoundedSilu
from ..sm90.epilogue import Epilogue, Place, load_rows
from ..sm90.product import Product


@dataclass(frozen=True)
class Gated(Epilogue):
    """``silu(sums of the gate) * sums of what it gates``; for tilings that are ``gated``."""

    def values(self, sums, slice_index: int, values, of_part, state) -> None:
        start, apart = sums.iterator + slice_index * cute.size(values), cute.size(sums) // 2
        gate, gated = [cute.make_tensor(start + half * apart, values.layout).load() for half in range(2)]
        values.store(RoundedSilu.apply(gate) * gated)


class GatedGemm(Product):
    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, clusters: Int32, stream: CUstream):
        self.launch(a, b, out, (), None, clusters, stream)


@dataclass(frozen=True)
class WeightedGated(Gated):
    """The same, each row times its weight. Arguments: the weights, without elements if there are none."""

    @cute.jit
    def begin(self, arguments, floats, place: Place):
        """The weights of this thread's rows."""
        (weights,) = arguments
        own = cute.make_rmem_tensor(2 * self.tiling.parts, Float32)
        own.fill(1.0)
        if cute.size(weights) > 0:
            load_rows(own, weights, place)
        return own

    def transform(self, sums, state, floats, part: int, mma: cute.TiledMma, place: Place):
        return cute.make_tensor(state.iterator + 2 * part, cute.make_layout(2))

    def values(self, sums, slice_index: int, values, of_part, state) -> None:
        super().values(sums, slice_index, values, of_part, state)
        for v in range(cute.size(values)):
            values[v] *= of_part[v // 2 % 2]


class GroupedGatedGemm(Product):
    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, weights, offsets, clusters: Int32, stream: CUstream
    ):
        self.launch(a, b, out, (weights,), offsets, clusters, stream)
