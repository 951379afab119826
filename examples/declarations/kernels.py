"""One small kernel for each thing that a declaration can say. ``docs/reference/declaring.md`` quotes this file."""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot

ARCHS = ("sm_80", "sm_90a")


@cute.kernel
def multiply(x: cute.Tensor, out: cute.Tensor, factor: cutlass.Float32):
    block, thread = cutlass.Int64(cute.arch.block_idx()[0]), cute.arch.thread_idx()[0]
    index = block * cute.arch.block_dim()[0] + thread
    if index < cute.size(x):
        out[index] = (x[index].to(cutlass.Float32) * factor).to(out.element_type)


class Multiply:
    """The jit object that the declarations below compile. ``threads`` is the size of a block."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @cute.jit
    def __call__(self, out: cute.Tensor, x: cute.Tensor, factor: cutlass.Float32, stream: CUstream):
        blocks = cutlass.Int32((cute.size(x) + self.threads - 1) // self.threads)
        if blocks > 0:  # CUDA refuses an empty grid
            multiply(x, out, factor).launch(grid=[blocks, 1, 1], block=[self.threads, 1, 1], stream=stream)


# Argument order: the call is `scale(x, out, factor)`, the jit object takes `(out, x, factor, stream)`.


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype"), aot.In("factor", default=1.0)),
    archs=ARCHS,
    axes={"dtype": ("f16", "f32"), "aligned": (True, False)},
)
def scale(target: aot.Target, dtype: str, aligned: bool) -> aot.Spec:
    """``out = factor * x``."""
    vector = aot.Tensor(dtype, ("n",), align=16 if aligned else None)
    arguments = {"out": vector, "x": vector, "factor": aot.Scalar("f32"), "stream": aot.Stream()}
    return aot.Spec(Multiply(128 if aligned else 64), arguments)


# Labels: two specs for one point, told apart by a guard.


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype"), aot.In("factor")),
    archs=ARCHS,
    axes={"dtype": ("f32",)},
)
def scale_by_size(target: aot.Target, dtype: str) -> list[aot.Spec]:
    """``out = factor * x``, with small blocks for short vectors."""
    vector = aot.Tensor(dtype, ("n",))
    arguments = {"out": vector, "x": vector, "factor": aot.Scalar("f32"), "stream": aot.Stream()}
    return [
        aot.Spec(Multiply(64), arguments, guards=("n <= 4096",), label="small"),
        aot.Spec(Multiply(256), arguments, label="large"),
    ]


# Output dtype: the caller picks it by the tensor that it passes.


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="out.dtype"), aot.In("factor", default=1.0)),
    archs=ARCHS,
    axes={"dtype": ("f16",), "out_dtype": ("f16", "f32")},
)
def convert(target: aot.Target, dtype: str, out_dtype: str) -> aot.Spec:
    """``out = factor * x``, in the dtype of ``out``."""
    x, out = aot.Tensor(dtype, ("n",)), aot.Tensor(out_dtype, ("n",))
    return aot.Spec(Multiply(96), {"out": out, "x": x, "factor": aot.Scalar("f32"), "stream": aot.Stream()})


# Extents with conditions: a multiple of 8, or more elements than 32 bits count.


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype"), aot.In("factor")),
    archs=ARCHS,
    axes={"length": {"eights": aot.Dim("n", divisible_by=8), "long": aot.Dim("n", bits=64)}},
    options="--opt-level 2",
)
def scale_long(target: aot.Target, length: aot.Dim) -> aot.Spec:
    """``out = factor * x``, for vectors of any length."""
    vector = aot.Tensor("f32", (length,))
    arguments = {"out": vector, "x": vector, "factor": aot.Scalar("f32"), "stream": aot.Stream()}
    return aot.Spec(Multiply(128 if length.divisible_by == 8 else 32), arguments)


# Tuples: the jit function is annotated with a named tuple, so the declaration names the class.


class Pair(NamedTuple):
    left: cute.Tensor
    right: cute.Tensor


@cute.jit
def scale_both(pair: Pair, out: cute.Tensor, factors: tuple[cutlass.Float32, cutlass.Float32], stream: CUstream):
    multiply(pair.left, out, factors[0]).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)
    multiply(pair.right, out, factors[1]).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)


@aot.kernel(
    parameters=(aot.In("pair"), aot.Out("out", shape="out.shape", dtype="f32"), aot.In("factors")),
    archs=ARCHS,
)
def scale_pair(target: aot.Target) -> aot.Spec:
    """Called as ``scale_pair((left, right), out, (2.0, 3.0))``."""
    vector = aot.Tensor("f32", ("n",))
    arguments = {
        "pair": aot.Tuple((vector, vector), type=Pair),
        "out": vector,
        "factors": aot.Tuple((aot.Scalar("f32"), aot.Scalar("f32"))),
        "stream": aot.Stream(),
    }
    return aot.Spec(scale_both, arguments)


# Optional arguments: one variant takes a tensor, the other `None`.


@cute.jit
def scale_with_bias(x: cute.Tensor, bias: cute.Tensor | None, out: cute.Tensor, stream: CUstream):
    threads = 32 if cutlass.const_expr(bias is None) else 64
    multiply(x, out, cutlass.Float32(2.0)).launch(grid=[1, 1, 1], block=[threads, 1, 1], stream=stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype"), aot.In("bias", default=None)),
    archs=ARCHS,
    axes={"bias": (True, False)},
)
def scale_optional(target: aot.Target, bias: bool) -> aot.Spec:
    """``bias`` may be left out."""
    vector = aot.Tensor("f32", ("n",))
    return aot.Spec(
        scale_with_bias, {"x": vector, "bias": vector if bias else None, "out": vector, "stream": aot.Stream()}
    )


# An optional argument that code is not compiled for: instead of `None`, it gets a tensor without elements.


@cute.jit
def scale_with_any_bias(x: cute.Tensor, bias: cute.Tensor, out: cute.Tensor, stream: CUstream):
    threads = 64 if cute.size(bias) > 0 else 32
    multiply(x, out, cutlass.Float32(2.0)).launch(grid=[1, 1, 1], block=[threads, 1, 1], stream=stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype"), aot.In("bias", default=None)),
    archs=ARCHS,
)
def scale_either(target: aot.Target) -> aot.Spec:
    """``bias`` may be left out: the same code runs."""
    vector, bias = aot.Tensor("f32", ("n",)), aot.Tensor("f32", ("n",), optional=True)
    return aot.Spec(scale_with_any_bias, {"x": vector, "bias": bias, "out": vector, "stream": aot.Stream()})


# One code for a batch and for a single one.


@cute.jit
def scale_rows(x: cute.Tensor, out: cute.Tensor, stream: CUstream):
    rows, _ = x.shape
    multiply(x, out, cutlass.Float32(2.0)).launch(grid=[rows, 1, 1], block=[32, 1, 1], stream=stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype")),
    archs=ARCHS,
    axes={"batched": {"row": False, "rows": True}},
)
def scale_batch(target: aot.Target, batched: bool) -> aot.Spec:
    """A row, or a batch of rows. The code takes batches, and a row is passed to it as a batch of one."""
    rows = aot.Tensor("f32", ("batch", "n"))
    x = rows if batched else rows.single()
    return aot.Spec(scale_rows, {"x": x, "out": x, "stream": aot.Stream()})


# Arguments that a function takes at run time and this kernel fixes. Nothing is annotated with `Constexpr`, as in functions
# of other libraries: dispatch passes None, the number of blocks and the factor.


@cute.jit
def scale_all(
    x: cute.Tensor, bias: cute.Tensor | None, out: cute.Tensor, blocks, factor: cutlass.Float32, stream: CUstream
):
    multiply(x, out, factor).launch(grid=[blocks, 1, 1], block=[32, 1, 1], stream=stream)


@aot.kernel(parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype")), archs=ARCHS)
def scale_fixed(target: aot.Target) -> aot.Spec:
    """Callers pass neither the bias nor the numbers."""
    vector = aot.Tensor("f32", ("n",))
    fixed = {"bias": aot.Constant(None), "blocks": aot.Constant(7), "factor": aot.Constant(0.5)}
    return aot.Spec(
        scale_all,
        {
            "x": vector,
            "bias": fixed["bias"],
            "out": vector,
            "blocks": fixed["blocks"],
            "factor": fixed["factor"],
            "stream": aot.Stream(),
        },
    )


# Filled in by the device: the grid has one block per multiprocessor of the GPU that runs the call.


@cute.jit
def scale_persistent(x: cute.Tensor, out: cute.Tensor, multiprocessors: cutlass.Int32, stream: CUstream):
    multiply(x, out, cutlass.Float32(2.0)).launch(grid=[multiprocessors, 1, 1], block=[32, 1, 1], stream=stream)


@aot.kernel(parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype")), archs=ARCHS)
def scale_everywhere(target: aot.Target) -> aot.Spec:
    """One block per multiprocessor."""
    vector = aot.Tensor("f32", ("n",))
    arguments = {"x": vector, "out": vector, "sms": aot.Multiprocessors(), "stream": aot.Stream()}
    return aot.Spec(scale_persistent, arguments)


# Scratch memory: partial sums of the blocks, which a second launch adds up in their order.

PARTS = 64


@cute.kernel
def sum_stretches(x: cute.Tensor, parts: cute.Tensor):
    part = cute.arch.block_idx()[0]
    total = cutlass.Float32(0.0)
    for index in range(part, cute.size(x), PARTS):
        total += x[index]
    parts[part] = total


@cute.kernel
def sum_parts(parts: cute.Tensor, out: cute.Tensor):
    total = cutlass.Float32(0.0)
    for index in range(PARTS):
        total += parts[index]
    out[0] = total


@cute.jit
def sum_twice(x: cute.Tensor, out: cute.Tensor, parts: cute.Tensor, stream: CUstream):
    sum_stretches(x, parts).launch(grid=[PARTS, 1, 1], block=[1, 1, 1], stream=stream)
    sum_parts(parts, out).launch(grid=[1, 1, 1], block=[1, 1, 1], stream=stream)


@aot.kernel(
    parameters=(
        aot.In("x"),
        aot.Out("out", shape="(1,)", dtype="f32"),
        aot.Workspace("parts", "partial sums", bytes=f"4 * {PARTS}"),
    ),
    archs=ARCHS,
)
def total(target: aot.Target) -> aot.Spec:
    """The sum of a vector, called as ``total(x, out)``."""
    vector, one = aot.Tensor("f32", ("n",)), aot.Tensor("f32", (1,))
    parts = aot.Tensor("f32", ("length",))
    return aot.Spec(sum_twice, {"x": vector, "out": one, "parts": parts, "stream": aot.Stream()})


# Portable code: sm_86 runs what was written for sm_80.

CODE = {"sm_80": Multiply(128), "sm_90a": Multiply(256)}


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype"), aot.In("factor")),
    archs={"sm_80": "sm_80", "sm_86": "sm_80", "sm_90a": "sm_90a"},
)
def scale_portable(target: aot.Target) -> aot.Spec:
    """``out = factor * x``, with larger blocks on Hopper."""
    vector = aot.Tensor("f32", ("n",))
    arguments = {"out": vector, "x": vector, "factor": aot.Scalar("f32"), "stream": aot.Stream()}
    return aot.Spec(CODE[target.written_for], arguments)
