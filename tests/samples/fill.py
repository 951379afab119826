"""Kernels that write constants, one for each thing a declaration can say.

What they compute does not matter; what they launch does: tests look at grid, block and stream.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot

ARCHS = ("sm_80", "sm_86", "sm_90a", "sm_100f", "sm_103a", "sm_120f")
# Of kernels whose point is not the architecture. Each variant takes a third of a second to build.
FEW_ARCHS = ("sm_80", "sm_90a")


@cute.kernel
def write(out: cute.Tensor, value: cutlass.Float32):
    index = cute.arch.block_idx()[0] * cute.arch.block_dim()[0] + cute.arch.thread_idx()[0]
    if index < cute.size(out):
        out[index] = value.to(out.element_type)


class Fill:
    """Writes a value; ``threads`` per block tells in a launch which variant ran."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @cute.jit
    def __call__(self, out: cute.Tensor, value: cutlass.Float32, stream: CUstream):
        blocks = cute.ceil_div(cute.size(out), self.threads)
        write(out, value).launch(grid=[blocks, 1, 1], block=[self.threads, 1, 1], stream=stream)


OUT = aot.Out("out", "what is filled", shape="out.shape", dtype="out.dtype")


@aot.kernel(
    parameters=(OUT, aot.In("value", "with what", default=1.0)),
    archs=ARCHS,
    axes={"dtype": ("f16", "bf16", "f32"), "aligned": (True, False)},
)
def fill(target: aot.Target, dtype: str, aligned: bool) -> aot.Spec:
    """Fill a vector with a value."""
    out = aot.Tensor(dtype, ("n",), align=16 if aligned else None)
    return aot.Spec(Fill(128 if aligned else 64), {"out": out, "value": aot.Scalar("f32"), "stream": aot.Stream()})


@aot.kernel(
    parameters=(OUT, aot.In("value")),
    archs=(*FEW_ARCHS, "sm_100f", "sm_103a"),
    axes={"threads": (32, 64, 128, 256)},
)
def fill_guarded(target: aot.Target, threads: int) -> aot.Spec:
    """Chooses its block by the length: up to 100, up to 1000 in steps of 8, a float guard, the rest."""
    guards = {32: "n <= 100", 64: ("n % 8 == 0", "n <= 1000"), 128: "value == 0.5", 256: ()}[threads]
    arguments = {"out": aot.Tensor("f32", ("n",)), "value": aot.Scalar("f32"), "stream": aot.Stream()}
    return aot.Spec(Fill(threads), arguments, guards=guards)


@aot.kernel(parameters=(OUT, aot.In("value")), archs=("sm_90a",), tuned_by=("n",))
def fill_tuned(target: aot.Target) -> list[aot.Spec]:
    """Three blocks for every length: which of them is a matter of preference, or of a measured table."""
    arguments = {"out": aot.Tensor("f32", ("n",)), "value": aot.Scalar("f32"), "stream": aot.Stream()}
    prefer = {32: "n <= 100", 64: "n <= 1000", 128: ()}
    return [aot.Spec(Fill(threads), arguments, label=f"t{threads}", prefer=prefer[threads]) for threads in prefer]


@cute.jit
def fill_on_stream(pointer: cute.Pointer, count: cutlass.Int32, stream: CUstream):
    out = cute.make_tensor(pointer, cute.make_layout((count,)))
    write(out, cutlass.Float32(2.0)).launch(grid=[cute.ceil_div(count, 32), 1, 1], block=[32, 1, 1], stream=stream)


@aot.kernel(parameters=(aot.In("pointer"), aot.In("count"), aot.In("stream")), archs=ARCHS)
def fill_pointer(target: aot.Target) -> aot.Spec:
    """Takes an address and an explicit stream."""
    arguments = {"pointer": aot.Pointer("f32"), "count": aot.Scalar("i32"), "stream": aot.Stream(explicit=True)}
    return aot.Spec(fill_on_stream, arguments)


@cute.jit
def fill_persistent(multiprocessors: cutlass.Int32, out: cute.Tensor, stream: CUstream):
    write(out, cutlass.Float32(3.0)).launch(grid=[multiprocessors, 1, 1], block=[32, 1, 1], stream=stream)


@aot.kernel(parameters=(OUT,), archs=ARCHS)
def fill_everywhere(target: aot.Target) -> aot.Spec:
    """Launches one block per multiprocessor of the device it runs on."""
    arguments = {"sms": aot.Multiprocessors(), "out": aot.Tensor("f32", ("n",)), "stream": aot.Stream()}
    return aot.Spec(fill_persistent, arguments)


@cute.jit
def fill_in_clusters(out: cute.Tensor, clusters: cutlass.Int32, stream: CUstream):
    write(out, cutlass.Float32(4.0)).launch(
        grid=[2 * clusters, 1, 1], block=[32, 1, 1], cluster=[2, 1, 1], stream=stream
    )


@aot.kernel(parameters=(OUT,), archs=("sm_90a", "sm_100f"))
def fill_clusters(target: aot.Target) -> aot.Spec:
    """Launches as many clusters of two blocks as the device runs at once."""
    arguments = {"out": aot.Tensor("f32", ("n",)), "clusters": aot.ActiveClusters(), "stream": aot.Stream()}
    return aot.Spec(fill_in_clusters, arguments)


class Pair(NamedTuple):
    first: cute.Tensor
    second: cute.Tensor


@cute.jit
def fill_both(pair: Pair, weights: tuple[cutlass.Float32, cutlass.Int32], stream: CUstream):
    threads = 32
    write(pair[0], weights[0]).launch(grid=[1, 1, 1], block=[threads, 1, 1], stream=stream)
    write(pair[1], weights[0]).launch(grid=[weights[1], 1, 1], block=[threads, 1, 1], stream=stream)


@aot.kernel(parameters=(aot.In("pair"), aot.In("weights")), archs=FEW_ARCHS, axes={"dtype": ("f16", "f32")})
def fill_pair(target: aot.Target, dtype: str) -> aot.Spec:
    """Takes a named tuple of tensors and a tuple of scalars."""
    tensor = aot.Tensor(dtype, ("n",))
    pair = aot.Tuple((tensor, tensor), type=Pair)
    arguments = {"pair": pair, "weights": aot.Tuple((aot.Scalar("f32"), aot.Scalar("i32"))), "stream": aot.Stream()}
    return aot.Spec(fill_both, arguments)


@cute.jit
def fill_perhaps(out: cute.Tensor, bias: cute.Tensor | None, stream: CUstream):
    threads = 32 if cutlass.const_expr(bias is None) else 64
    write(out, cutlass.Float32(5.0)).launch(grid=[1, 1, 1], block=[threads, 1, 1], stream=stream)


@aot.kernel(parameters=(OUT, aot.In("bias", default=None)), archs=FEW_ARCHS, axes={"bias": (True, False)})
def fill_optional(target: aot.Target, bias: bool) -> aot.Spec:
    """Takes ``None`` or a matrix whose rows are as long as ``out``."""
    given = aot.Tensor("f32", (4, "n")) if bias else None
    return aot.Spec(fill_perhaps, {"out": aot.Tensor("f32", ("n",)), "bias": given, "stream": aot.Stream()})


@cute.jit
def fill_in_parts(out: cute.Tensor, count: cutlass.Int32, parts: cute.Tensor | None, stream: CUstream):
    blocks = 1 if cutlass.const_expr(parts is None) else cute.size(parts)
    write(out, cutlass.Float32(6.0)).launch(grid=[blocks, 1, 1], block=[32, 1, 1], stream=stream)


@aot.kernel(
    parameters=(OUT, aot.In("count"), aot.Workspace("parts", "partial sums", bytes="4 * count", zeroed=True)),
    archs=("sm_90a",),
)
def fill_parts(target: aot.Target) -> list[aot.Spec]:
    """Needs scratch memory for more than one part, and launches a block for each of its elements."""
    out = {"out": aot.Tensor("f32", ("n",)), "count": aot.Scalar("i32")}
    parts = aot.Tensor("f32", ("length",), align=128)
    return [
        aot.Spec(fill_in_parts, {**out, "parts": None, "stream": aot.Stream()}, guards="count == 1", label="whole"),
        aot.Spec(fill_in_parts, {**out, "parts": parts, "stream": aot.Stream()}, label="parts"),
    ]


class Epilogue:
    THREADS = 32


class Identity(Epilogue):
    THREADS = 96


class ReLU(Epilogue):
    THREADS = 160


@cute.jit
def fill_with(out: cute.Tensor, epilogue: cutlass.Constexpr, stream: CUstream):
    write(out, cutlass.Float32(6.0)).launch(grid=[1, 1, 1], block=[epilogue.THREADS, 1, 1], stream=stream)


@aot.kernel(
    parameters=(OUT,),
    archs=ARCHS,
    choices={"epilogue": {"identity": Identity, "relu": ReLU}},
    choice_defaults={"epilogue": "identity"},
)
def fill_epilogue(target: aot.Target, epilogue: type[Epilogue]) -> aot.Spec:
    """A compile-time class that the caller names."""
    arguments = {"out": aot.Tensor("f32", ("n",)), "epilogue": aot.Constant(epilogue), "stream": aot.Stream()}
    return aot.Spec(fill_with, arguments)


@cute.jit
def fill_default_stream(out: cute.Tensor):
    write(out, cutlass.Float32(7.0)).launch(grid=[1, 1, 1], block=[32, 1, 1])


@aot.kernel(parameters=(OUT,), archs=ARCHS)
def fill_stream_zero(target: aot.Target) -> aot.Spec:
    """Launches on stream 0, and says that it means to."""
    return aot.Spec(fill_default_stream, {"out": aot.Tensor("f32", ("n",))}, default_stream=True)
