"""``out = argmax(x)`` over the last dimension: the first index of the largest element, as torch has it.

Memory is the limit: ``x`` is read once. A thread keeps the largest chunk that it has seen, by its largest element, and not
the place of that element: so an element costs one comparison. The thread that writes the result reads the chunk again.
Chunks are ordered by integers (:func:`order_key`), a chunk's number breaks ties, and both travel as one number of 64 bits.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32, Int64

import aot

from .._device import ARCHS, DTYPES, fetch
from ..contracts import argmax as contract
from ._order import NO_KEY, larger, order_key
from ._rows import STREAMED_TILINGS, RowKernel, RowTensors, maximum

LAST = 0x7FFFFFFF  # no chunk has a larger number


class ArgMax(RowKernel):
    reduced = Int64

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor):
        row, lane, end = self.place(x)
        source = x[row, None]
        key, place = Int32(NO_KEY), Int32(0)
        if cutlass.const_expr(self.tiling.looped):
            for step in cutlass.range(self.steps(cute.size(source))):
                key, place = self.fold(key, place, source, step * self.span() + lane)
        else:
            key, place = self.fold(key, place, source, lane)
        # The larger key wins. Of equal keys the smaller place wins, which is the larger number here.
        both = (Int64(key) << 32) + Int64(LAST - place)
        both = self.over_row(larger, both, Int64(NO_KEY) << 32, self.scratch(), 0)
        if lane == 0 and end > 0:
            place = LAST - Int32(both & LAST)
            out[row] = Int64(place) * self.chunk + self.position(source, place, Int32(both >> 32))

    @cute.jit
    def fold(self, key: Int32, place: Int32, row: cute.Tensor, first: Int32):
        """The largest chunk so far. Past the end, the last chunk is repeated: an equal key, and a larger place."""
        for index, chunk in zip(self.indices(first), self.load_past_cache(row, first), strict=True):
            other = order_key(self.tree(maximum, chunk.load().to(Float32)))
            if other > key:
                key, place = other, index
        return key, place

    @cute.jit
    def position(self, row: cute.Tensor, place: Int32, key: Int32) -> Int32:
        """Where in a chunk the first element with this key is."""
        values = fetch(row, place, self.chunk).load().to(Float32)
        position = Int32(0)
        for i in cutlass.range_constexpr(self.chunk - 1, -1, -1):
            if order_key(values[i]) == key:
                position = Int32(i)
        return position

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: CUstream):
        rows, _ = x.shape
        if rows > 0:  # CUDA refuses an empty grid
            self.launch(x, lambda own: own.kernel(x, out), stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="(x.shape[0],)", dtype="i64")),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": tuple(STREAMED_TILINGS)},
    reference=contract.reference,
    inputs=contract.inputs,
    cost=contract.cost,
)
def argmax(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """The first index of the largest element of every row of ``x``, which must not be empty; NaN is the largest."""
    rows = RowTensors(dtype, access == "vector")
    arguments = {"x": rows.matrix, "out": aot.Tensor("i64", ("m",)), "stream": aot.Stream()}
    return aot.Spec(ArgMax(STREAMED_TILINGS[access], target, rows.chunk), arguments, ("n >= 1",))
