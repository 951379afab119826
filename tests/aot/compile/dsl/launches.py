"""Functions that launch kernels in clusters and without. Importing this imports CuTe DSL."""

import cutlass
import cutlass.cute as cute


@cute.kernel
def one(out: cute.Tensor):
    out[cute.arch.thread_idx()[0]] = cutlass.Float32(1.0)


@cute.kernel
def other(out: cute.Tensor):
    out[cute.arch.thread_idx()[0]] = cutlass.Float32(2.0)


@cute.jit
def in_clusters(out: cute.Tensor):
    one(out).launch(grid=[4, 2, 1], block=[32, 1, 1], cluster=[4, 2, 1])


@cute.jit
def without_clusters(out: cute.Tensor):
    one(out).launch(grid=[4, 1, 1], block=[32, 1, 1])


@cute.jit
def both(out: cute.Tensor):
    one(out).launch(grid=[4, 1, 1], block=[32, 1, 1], cluster=[2, 1, 1])
    other(out).launch(grid=[4, 1, 1], block=[32, 1, 1])
