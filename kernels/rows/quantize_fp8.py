"""``scale = max(|x|) / 448`` and ``out = x / scale`` as f8e4m3, row by row: the largest of a row becomes 448.

Memory is the limit: ``x`` is read once, if a row fits into registers until its largest value is known. ``out`` takes one
byte per element, ``scale`` four bytes per row. A row that is too long for registers is read twice.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

from .._device import DTYPES, F8_ARCHS, maximum
from .._rows import LIMITED_TILINGS, RowKernel, RowTensors
from ..contracts.rows import quantize_fp8 as contract

LARGEST = contract.LARGEST  # of f8e4m3
SMALLEST = contract.SMALLEST  # lower bound for the largest value of a row, so that its inverse is finite


class QuantizeFp8(RowKernel):
    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor, scale: cute.Tensor):
        row, lane, end = self.place(x)
        source, target = x[row, None], out[row, None]
        largest = Float32(SMALLEST)
        if cutlass.const_expr(self.tiling.looped):
            steps = self.steps(cute.size(source))
            for step in cutlass.range(steps):
                first = step * self.span() + lane
                largest = self.largest(largest, self.load(source, first))
            largest = self.over_row(maximum, largest, Float32(SMALLEST), self.scratch(), 0)
            # Backwards: the caches still have what was read last.
            for step in cutlass.range(steps):
                first = (steps - 1 - step) * self.span() + lane
                self.store(self.load(source, first), largest, target, first, end)
        else:
            (body, body_out), body_end, (edge, edge_out), edge_end, _ = self.cut([source, target], lane, end)
            held = self.load(body, lane)
            if cutlass.const_expr(self.tiling.shifted):
                ends = self.ends(2)
                last = ends.load(edge, lane)
                largest = ends.largest(largest, last)
            largest = self.over_row(maximum, self.largest(largest, held), Float32(SMALLEST), self.scratch(), 0)
            self.store(held, largest, body_out, lane, body_end)
            if cutlass.const_expr(self.tiling.shifted):
                ends.store(last, largest, edge_out, lane, edge_end)
        if lane == 0 and end > 0:
            scale[row] = largest * (1 / LARGEST)

    def largest(self, largest: Float32, held: list[cute.Tensor]) -> Float32:
        """The largest magnitude. Chunks past the end repeat one of the row, so all of them count."""
        for chunk in held:
            values = chunk.load().to(Float32)
            for i in range(self.chunk):
                largest = maximum(largest, maximum(values[i], -values[i]))
        return largest

    @cute.jit
    def store(self, held: list[cute.Tensor], largest: Float32, out: cute.Tensor, first, end):
        factor = LARGEST / largest
        for index, chunk in zip(self.indices(first), held, strict=True):
            self.put_rounded(chunk.load().to(Float32) * factor, out, index, end)

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, scale: cute.Tensor, stream: CUstream):
        rows, _ = x.shape
        if rows > 0:  # CUDA refuses an empty grid
            self.launch(x, lambda own: own.kernel(x, out, scale), stream)


@aot.kernel(
    parameters=(
        aot.In("x"),
        aot.Out("out", shape="x.shape", dtype="f8e4m3"),
        aot.Out("scale", "per row: `x` is about `out * scale`", shape="(x.shape[0],)", dtype="f32"),
    ),
    archs=F8_ARCHS,
    axes={"dtype": DTYPES, "access": tuple(LIMITED_TILINGS)},
    contract=contract,
)
def quantize_fp8(target: aot.Target, dtype: str, access: str) -> aot.Spec:
    """``scale = max(|x|) / 448`` and ``out = x / scale`` as f8e4m3, for every row of ``x``, which must not be empty."""
    rows = RowTensors(dtype, access == "vector")
    arguments = {
        "x": rows.matrix,
        "out": aot.Tensor("f8e4m3", ("m", rows.columns), align=rows.chunk),
        "scale": aot.Tensor("f32", ("m",)),
        "stream": aot.Stream(),
    }
    return aot.Spec(QuantizeFp8(LIMITED_TILINGS[access], target, rows.chunk, rows.whole), arguments, ("n >= 1",))
