"""The kernel, and the function that compiles it."""

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

from .helpers import apply
from .settings import Level

Scale = cutlass.Float32


class Sly:
    """Applies the helpers to a vector."""

    @cute.jit
    def __call__(self, x: cute.Tensor, level: cutlass.Constexpr, stream: CUstream):
        self.kernel(x, level).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, level: cutlass.Constexpr):
        index = cute.arch.thread_idx()[0]
        x[index] = self.scaled(apply(x[index], level), 2.0)

    @cute.jit
    def scaled(self, value, by: "Scale"):  # a text, as with `from __future__ import annotations`
        return value * cutlass.Float32(by)


def compile_sly():
    x = cute.runtime.make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(Sly(), x, Level.LOW, stream, options="--enable-tvm-ffi")
