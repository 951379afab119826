"""The epilogue of a product whose columns are heads: pairs of elements of the first heads are turned, as by ``rope``."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Int32

from .._device import fetch
from ..sm90.epilogue import Epilogue, Place
from ..sm90.product import Product

PAIR = 2  # neighbouring accumulators of a thread
EIGHT = 8  # columns of which a thread has a pair


@dataclass(frozen=True)
class Rotated(Epilogue):
    """Arguments: cosines and sines, a row for each of the output, and how many columns are turned.

    The elements of a pair are half a head apart, in a row. So the same thread has the sums of both.
    """

    half: int  # elements of half a head

    def begin(self, arguments, floats, place: Place):
        return arguments

    @cute.jit
    def transform(self, sums, state, floats, part: cutlass.Constexpr, mma, place: Place):
        cosines, sines, turned = state
        first = place.n * self.tiling.written_columns
        if first < turned:
            # A thread has the same elements of each head.
            pairs, angles = self.half // EIGHT, []
            for r in cutlass.range_constexpr(2):
                row = cutlass.min(place.row(part, PAIR * r), cute.size(cosines, mode=[0]) - 1)
                for j in cutlass.range_constexpr(pairs):
                    at = EIGHT // PAIR * j + place.thread % (EIGHT // PAIR)
                    angles.append([fetch(x[row, None], at, PAIR) for x in (cosines, sines)])
            for head in cutlass.range_constexpr(self.tiling.written_columns // (2 * self.half)):
                if first + head * 2 * self.half < turned:
                    for r in cutlass.range_constexpr(2):
                        for j in cutlass.range_constexpr(pairs):
                            cosine, sine = angles[r * pairs + j]
                            for c in cutlass.range_constexpr(PAIR):
                                left = 4 * (2 * pairs * head + j) + PAIR * r + c
                                right = left + 4 * pairs
                                a, b = sums[left], sums[right]
                                sums[left] = a * cosine[c] - b * sine[c]
                                sums[right] = b * cosine[c] + a * sine[c]


class RotatedGemm(Product):
    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, cos: cute.Tensor, sin: cute.Tensor, out: cute.Tensor, heads: Int32,
        clusters: Int32, stream: CUstream,
    ):  # fmt: skip
        self.launch(a, b, out, (cos, sin, heads * (2 * self.epilogue.half)), None, clusters, stream)
