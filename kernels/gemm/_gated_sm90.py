"""A GEMM for sm_90a whose epilogue gates one product with another one of the same rows.

The rows of both matrices lie one below the other in ``b``. A tile has as many rows of the one as of the other, so the same
thread has the sums of both for an element of the output, which is half as wide as the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32

from ..elementwise.activation import RoundedSilu
from . import _gemm_sm90


@dataclass(frozen=True)
class Tiling(_gemm_sm90.Tiling):
    """``n`` counts the rows of both matrices in a tile. The blocks of a cluster cannot cut the sum here."""

    @property
    def b_tile(self) -> tuple[Any, int]:
        return (self.columns, 2), self.k

    @property
    def columns(self) -> int:
        return self.n // 2


class GatedGemm(_gemm_sm90.Gemm):
    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, clusters: Int32, stream: CUstream):
        _gemm_sm90.Gemm.__call__(self, a, b, out, None, Int32(0), clusters, stream)

    def arrange(self, b: cute.Tensor, out: cute.Tensor) -> cute.Tensor:
        """The rows of the second matrix as another mode, beside those of the first."""
        columns, rows = out.shape[1], b.stride[0]
        layout = cute.make_layout(
            ((columns, 2), *b.shape[1:]),
            stride=((rows, columns * rows), *b.stride[1:]),
        )
        return cute.make_tensor(b.iterator, layout)

    def values_of(self, sums: cute.Tensor, part: int, index: int, count: int, layout: cute.Layout) -> cute.TensorSSA:
        start = sums.iterator + 2 * part * count + index * cute.size(layout)
        gate, gated = [cute.make_tensor(start + half * count, layout).load() for half in range(2)]
        return RoundedSilu.apply(gate) * gated
