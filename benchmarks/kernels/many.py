"""Kernels with as many variants as a benchmark wants: one per fixed length, real code each.

The environment variable AOT_BENCHMARK_VARIANTS says how many variants each kernel has, and
AOT_BENCHMARK_KERNELS how many such kernels there are.
"""

from __future__ import annotations

import os

import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot
from aot.declare.kernel import Kernel

VARIANTS = int(os.environ.get("AOT_BENCHMARK_VARIANTS", "8"))
KERNELS = int(os.environ.get("AOT_BENCHMARK_KERNELS", "1"))
DTYPES = ("f16", "bf16", "f32", "f64")


@cute.kernel
def copy_elements(x: cute.Tensor, out: cute.Tensor):
    index = cute.arch.block_idx()[0] * 128 + cute.arch.thread_idx()[0]
    if index < cute.size(out):
        out[index] = x[index]


@cute.jit
def copy(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    copy_elements(x, out).launch(grid=[cute.ceil_div(cute.size(out), 128), 1, 1], block=[128, 1, 1], stream=stream)


def declare(name: str) -> Kernel:
    parameters = (aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x"))
    lengths = tuple(64 * (i + 1) for i in range(-(-VARIANTS // len(DTYPES))))
    dtypes = DTYPES[: min(VARIANTS, len(DTYPES))]

    @aot.kernel(
        name=name, parameters=parameters, archs=("sm_80", "sm_90a", "sm_100f"), axes={"dtype": dtypes, "n": lengths}
    )
    def many(target: aot.Target, dtype: str, n: int) -> aot.Spec:
        """Copies a vector of one of many fixed lengths."""
        tensor = aot.Tensor(dtype, (n,), align=16)
        return aot.Spec(copy, {"x": tensor, "out": tensor, "stream": aot.Stream()})

    return many


globals().update({f"copy{i}": declare(f"copy{i}") for i in range(KERNELS)})
