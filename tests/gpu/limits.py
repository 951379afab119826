"""Kernels at the limits of a launch, with scratch memory, and one that prints: see ``test_limits.py``."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot

THREADS = 256
ARCHS = ("sm_80", "sm_90a")
OUT = aot.Out("out", shape="x.shape", dtype="x.dtype")


@cute.kernel
def add_up(x: cute.Tensor, scratch: cute.Tensor):
    index = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
    if index < cute.size(x):
        scratch[index] = scratch[index] + x[index]


@cute.kernel
def double(scratch: cute.Tensor, out: cute.Tensor):
    index = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
    if index < cute.size(out):
        # The other end, so that a block reads what other blocks of the launch ahead have written.
        out[cute.size(out) - 1 - index] = 2.0 * scratch[cute.size(out) - 1 - index]


@cute.jit
def through_scratch(x: cute.Tensor, scratch: cute.Tensor, out: cute.Tensor, stream: CUstream):
    blocks = cute.ceil_div(cute.size(x), THREADS)
    add_up(x, scratch).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)
    double(scratch, out).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)


@aot.kernel(
    parameters=(aot.In("x"), OUT, aot.Workspace("scratch", bytes="4 * x.shape[0]", zeroed=True)),
    archs=ARCHS,
)
def doubled(target: aot.Target) -> aot.Spec:
    """``out = 2 * x``, by way of scratch memory that must be zero and must be nobody else's."""
    vector = aot.Tensor("f32", ("n",))
    scratch = aot.Tensor("f32", ("length",))
    return aot.Spec(through_scratch, {"x": vector, "scratch": scratch, "out": vector, "stream": aot.Stream()})


@cute.kernel
def write_number(out: cute.Tensor):
    index = cute.arch.block_idx()[1]
    if index < cute.size(out):
        out[index] = cutlass.Float32(index)


@cute.jit
def blocks_in_y(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    write_number(out).launch(grid=[1, cute.size(x), 1], block=[1, 1, 1], stream=stream)


@aot.kernel(parameters=(aot.In("x"), OUT), archs=ARCHS)
def numbered(target: aot.Target) -> aot.Spec:
    """``out[i] = i``, with a block in y for each element: more than 65,535 are too many."""
    vector = aot.Tensor("f32", ("n",))
    return aot.Spec(blocks_in_y, {"x": vector, "out": vector, "stream": aot.Stream()})


@cute.kernel
def say(x: cute.Tensor):
    if cute.arch.thread_idx()[0] == 0:
        cute.printf("the first of {} is {}", cute.size(x), x[0])


@cute.jit
def say_first(x: cute.Tensor, stream: CUstream):
    say(x).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@aot.kernel(parameters=(aot.In("x"),), archs=ARCHS)
def printed(target: aot.Target) -> aot.Spec:
    """Prints its first element."""
    return aot.Spec(say_first, {"x": aot.Tensor("f32", ("n",)), "stream": aot.Stream()})
