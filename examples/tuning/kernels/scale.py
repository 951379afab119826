"""``out = factor * x``, in several tilings: which is the fastest depends on the length, and is measured."""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot

from .contracts import scale as contract


@dataclass(frozen=True)
class Tiling:
    """A block of ``threads`` takes ``threads * each`` neighbouring elements."""

    threads: int
    each: int

    @property
    def label(self) -> str:
        return f"threads{self.threads}_each{self.each}"

    def validate(self, target: aot.Target) -> None:
        if self.threads % 32 or self.threads > target.max_threads:
            raise aot.DeclarationError(
                f"{self.threads} threads per block; {target.arch} takes multiples of 32 up to {target.max_threads}"
            )


TILINGS = (Tiling(128, 1), Tiling(256, 4), Tiling(1024, 8))


class Scale:
    def __init__(self, tiling: Tiling) -> None:
        self.tiling = tiling

    @cute.kernel
    def multiply(self, x: cute.Tensor, out: cute.Tensor, factor: cutlass.Float32):
        tile = self.tiling.threads * self.tiling.each
        first = cutlass.Int64(cute.arch.block_idx()[0]) * tile + cute.arch.thread_idx()[0]
        for i in cutlass.range_constexpr(self.tiling.each):
            index = first + i * self.tiling.threads
            if index < cute.size(x):
                out[index] = (x[index].to(cutlass.Float32) * factor).to(out.element_type)

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, factor: cutlass.Float32, stream: CUstream):
        tile = self.tiling.threads * self.tiling.each
        blocks = cutlass.Int32((cute.size(x) + tile - 1) // tile)
        if blocks > 0:
            block = [self.tiling.threads, 1, 1]
            self.multiply(x, out, factor).launch(grid=[blocks, 1, 1], block=block, stream=stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x"), aot.In("factor")),
    archs=("sm_80", "sm_90a"),
    axes={"dtype": ("bf16", "f32")},
    tuned_by=("n",),
    contract=contract,
)
def scale(target: aot.Target, dtype: str) -> list[aot.Spec]:
    """``out = factor * x``."""
    vector = aot.Tensor(dtype, (aot.Dim("n", bits=64),))
    arguments = {"x": vector, "out": vector, "factor": aot.Scalar("f32"), "stream": aot.Stream()}
    specs = []
    for tiling in TILINGS:
        tiling.validate(target)
        # Without a table, the first tiling takes short vectors, and the second one the others.
        prefer = {TILINGS[0]: "n <= 65536", TILINGS[1]: "n > 65536"}.get(tiling, ())
        specs.append(aot.Spec(Scale(tiling), arguments, label=tiling.label, prefer=prefer))
    return specs
