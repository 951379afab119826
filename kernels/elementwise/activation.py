"""``out = op(x)`` for an activation that the caller names.

Memory is the limit: ``x`` is read once and ``out`` is written once. The arithmetic, in f32, runs in the meantime.
The kernel is compiled for each activation. To add one, write a class and add a line to ``OPS``.
"""

from __future__ import annotations

import math
from typing import Protocol

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

from .._device import ARCHS, DTYPES
from ..contracts import activation as contract
from ._elementwise import ELEMENTWISE_TILINGS, Elementwise, ElementwiseTiling, elementwise_specs


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


class RoundedGelu(Activation):
    """The same for results of 16 bits, in eleven instructions, so neither memory nor tensor cores wait for it.

    The part of the distribution beyond ``|x|`` is ``2 ** p(|x|)`` for a polynomial that was fitted to it: right within
    7e-5 of itself down to 6e-16, where ``|x|`` is 8.
    """

    BEYOND = (
        -1.4541999e-06, 5.3548848e-05, -0.00086553211, 0.0082573054, -0.05348566, -0.45887872, -1.1511119, -1.0000054,
    )  # fmt: skip

    @classmethod
    def apply(cls, x: cute.TensorSSA) -> cute.TensorSSA:
        distance, (exponent, *coefficients) = cute.math.abs(x), cls.BEYOND
        for coefficient in coefficients:
            exponent = exponent * distance + coefficient
        beyond = _exp2(exponent)
        return x * cute.where(x < 0.0, beyond, 1.0 - beyond)


class BriefSilu(Activation):
    """``x * sigmoid(x)`` in three instructions, ``h + h * tanh(h)`` with ``h = x / 2``.

    Most of the time is spent in tanh, which is one special function; a power and a reciprocal would be two.
    """

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        return _half_more(x, 0.5 * x)


class BriefGelu(Activation):
    """``x`` times the part of a normal distribution below it, for results of 8 bits, in six instructions.

    The usual tanh in place of erf, its coefficients fitted to erf: the result is right within 1.5e-4 of ``|x|``.
    """

    INNER = (0.0352820485, 0.798801437)

    @classmethod
    def apply(cls, x: cute.TensorSSA) -> cute.TensorSSA:
        cubic, linear = cls.INNER
        return _half_more(x, x * (cubic * (x * x) + linear))


class GeluTanh(Activation):
    """``x * (1 + tanh(u)) / 2`` with ``u = sqrt(2 / pi) * (x + 0.044715 * x^3)``.

    Computed as the equal ``x * sigmoid(2 * u)``, which stays exact if ``1 + tanh(u)`` would cancel.
    """

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        scale = 2 * math.sqrt(2 / math.pi)
        return x * _sigmoid(x * (scale + scale * 0.044715 * x * x))


def _half_more(x: cute.TensorSSA, inner: cute.TensorSSA) -> cute.TensorSSA:
    """``x * (1 + tanh(inner)) / 2``; tanh is one instruction, right within 5e-4 of itself."""
    half = 0.5 * x
    return half * cute.math.tanh(inner, fastmath=True) + half


def _sigmoid(x: cute.TensorSSA) -> cute.TensorSSA:
    return cute.math.rcp(1.0 + _exp2(-math.log2(math.e) * x), approx=True, ftz=True)


def _exp2(x: cute.TensorSSA) -> cute.TensorSSA:
    """One instruction, good to 2 units in the last place; results below 1e-38 are zero, which takes three fewer."""
    return cute.math.exp2(x, fastmath=True)


OPS = {"relu": Relu, "gelu": Gelu, "gelu_tanh": GeluTanh, "silu": Silu}
ROUNDED = {Gelu: RoundedGelu}  # replacements that are exact enough for results of 16 bits


class Activate(Elementwise):
    def __init__(
        self, tiling: ElementwiseTiling, target: aot.Target, rank: int, dtype: str, op: type[Activation]
    ) -> None:
        super().__init__(tiling, target, rank, dtype)
        self.op = op if dtype == "f32" else ROUNDED.get(op, op)

    def apply(self, x: cute.TensorSSA) -> cute.TensorSSA:
        return self.op.apply(x.to(Float32))

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: CUstream):
        self.launch([x], out, stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x")),
    archs=ARCHS,
    choices={"op": OPS},
    axes={"rank": (1, 2), "dtype": DTYPES, "access": ELEMENTWISE_TILINGS},
    reference=contract.reference,
    inputs=contract.inputs,
    cost=contract.cost,
    backward=aot.Backward("activation_backward", saves="x", gradients="x"),
)
def activation(
    target: aot.Target, op: type[Activation], rank: int, dtype: str, access: tuple[ElementwiseTiling, ...]
) -> list[aot.Spec]:
    """``out = op(x)``, element by element, where ``op`` is relu, gelu (by erf), gelu_tanh or silu."""
    arguments = lambda made: {"x": made.tensor, "out": made.tensor, "stream": aot.Stream()}  # noqa: E731
    return elementwise_specs(target, access, lambda tiling: Activate(tiling, target, rank, dtype, op), arguments)
