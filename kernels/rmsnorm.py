"""``out = x / sqrt(mean(x^2) + eps) * weight``, row by row, computed in f32 and rounded once.

Memory is the limit: ``x`` is read once and ``out`` written once, as long as a row waits in registers for
the sum of its squares. So a row gets as many threads as can hold it, four chunks each; a row too long for
a block is read twice, the second time mostly from a cache. All rows share ``weight``, which caches hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from ._device import ARCHS, DTYPES, VECTOR_BYTES, WARP, chunk_elements, load, store, sum_over
from .contracts import rmsnorm as contract


@dataclass(frozen=True)
class Tiling:
    """A block works on ``rows``, with ``threads`` on each; a thread holds ``unroll`` chunks at a time."""

    threads: int
    unroll: int
    rows: int = 1
    looped: bool = False  # over rows longer than the threads can hold

    @property
    def label(self) -> str:
        return f"looped{self.threads}" if self.looped else f"threads{self.threads}"

    @property
    def chunks(self) -> int:
        return self.threads * self.unroll

    def validate(self, target: aot.Target) -> None:
        block = self.threads * self.rows
        if block % WARP or block > target.max_threads:
            raise aot.DeclarationError(
                f"{self.rows} rows of {self.threads} threads make a block of {block}; "
                f"{target.arch} takes whole warps, up to {target.max_threads} threads"
            )
        if self.threads & (self.threads - 1) or (self.rows > 1 and self.threads > WARP):
            raise aot.DeclarationError(
                f"{self.threads} threads cannot add up a row: must be a power of two, "
                f"and a whole block if more than {WARP}, not one of {self.rows} rows"
            )


VECTOR = (
    Tiling(threads=8, unroll=4, rows=16),
    Tiling(threads=32, unroll=4, rows=4),
    Tiling(threads=128, unroll=4),
    Tiling(threads=256, unroll=4),
    Tiling(threads=512, unroll=4),
    Tiling(threads=512, unroll=4, looped=True),
)
SCALAR = (
    Tiling(threads=32, unroll=16, rows=4),
    Tiling(threads=256, unroll=8, looped=True),
)


class RmsNorm:
    def __init__(self, tiling: Tiling, chunk: int) -> None:
        self.tiling = tiling
        self.chunk = chunk  # elements

    @cute.kernel
    def kernel(self, x: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, eps: Float32, inverse: Float32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rows, columns = x.shape
        row = block * self.tiling.rows + thread // self.tiling.threads
        lane = thread % self.tiling.threads
        # Threads past the last row work on it too, since warps add up together; they have no end to write to.
        end = columns // self.chunk if row < rows else 0
        row = cutlass.min(row, rows - 1)
        source, target = x[row, None], out[row, None]
        if cutlass.const_expr(self.tiling.looped):
            self.scale_looped(source, weight, target, eps, inverse, lane, end)
        else:
            self.scale_held(source, weight, target, eps, inverse, lane, end)

    @cute.jit
    def scale_held(self, x: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, eps, inverse, lane, end):
        held = self.load(x, lane, cached=self.chunk == 1)
        weights = self.load(weight, lane)
        factor = self.factor(self.add_squares(self.zeros(), held, lane, end), eps, inverse)
        self.store(held, weights, factor, out, lane, end)

    @cute.jit
    def scale_looped(self, x: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, eps, inverse, lane, end):
        steps = cute.ceil_div(end, self.tiling.chunks)
        squares = self.zeros()
        for step in cutlass.range(steps):
            first = step * self.tiling.chunks + lane
            squares = self.add_squares(squares, self.load(x, first), first, end)
        factor = self.factor(squares, eps, inverse)
        # Backwards: what was read last is what the caches still have.
        for step in cutlass.range(steps):
            first = (steps - 1 - step) * self.tiling.chunks + lane
            self.store(self.load(x, first), self.load(weight, first), factor, out, first, end)

    def zeros(self) -> cute.TensorSSA:
        return cute.full(self.chunk, 0.0, Float32)

    @cute.jit
    def add_squares(self, squares: cute.TensorSSA, held: list[cute.Tensor], first, end):
        for index, chunk in zip(self.indices(first), held, strict=True):
            if index < end:
                values = chunk.load().to(Float32)
                squares = squares + values * values
        return squares

    @cute.jit
    def factor(self, squares: cute.TensorSSA, eps: Float32, inverse: Float32) -> Float32:
        total = sum_over(self.tiling.threads, squares.reduce(cute.ReductionOp.ADD, Float32(0), 0))
        return cute.math.rsqrt(total * inverse + eps)

    def load(self, row: cute.Tensor, first: Int32, cached: bool = True) -> list[cute.Tensor]:
        return [load(row, index, self.chunk, cached) for index in self.indices(first)]

    @cute.jit
    def store(self, held: list[cute.Tensor], weights: list[cute.Tensor], factor, out, first, end):
        for index, chunk, weight in zip(self.indices(first), held, weights, strict=True):
            values = chunk.load().to(Float32) * factor * weight.load().to(Float32)
            store(values, out, index, end, self.chunk)

    def indices(self, first: Int32) -> list[Int32]:
        """The chunks a thread holds, from its first on. Neighbouring threads hold neighbouring chunks."""
        return [first + i * self.tiling.threads for i in range(self.tiling.unroll)]

    @cute.jit
    def __call__(self, x: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, eps: Float32, stream: CUstream):
        rows, columns = x.shape
        if rows > 0 and columns > 0:  # CUDA refuses an empty grid
            self.kernel(x, weight, out, eps, 1 / Float32(columns)).launch(
                grid=[cute.ceil_div(rows, self.tiling.rows), 1, 1],
                block=[self.tiling.threads * self.tiling.rows, 1, 1],
                stream=stream,
            )


@aot.kernel(
    parameters=(
        aot.In("x"),
        aot.In("weight"),
        aot.Out("out", shape="x.shape", dtype="x.dtype"),
        aot.In("eps", default=1e-6),
    ),
    archs=ARCHS,
    axes={"dtype": DTYPES, "access": {"vector": VECTOR, "scalar": SCALAR}},
    reference=contract.reference,
    inputs=contract.inputs,
    cost=contract.cost,
)
def rmsnorm(target: aot.Target, dtype: str, access: tuple[Tiling, ...]) -> list[aot.Spec]:
    """``out = x / sqrt(mean(x^2) + eps) * weight`` for every row of ``x``, computed in f32."""
    vector = access is VECTOR
    chunk = chunk_elements(dtype, vector)
    columns, align = aot.Dim("n", divisible_by=chunk), VECTOR_BYTES if vector else None
    x, weight = aot.Tensor(dtype, ("m", columns), align=align), aot.Tensor(dtype, (columns,), align=align)
    arguments = {"x": x, "weight": weight, "out": x, "eps": aot.Scalar("f32"), "stream": aot.Stream()}
    specs = []
    for tiling in access:
        tiling.validate(target)
        guards = () if tiling.looped else (f"n <= {tiling.chunks * chunk}",)
        specs.append(aot.Spec(RmsNorm(tiling, chunk), arguments, guards, tiling.label))
    return specs
