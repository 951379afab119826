"""A kernel with as many specs as a product has tilings, and three extents to choose among them by.

What it computes does not matter here: selection does.
"""

from __future__ import annotations

import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot

TILINGS = (64, 96, 128, 160, 192, 224, 256, 288)


@cute.kernel
def copy_elements(a: cute.Tensor, out: cute.Tensor):
    index = cute.arch.thread_idx()[0]
    if index < cute.size(out):
        out[index, 0] = a[index, 0]


class Product:
    def __init__(self, threads: int) -> None:
        self.threads = threads

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, stream: CUstream):
        copy_elements(a, out).launch(grid=[1, 1, 1], block=[self.threads, 1, 1], stream=stream)


@aot.kernel(
    parameters=(aot.In("a"), aot.In("b"), aot.Out("out", shape="(a.shape[0], b.shape[0])", dtype="a.dtype")),
    archs=("sm_90a",),
    axes={"dtype": ("f16", "bf16")},
    tuned_by=("m", "n", "k"),
)
def product(target: aot.Target, dtype: str) -> list[aot.Spec]:
    """Tilings by preference, each for twice as many rows as the one before."""
    a, b, out = (aot.Tensor(dtype, shape, align=16) for shape in (("m", "k"), ("n", "k"), ("m", "n")))
    arguments = {"a": a, "b": b, "out": out, "stream": aot.Stream()}
    return [
        aot.Spec(Product(threads), arguments, label=f"t{threads}", prefer=f"m <= {64 << number}")
        for number, threads in enumerate(TILINGS)
    ]
