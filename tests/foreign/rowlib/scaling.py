"""``out = alpha * x * weight``, in the manner of quack: a class per kernel, a cached function that compiles it."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

from . import config
from .caching import jit_cache

DTYPES = {"f16": cutlass.Float16, "f32": cutlass.Float32}


class Scale:
    """Scales the rows of a matrix."""

    def __init__(self, dtype: type[cutlass.Numeric], n: int) -> None:
        self.dtype, self.n = dtype, n
        self.threads = config.threads_for(n)

    @cute.jit
    def __call__(
        self, x: cute.Tensor, weight: cute.Tensor | None, out: cute.Tensor, alpha: cutlass.Float32, stream: CUstream
    ):
        self.kernel(x, weight, out, alpha).launch(
            grid=[cute.size(x, mode=[0]), 1, 1], block=[self.threads, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(self, x: cute.Tensor, weight: cute.Tensor | None, out: cute.Tensor, alpha: cutlass.Float32):
        row, thread = cute.arch.block_idx()[0], cute.arch.thread_idx()[0]
        for step in cutlass.range_constexpr(0, self.n, self.threads):
            column = thread + step
            if column < self.n:
                value = x[row, column].to(cutlass.Float32) * alpha
                if cutlass.const_expr(weight is not None):
                    value = value * weight[column].to(cutlass.Float32)
                out[row, column] = value.to(self.dtype)


@jit_cache
def _compile_scale(dtype: str, n: int, weighted: bool) -> Any:
    rows, kind = cute.sym_int(), DTYPES[dtype]
    x, out = (cute.runtime.make_fake_compact_tensor(kind, (rows, n), stride_order=(1, 0)) for _ in range(2))
    weight = cute.runtime.make_fake_compact_tensor(kind, (n,)) if weighted else None
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(Scale(kind, n), x, weight, out, cutlass.Float32(0), stream, options="--enable-tvm-ffi")


def scale(x: Any, weight: Any, out: Any, alpha: float = 1.0, *, dtype: str, n: int) -> None:
    """The library's public function. It looks at no device and allocates nothing."""
    _compile_scale(dtype, n, weight is not None)(x, weight, out, alpha)
