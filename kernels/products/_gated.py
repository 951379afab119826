"""The epilogue of a product that gates another one of the same rows.

The rows of both matrices lie one below the other in ``b``. A tile has as many rows of the one as of the other, so the same
thread has the sums of both for an element of the output, which is half as wide as the product.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64

from .._activations import RoundedSilu
from ..sm90.epilogue import Epilogue, Place, Store, load_rows
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
class Half(Epilogue):
    """Stores the sums of the gate (0) or of what it gates (1) as they are."""

    which: int

    def values(self, sums, slice_index: int, values, of_part, state) -> None:
        apart = self.which * (cute.size(sums) // 2)
        start = sums.iterator + (slice_index * cute.size(values) + apart)
        values.store(cute.make_tensor(start, values.layout).load())


@dataclass(frozen=True)
class GatedProduct(Gated):
    """The same, and the sums themselves. Its argument is how halves of the product are stored, as a batch of two matrices."""

    def begin(self, arguments, floats, place: Place):
        return arguments

    def transform(self, sums, state, floats, part: int, mma: cute.TiledMma, place: Place) -> None:
        """The sums stay as they are."""

    def write(self, mma, instruction, sums, state, floats, store: Store, place: Place) -> None:
        super().write(mma, instruction, sums, state, floats, store, place)
        copy, tiles, product = state
        for which in range(2):
            half = Half(self.tiling, which)
            stored, at = store._replace(copy=copy, tiles=tiles, out=product), place._replace(batch=Int32(which))
            half.write(mma, instruction, sums, None, floats, stored, at)


class GatedProductGemm(Product):
    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, product: cute.Tensor, clusters: Int32, stream: CUstream
    ):
        rows, columns = out.shape
        apart = cute.assume(Int64(columns), divby=self.epilogue.chunk)
        halves = cute.make_tensor(
            product.iterator, cute.make_layout((rows, columns, 2), stride=(*product.stride, apart))
        )
        copy, tiles = self.epilogue.tma_store(halves, self.epilogue.staged(out.element_type))
        self.launch(a, b, out, (copy, tiles, halves), None, clusters, stream)


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
