"""Kernels whose variants differ between architectures that share a device.

A device of capability 8.6 runs code for sm_80 and sm_86, one of 10.3 code for sm_100f and sm_103a. Where the better
build has no variant for the arguments, the other one must get its chance. The block tells which architecture ran.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream

import aot

from .fill import FEW_ARCHS, OUT, Fill, fill_perhaps, fill_with, write

THREADS = {"sm_80": 32, "sm_86": 64, "sm_100f": 96, "sm_103a": 128}


@aot.kernel(parameters=(OUT, aot.In("value", default=1.0)), archs=tuple(THREADS), axes={"dtype": ("f16", "f32")})
def fill_by_arch(target: aot.Target, dtype: str) -> aot.Spec | list[aot.Spec]:
    """The older architecture takes every vector; sm_86 only lengths in steps of 8, sm_103a only f16."""
    arch = str(target.arch)
    if arch == "sm_103a" and dtype != "f16":
        return []
    n = aot.Dim("n", divisible_by=8 if arch == "sm_86" else 1)
    arguments = {"out": aot.Tensor(dtype, (n,)), "value": aot.Scalar("f32"), "stream": aot.Stream()}
    return aot.Spec(Fill(THREADS[arch]), arguments)


class FillGroup:
    def __init__(self, threads: int) -> None:
        self.threads = threads

    @cute.jit
    def one(self, group: tuple[cute.Tensor], weights: tuple[cutlass.Float32], stream: CUstream):
        write(group[0], weights[0]).launch(grid=[1, 1, 1], block=[self.threads, 1, 1], stream=stream)

    @cute.jit
    def two(
        self,
        group: tuple[cute.Tensor, cute.Tensor],
        weights: tuple[cutlass.Float32, cutlass.Float32],
        stream: CUstream,
    ):
        write(group[1], weights[1]).launch(grid=[1, 1, 1], block=[self.threads, 1, 1], stream=stream)


@aot.kernel(
    parameters=(aot.In("group"), aot.In("weights")),
    archs=("sm_100f", "sm_103a"),
    axes={"last": ("f16", "f32")},
)
def fill_group(target: aot.Target, last: str) -> aot.Spec:
    """Takes one tensor on sm_103a, two on sm_100f, and as many weights."""
    arch = str(target.arch)
    fill = FillGroup(THREADS[arch] + (32 if last == "f32" else 0))
    first = () if arch == "sm_103a" else (aot.Tensor("f32", ("n",)),)
    group = (*first, aot.Tensor(last, ("m",)))
    weights = aot.Tuple(tuple(aot.Scalar("f32") for _ in group))
    arguments = {"group": aot.Tuple(group), "weights": weights, "stream": aot.Stream()}
    return aot.Spec(fill.two if first else fill.one, arguments)


class Block(NamedTuple):
    THREADS: int


@aot.kernel(
    parameters=(OUT,),
    archs=("sm_100f", "sm_103a"),
    choices={"size": ("small", "large")},
    choice_defaults={"size": "small"},
)
def fill_sized(target: aot.Target, size: str) -> aot.Spec | list[aot.Spec]:
    """``large`` exists for sm_100f alone."""
    arch = str(target.arch)
    if arch == "sm_103a" and size == "large":
        return []
    block = Block(THREADS[arch] * (4 if size == "large" else 1))
    arguments = {"out": aot.Tensor("f32", ("n",)), "epilogue": aot.Constant(block), "stream": aot.Stream()}
    return aot.Spec(fill_with, arguments)


@aot.kernel(parameters=(OUT, aot.In("bias", default=None)), archs=FEW_ARCHS, axes={"bias": (True, False)})
def fill_newer(target: aot.Target, bias: bool) -> aot.Spec | list[aot.Spec]:
    """Takes ``None`` on sm_80, and a vector too on sm_90a."""
    if bias and str(target.arch) == "sm_80":
        return []
    vector = aot.Tensor("f32", ("n",))
    return aot.Spec(fill_perhaps, {"out": vector, "bias": vector if bias else None, "stream": aot.Stream()})
