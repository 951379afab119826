"""``out = op(x)`` for an activation that the caller names.

Memory is the limit: ``x`` is read once and ``out`` is written once. The arithmetic, in f32, runs in the meantime.
The activation is a number that dispatch passes, so all of them share one kernel, in which every thread takes the same
branch. To add one, write a class and add a line to ``OPS``.
"""

from __future__ import annotations

import math
from typing import Protocol

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._device import ARCHS, DTYPES
from .._elementwise import ELEMENTWISE_TILINGS, Elementwise, ElementwiseTiling
from ..contracts.elementwise import activation as contract

# Numbers of bf16 reach down to 1e-40, but a power or a reciprocal that is one instruction gives zero below 1e-38. So the
# functions for results of 16 bits compute 2 ** SHIFT times that factor, and multiply it with 2 ** -SHIFT * x. Each number
# of bf16 stays exact then: the smallest becomes 2 ** -149, the smallest of f32.
SHIFT = 16


class Activation(Protocol):
    """A function of one variable that a kernel is compiled for. NaN gives NaN."""

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA: ...


class Relu(Activation):
    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        return cute.math.max(x, cute.zeros_like(x), propagate_nan=True)


class Silu(Activation):
    """``x * sigmoid(x)``."""

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        return x * _sigmoid(x)


class Gelu(Activation):
    """``x * (1 + erf(x / sqrt(2))) / 2``: ``x`` times the part of a normal distribution that lies below it."""

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        return x * (0.5 * cute.math.erfc(-math.sqrt(0.5) * x))


class RoundedSilu(Activation):
    """``x * sigmoid(x)`` for results of 16 bits: right at the smallest numbers of bf16 too."""

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        return _times_sigmoid(x, x)


class RoundedGelu(Activation):
    """The same for results of 16 bits, in fourteen instructions, so neither memory nor tensor cores wait for it.

    The part of the distribution beyond ``|x|`` is ``2 ** p(|x|)`` for a polynomial that was fitted to it: right within
    1e-5 of itself as far as ``|x|`` is 5.9, where results of f16 end, and within 1.1e-4 as far as 13.75, where results of
    bf16 end. The last coefficient has ``SHIFT`` added to it.
    """

    BEYOND = (
        -2.1733884e-09, 1.5591976e-07, -4.9028622e-06, 8.9574452e-05, -0.0010671027, 0.0088759214, -0.054484513,
        -0.4581205, -1.1513208, 15.000003,
    )  # fmt: skip

    @classmethod
    def apply(cls, x: cute.TensorSSA) -> cute.TensorSSA:
        distance, (exponent, *coefficients) = cute.math.abs(x), cls.BEYOND
        for coefficient in coefficients:
            exponent = exponent * distance + coefficient
        beyond = _exp2(exponent)
        return (2.0**-SHIFT * x) * cute.where(x < 0.0, beyond, 2.0**SHIFT - beyond)


class GeluTanh(Activation):
    """``x * (1 + tanh(u)) / 2`` with ``u = sqrt(2 / pi) * (x + 0.044715 * x^3)``.

    Computed as the equal ``x * sigmoid(2 * u)``, which stays exact if ``1 + tanh(u)`` would cancel.
    """

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        return x * _sigmoid(_twice_inner(x))


class RoundedGeluTanh(Activation):
    """The same for results of 16 bits: right at the smallest numbers of bf16 too."""

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        return _times_sigmoid(x, _twice_inner(x))


def _twice_inner(x: cute.TensorSSA) -> cute.TensorSSA:
    """``2 * u`` of :class:`GeluTanh`."""
    scale = 2 * math.sqrt(2 / math.pi)
    return x * (scale + scale * 0.044715 * x * x)


def _sigmoid(x: cute.TensorSSA) -> cute.TensorSSA:
    return cute.math.rcp(1.0 + _exp2(-math.log2(math.e) * x), approx=True, ftz=True)


def _times_sigmoid(x: cute.TensorSSA, y: cute.TensorSSA) -> cute.TensorSSA:
    """``x * sigmoid(y)`` for results of 16 bits."""
    inverse = 2.0**-SHIFT + _exp2(-math.log2(math.e) * y - float(SHIFT))
    return (2.0**-SHIFT * x) * cute.math.rcp(inverse, approx=True, ftz=True)


def _exp2(x: cute.TensorSSA) -> cute.TensorSSA:
    """One instruction, good to 2 units in the last place; results below 1e-38 are zero, which takes three fewer."""
    return cute.math.exp2(x, fastmath=True)


OPS = {"relu": Relu, "gelu": Gelu, "gelu_tanh": GeluTanh, "silu": Silu}
ROUNDED = {
    Gelu: RoundedGelu,
    GeluTanh: RoundedGeluTanh,
    Silu: RoundedSilu,
}  # replacements that are exact enough for results of 16 bits


class Activate(Elementwise):
    def __init__(self, tiling: ElementwiseTiling, target: aot.Target, rank: int, dtype: str) -> None:
        super().__init__(tiling, target, rank, dtype)
        self.ops = tuple(op if dtype == "f32" else ROUNDED.get(op, op) for op in OPS.values())

    @cute.jit
    def apply(self, x: cute.TensorSSA, op: Int32) -> cute.TensorSSA:
        x = x.to(Float32)
        result = x
        for number in cutlass.range_constexpr(len(self.ops)):
            if op == number:
                result = self.ops[number].apply(x)
        return result

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, op: Int32, stream: CUstream):
        self.launch([x], out, stream, (op,))


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x")),
    archs=ARCHS,
    choices={"op": {name: number for number, name in enumerate(OPS)}},
    axes={"rank": (1, 2), "dtype": DTYPES, "access": ELEMENTWISE_TILINGS},
    contract=contract,
    backward=aot.Backward("activation_backward", saves="x", gradients="x"),
)
def activation(target: aot.Target, op: int, rank: int, dtype: str, access: ElementwiseTiling) -> aot.Spec:
    """``out = op(x)``, element by element, where ``op`` is relu, gelu (by erf), gelu_tanh or silu."""
    made = Activate(access, target, rank, dtype)
    return aot.Spec(made, {"x": made.tensor, "out": made.tensor, "op": aot.Constant(op), "stream": aot.Stream()})
