"""A kernel that is tuned, and some of whose variants need scratch memory."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot


@cute.kernel
def write(out: cute.Tensor):
    if cute.arch.thread_idx()[0] < cute.size(out):
        out[cute.arch.thread_idx()[0]] = cutlass.Float32(1.0)


class FillWith:
    """Writes a value; ``threads`` per block tells in a launch which variant ran."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @cute.jit
    def __call__(self, out: cute.Tensor, parts: cute.Tensor | None, stream: CUstream):
        write(out).launch(grid=[1, 1, 1], block=[self.threads, 1, 1], stream=stream)


@aot.kernel(
    parameters=(aot.Out("out", shape="out.shape", dtype="out.dtype"), aot.Workspace("parts", bytes="64")),
    archs=("sm_90a",),
    tuned_by=("n",),
)
def fill_scratch(target: aot.Target) -> list[aot.Spec]:
    """Blocks of 64 and of 256 threads need scratch memory; those of 96 take up to 1000 elements."""
    out, parts = aot.Tensor("f32", ("n",)), aot.Tensor("f32", ("length",), align=16)
    needs = {32: None, 64: parts, 96: None, 128: None, 256: parts}
    return [
        aot.Spec(
            FillWith(threads), {"out": out, "parts": scratch, "stream": aot.Stream()},
            guards="n <= 1000" if threads == 96 else (), label=f"t{threads}",
        )
        for threads, scratch in needs.items()
    ]  # fmt: skip
