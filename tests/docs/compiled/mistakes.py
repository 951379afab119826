"""Mistakes that ``docs/faq.md`` and ``docs/guides/kernels.md`` show, each a kernel of its own.

``test_compiled.py`` compares what the compiler and the builder say of them.
"""

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot

PARAMETERS = (aot.In("x"), aot.Out("out", shape="x.shape", dtype="f16"))
ARGUMENTS = {"x": aot.Tensor("f32", ("n",)), "out": aot.Tensor("f16", ("n",)), "stream": aot.Stream()}


def declare(kernel):
    """A kernel that launches one block of a mistake."""

    @cute.jit
    def launch(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
        kernel(x, out).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

    @aot.kernel(parameters=PARAMETERS, archs=("sm_90a",), name=kernel.__name__)
    def make(target):
        return aot.Spec(launch, ARGUMENTS)

    return make


# A store converts nothing.


@cute.kernel
def store_other_type(x: cute.Tensor, out: cute.Tensor):
    index = cute.arch.thread_idx()[0]
    out[index] = x[index]  # right: x[index].to(out.element_type)


# No return, break or continue out of what runs on the device.


@cute.kernel
def return_early(x: cute.Tensor, out: cute.Tensor):
    index = cute.arch.thread_idx()[0]
    if index >= cute.size(x):
        return
    out[index] = x[index].to(out.element_type)


# Functions are in cute.math, and not all of them.


@cute.kernel
def call_sigmoid(x: cute.Tensor, out: cute.Tensor):
    index = cute.arch.thread_idx()[0]
    out[index] = cute.sigmoid(x[index]).to(out.element_type)


# A kernel is launched by a jit function. Device code calls jit functions.


@cute.kernel
def first(x: cute.Tensor, out: cute.Tensor):
    out[0] = x[0].to(out.element_type)


@cute.kernel
def call_kernel(x: cute.Tensor, out: cute.Tensor):
    first(x, out)


# A name has one type, whichever way the code takes.


@cute.kernel
def change_type(x: cute.Tensor, out: cute.Tensor):
    index = cute.arch.thread_idx()[0]
    value = x[index]
    if index < 16:
        value = value.to(cutlass.Float16)
    out[index] = value.to(out.element_type)


# A kernel takes the arguments of its own signature.


@cute.jit
def launch_without_out(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    store_other_type(x).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


@aot.kernel(parameters=PARAMETERS, archs=("sm_90a",))
def leave_out(target):
    return aot.Spec(launch_without_out, ARGUMENTS)


# Types of MLIR exist while a function is compiled.


@aot.kernel(parameters=PARAMETERS, archs=("sm_90a",))
def type_outside(target):
    element = cutlass.Float32.mlir_type
    return aot.Spec(lambda x, out, stream: element, ARGUMENTS)


# The compiler takes any number of threads.


@cute.jit
def launch_wide(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    first(x, out).launch(grid=[1, 1, 1], block=[2048, 1, 1], stream=stream)


@aot.kernel(parameters=PARAMETERS, archs=("sm_90a",))
def wide_block(target):
    return aot.Spec(launch_wide, ARGUMENTS)


one = declare(store_other_type)
two = declare(return_early)
three = declare(call_sigmoid)
four = declare(call_kernel)
five = declare(change_type)


# Layouts and tensors exist while a function is compiled.


@aot.kernel(parameters=PARAMETERS, archs=("sm_90a",))
def layout_outside(target):
    layout = cute.make_layout((8, 4))
    return aot.Spec(lambda x, out, stream: layout, ARGUMENTS)


# The source must be in a file.

names = {"cute": cute, "CUstream": CUstream}
exec("@cute.jit\ndef generated(x: cute.Tensor, out: cute.Tensor, stream: CUstream):\n    pass\n", names)


@aot.kernel(parameters=PARAMETERS, archs=("sm_90a",))
def without_source(target):
    return aot.Spec(names["generated"], ARGUMENTS)
