"""``out = argmax(x)`` over the last dimension: the first index of the largest element, as torch has it.

Memory is the limit: ``x`` is read once. A thread keeps the largest chunk that it has seen, by its largest element, and not
the place of that element: so an element costs one comparison. The thread that writes the result reads the chunk again.
Chunks are ordered by integers (:func:`order_key`), the index of a chunk's first element breaks ties, and both travel as one
number of 64 bits.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64

import aot

from .._device import ARCHS, DTYPES, maximum
from .._rows import STREAMED_TILINGS, RowKernel, RowTensors
from ..contracts.rows import argmax as contract
from ._order import NO_KEY, larger, order_key

LAST = 0x7FFFFFFF  # no element has a larger index


class ArgMax(RowKernel):
    reduced = Int64

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor):
        row, lane, end = self.place(x)
        source = x[row, None]
        (body,), _, (edge,), _, head = self.cut([source], lane, end)
        if cutlass.const_expr(self.tiling.shifted):
            index = cute.size(source) - cute.size(edge) + cutlass.min(lane, cute.size(edge) - 1)
            last = source[index]  # is on its way while chunks are compared
        key, place = Int32(NO_KEY), Int32(0)
        if cutlass.const_expr(self.tiling.looped):
            for step in cutlass.range(self.steps(cute.size(body))):
                key, place = self.fold(key, place, body, step * self.span() + lane)
        else:
            key, place = self.fold(key, place, body, lane)
        both = ordered(key, Int64(place) * self.chunk + head)
        if cutlass.const_expr(self.tiling.shifted):
            both = larger(both, ordered(order_key(last.to(Float32)), Int64(index)))
        both = self.over_row(larger, both, Int64(NO_KEY) << 32, self.scratch(), 0)
        if lane == 0 and end > 0:
            start = LAST - Int32(both & LAST)
            out[row] = Int64(start) + self.position(source, start, Int32(both >> 32))

    @cute.jit
    def fold(self, key: Int32, place: Int32, row: cute.Tensor, first: Int32):
        """The largest chunk so far. Past the end, the last chunk is repeated: an equal key, and a larger place."""
        for index, chunk in zip(self.indices(first), self.load_past_cache(row, first), strict=True):
            other = order_key(self.tree(maximum, chunk.load().to(Float32)))
            if other > key:
                key, place = other, index
        return key, place

    @cute.jit
    def position(self, row: cute.Tensor, start: Int32, key: Int32) -> Int32:
        """Where in the chunk from ``start`` on the first element with this key is."""
        position = Int32(0)
        for i in cutlass.range_constexpr(self.chunk - 1, -1, -1):
            value = row[cutlass.min(start + i, cute.size(row) - 1)].to(Float32)
            if order_key(value) == key:
                position = Int32(i)
        return position

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: CUstream):
        rows, _ = x.shape
        if rows > 0:  # CUDA refuses an empty grid
            self.launch(x, lambda own: own.kernel(x, out), stream)


def ordered(key: Int32, start: Int64) -> Int64:
    """A number that is larger for a larger key and, of equal keys, for an earlier start."""
    return (Int64(key) << 32) + (LAST - start)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="(x.shape[0],)", dtype="i64")),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(STREAMED_TILINGS)},
    contract=contract,
)
def argmax(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """The first index of the largest element of every row of ``x``, which must not be empty; NaN is the largest."""
    rows = RowTensors(dtype, access == "vector")
    arguments = {"x": rows.matrix, "out": aot.Tensor("i64", ("m",)), "stream": aot.Stream()}
    return aot.Spec(ArgMax(STREAMED_TILINGS[access], target, rows.chunk, rows.whole), arguments, ("n >= 1",))
