"""Kernels that ``docs/guides/kernels.md`` shows; ``test_compiled.py`` reads the code that is compiled from them."""

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

PARAMETERS = (aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype"))


# Alignment decides how wide loads and stores are.


@cute.kernel
def copy_four(x: cute.Tensor, out: cute.Tensor):
    index = cute.arch.thread_idx()[0]
    chunk = cute.make_rmem_tensor(4, x.element_type)
    cute.autovec_copy(cute.local_tile(x, (4,), (index,)), chunk)
    cute.autovec_copy(chunk, cute.local_tile(out, (4,), (index,)))


@cute.jit
def launch_copy(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    copy_four(x, out).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@aot.kernel(parameters=PARAMETERS, archs=("sm_90a",), axes={"aligned": (True, False)})
def copy(target, aligned):
    vector = aot.Tensor("f32", ("n",), align=16 if aligned else None)
    return aot.Spec(launch_copy, {"x": vector, "out": vector, "stream": aot.Stream()})


# The larger of two numbers, of which one may be NaN.


@cute.kernel
def larger(x: cute.Tensor, out: cute.Tensor):
    index = cute.arch.thread_idx()[0]
    out[index] = cute.arch.fmax(x[index], x[index + 1])  # a NaN is dropped
    out[index + 1] = cute.arch.fmax(x[index], x[index + 1], nan=True)  # a NaN stays


@cute.jit
def launch_larger(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    larger(x, out).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@aot.kernel(parameters=PARAMETERS, archs=("sm_90a",))
def maximum(target):
    vector = aot.Tensor("f32", ("n",))
    return aot.Spec(launch_larger, {"x": vector, "out": vector, "stream": aot.Stream()})


# Extents of 64 bits.


@cute.jit
def launch_long(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    cut, whole = x.shape[0], cute.size(x)
    assert (cut.width, whole.width) == (32, 64)
    copy_four(x, out).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@aot.kernel(parameters=PARAMETERS, archs=("sm_90a",))
def long(target):
    vector = aot.Tensor("f32", (aot.Dim("n", bits=64),))
    return aot.Spec(launch_long, {"x": vector, "out": vector, "stream": aot.Stream()})


# Room for several blocks on a multiprocessor limits the registers of a thread.


class Scale:
    """Each thread holds 128 numbers at once."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    @cute.kernel
    def scale(self, x: cute.Tensor, out: cute.Tensor):
        index = cute.arch.thread_idx()[0]
        chunk = cute.make_rmem_tensor(128, x.element_type)
        cute.autovec_copy(cute.local_tile(x, (128,), (index,)), chunk)
        values = chunk.load()
        chunk.store(values * values.reduce(cute.ReductionOp.ADD, Float32(0), 0))
        cute.autovec_copy(chunk, cute.local_tile(out, (128,), (index,)))

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: CUstream):
        launched = {"min_blocks_per_mp": self.blocks, "preferred_smem_carveout": -1}
        self.scale(x, out).launch(grid=[1, 1, 1], block=[256, 1, 1], stream=stream, **launched)


@aot.kernel(parameters=PARAMETERS, archs=("sm_90a",), axes={"room": {"any": 0, "three": 3}})
def scale(target, room):
    vector = aot.Tensor("f32", ("n",), align=16)
    guards = ("n <= 4096",) if room == 3 else ("n > 4096",)
    return aot.Spec(Scale(room), {"x": vector, "out": vector, "stream": aot.Stream()}, guards)


# Launched before the previous kernel has ended.


@cute.kernel
def wait_then_copy(x: cute.Tensor, out: cute.Tensor):
    index = cute.arch.thread_idx()[0]
    cute.arch.griddepcontrol_wait()  # before the first access to memory
    out[index] = x[index]


@cute.jit
def launch_early(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    blocks = cute.ceil_div(cute.size(x), 32)
    if blocks > 0:  # CUDA refuses an empty grid
        wait_then_copy(x, out).launch(grid=[blocks, 1, 1], block=[32, 1, 1], stream=stream, use_pdl=True)


@aot.kernel(parameters=PARAMETERS, archs=("sm_90a",))
def early(target):
    vector = aot.Tensor("f32", ("n",))
    return aot.Spec(launch_early, {"x": vector, "out": vector, "stream": aot.Stream()})
