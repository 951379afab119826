"""A real kernel for the stand-in's tests: ``python doubling.py sm_90a OUT.ll`` compiles it without a GPU.

A program of its own, because the compiler must not share a process with the stand-in.
"""

# mypy: ignore-errors
# (what a kernel computes with are not the values its annotations name)

from __future__ import annotations

import sys

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream


@cute.kernel
def double_elements(x: cute.Tensor, y: cute.Tensor, n: cutlass.Int32):
    i = cute.arch.block_idx()[0] * 256 + cute.arch.thread_idx()[0]
    if i < n:
        y[i] = x[i] + x[i]


@cute.jit
def double(x: cute.Tensor, y: cute.Tensor, stream: CUstream):
    n = cute.size(x)
    double_elements(x, y, n).launch(grid=[cute.ceil_div(n, 256), 1, 1], block=[256, 1, 1], stream=stream)


def main(arch: str, output: str) -> None:
    n = cute.sym_int()
    x, y = (make_fake_compact_tensor(cutlass.Float16, (n,), assumed_align=16) for _ in range(2))
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    compiled = cute.compile(double, x, y, stream, options=f"--enable-tvm-ffi --gpu-arch {arch}")
    compiled.export_to_c(output, function_name="double", export_only_tvm_ffi_symbols=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
