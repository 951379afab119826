"""Two kernels for the C++ demos, small enough to check against a loop on the CPU."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot

ARCHS = ("sm_80", "sm_90a", "sm_100f", "sm_120f")
THREADS = 256


@cute.kernel
def axpy_kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor, alpha: cutlass.Float32):
    index = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
    if index < cute.size(out):
        out[index] = alpha * x[index] + y[index]


@cute.jit
def launch_axpy(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor, alpha: cutlass.Float32, stream: CUstream):
    blocks = cute.ceil_div(cute.size(out), THREADS)
    axpy_kernel(x, y, out, alpha).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)


@aot.kernel(
    parameters=(
        aot.In("x", "a vector of float32"),
        aot.In("y", "another, as long"),
        aot.Out("out", "where the result goes", shape="x.shape", dtype="x.dtype", may_be=("x", "y")),
        aot.In("alpha", "what x is multiplied with", default=1.0),
    ),
    archs=ARCHS,
)
def axpy(target: aot.Target) -> aot.Spec:
    """``out = alpha * x + y``."""
    vector = aot.Tensor("f32", ("n",))
    arguments = {"x": vector, "y": vector, "out": vector, "alpha": aot.Scalar("f32"), "stream": aot.Stream()}
    return aot.Spec(launch_axpy, arguments)


class Relu:
    FLOOR = 0.0


class Clamp:
    FLOOR = -1.0


@cute.kernel
def activate_kernel(x: cute.Tensor, out: cute.Tensor, floor: cutlass.Constexpr):
    index = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
    if index < cute.size(out):
        value = x[index]
        out[index] = value if value > cutlass.Float32(floor) else cutlass.Float32(floor)


@cute.jit
def launch_activate(x: cute.Tensor, out: cute.Tensor, kind: cutlass.Constexpr, stream: CUstream):
    blocks = cute.ceil_div(cute.size(out), THREADS)
    activate_kernel(x, out, kind.FLOOR).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x")),
    archs=ARCHS,
    choices={"kind": {"relu": Relu, "clamp": Clamp}},
    choice_defaults={"kind": "relu"},
)
def activate(target: aot.Target, kind: type) -> aot.Spec:
    """``out = max(x, 0)``, or ``max(x, -1)`` for ``clamp``."""
    vector = aot.Tensor("f32", ("n",))
    return aot.Spec(launch_activate, {"x": vector, "out": vector, "kind": aot.Constant(kind), "stream": aot.Stream()})
