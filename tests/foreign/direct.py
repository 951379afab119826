"""A script that launches kernels in every way that needs no TVM-FFI, and compares the results.

It is an exercise as it is, and on a GPU a program that its own bundle serves:

    python -m aot capture tests/foreign/direct.py --arch sm90 --name direct
    python -m aot_runtime serve dist/direct -- python tests/foreign/direct.py
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def scale_kernel(x: cute.Tensor, out: cute.Tensor, factor: cutlass.Float32, n: cutlass.Constexpr[int]):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    i = b * 128 + t
    if i < cute.size(x):
        out[i] = x[i] * factor + n


@cute.jit
def scale(x: cute.Tensor, out: cute.Tensor, factor: cutlass.Float32, n: cutlass.Constexpr[int]):
    scale_kernel(x, out, factor, n).launch(grid=[(cute.size(x) + 127) // 128, 1, 1], block=[128, 1, 1])


class Adder:
    def __init__(self, amount):
        self.amount = amount

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: cuda.CUstream):
        self.kernel(x, out).launch(grid=[(cute.size(x) + 127) // 128, 1, 1], block=[128, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        b, _, _ = cute.arch.block_idx()
        i = b * 128 + t
        if i < cute.size(x):
            out[i] = x[i] + self.amount


if __name__ == "__main__":
    x = torch.randn(1000, device="cuda")
    out = torch.zeros_like(x)
    scale(x, out, 3.0, 2)
    torch.cuda.synchronize()
    torch.testing.assert_close(out, x * 3 + 2)
    scale(from_dlpack(x).mark_layout_dynamic(), from_dlpack(out).mark_layout_dynamic(), 5.0, 2)
    torch.cuda.synchronize()
    torch.testing.assert_close(out, x * 5 + 2)
    stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
    Adder(7.0)(x, out, stream)
    torch.cuda.synchronize()
    torch.testing.assert_close(out, x + 7)
    compiled = cute.compile(Adder(9.0), x, out, stream)
    compiled(x, out, stream)
    torch.cuda.synchronize()
    torch.testing.assert_close(out, x + 9)
    y = torch.randn(512, device="cuda")
    oy = torch.zeros_like(y)
    compiled(y, oy, stream)
    torch.cuda.synchronize()
    torch.testing.assert_close(oy, y + 9)
    print("direct ok")
