"""``out = factor * x``, for vectors of any length."""

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot

from .contracts import scale as contract

THREADS = 128


@cute.kernel
def scale_elements(x: cute.Tensor, out: cute.Tensor, factor: cutlass.Float32):
    index = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
    if index < cute.size(x):
        out[index] = (x[index].to(cutlass.Float32) * factor).to(out.element_type)


@cute.jit
def launch(x: cute.Tensor, out: cute.Tensor, factor: cutlass.Float32, stream: CUstream):
    blocks = cute.ceil_div(cute.size(x), THREADS)
    if blocks > 0:  # CUDA refuses an empty grid
        scale_elements(x, out, factor).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)


@aot.kernel(
    parameters=(
        aot.In("x", "a vector"),
        aot.Out("out", "as long as x", shape="x.shape", dtype="x.dtype", may_be="x"),
        aot.In("factor", default=2.0),
    ),
    archs=("sm_80", "sm_90a"),
    axes={"dtype": ("f16", "f32")},
    contract=contract,
)
def scale(target: aot.Target, dtype: str) -> aot.Spec:
    """``out = factor * x``, element by element."""
    vector = aot.Tensor(dtype, ("n",))
    return aot.Spec(launch, {"x": vector, "out": vector, "factor": aot.Scalar("f32"), "stream": aot.Stream()})
