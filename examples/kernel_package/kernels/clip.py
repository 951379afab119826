"""``out = max(x, bound)``, where the bound is chosen by name and compiled in."""

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot

THREADS = 256


@cute.kernel
def clip_elements(x: cute.Tensor, out: cute.Tensor, bound: cutlass.Constexpr):
    index = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
    if index < cute.size(x):
        value = x[index]
        if value < bound:
            value = cutlass.Float32(bound)
        out[index] = value


@cute.jit
def launch(x: cute.Tensor, out: cute.Tensor, bound: cutlass.Constexpr, stream: CUstream):
    blocks = cute.ceil_div(cute.size(x), THREADS)
    if blocks > 0:  # CUDA refuses an empty grid
        clip_elements(x, out, bound).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x")),
    archs=("sm_80", "sm_90a"),
    choices={"bound": {"zero": 0.0, "one": 1.0}},
    choice_defaults={"bound": "zero"},
)
def clip(target: aot.Target, bound: float) -> aot.Spec:
    """Raise every element to at least the bound."""
    vector = aot.Tensor("f32", ("n",))
    return aot.Spec(launch, {"x": vector, "out": vector, "bound": aot.Constant(bound), "stream": aot.Stream()})
