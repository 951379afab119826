"""Activations: functions of one variable that elementwise kernels and the epilogues of products are compiled for."""

from __future__ import annotations

import math
from typing import Protocol

import cutlass
import cutlass.cute as cute
from cutlass import Int32

# Numbers of bf16 reach down to 1e-40, but a power or a reciprocal that is one instruction gives zero below 1e-38. So the
# functions for results of 16 bits compute 2 ** SHIFT times that factor, and multiply it with 2 ** -SHIFT * x. Each number
# of bf16 stays exact then: the smallest becomes 2 ** -149, the smallest of f32.
SHIFT = 16


class Activation(Protocol):
    """A function of one variable that a kernel is compiled for. NaN gives NaN."""

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA: ...


class Identity(Activation):
    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        return x


class Relu(Activation):
    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        return cute.math.max(x, cute.zeros_like(x), propagate_nan=True)


class Silu(Activation):
    """``x * sigmoid(x)``, as exact as torch's in f32."""

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        return x / (1.0 + _exp(-x))


class EpilogueSilu(Activation):
    """The same with fewer instructions and registers, for sums whose own error is larger: up to 20 units if ``x`` is -88."""

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


# ln 2 in two parts. The first has so few bits that products with exponents of f32 are exact.
LN2_HIGH, LN2_LOW = 0.693359375, math.log(2) - 0.693359375
ROUNDING = 1.5 * 2.0**23  # added to a small number and taken off again, it leaves the nearest integer
LARGEST_EXPONENT = 105.0  # exp of it is infinite in f32, and that of its negative is zero


def _exp(x: cute.TensorSSA) -> cute.TensorSSA:
    """``exp(x)`` within 3 units in the last place.

    ``exp2(x * log2(e))`` rounds its argument first: of 127, half a unit is 44 units of the result. So only the part of
    ``x`` that is no multiple of ``ln 2``, at most 0.35, is multiplied by ``log2(e)``. The other one is a power of two.
    """
    limit = cute.full_like(x, LARGEST_EXPONENT)
    x = cute.math.max(cute.math.min(x, limit), -limit)  # infinity less infinity would be NaN
    power = (math.log2(math.e) * x + ROUNDING) - ROUNDING
    rest = (x - power * LN2_HIGH) - power * LN2_LOW
    return _exp2(math.log2(math.e) * rest) * _exp2(power)


def _exp2(x: cute.TensorSSA) -> cute.TensorSSA:
    """One instruction, good to 2 units in the last place; results below 1e-38 are zero, which takes three fewer."""
    return cute.math.exp2(x, fastmath=True)


# Replacements that are exact enough for results of 16 bits.
ROUNDED = {
    Gelu: RoundedGelu,
    GeluTanh: RoundedGeluTanh,
    Silu: RoundedSilu,
}


@cute.jit
def activate(values: cute.Tensor, which: Int32, activations: cutlass.Constexpr):
    """Apply the activation of a call, named by its position among ``activations``, to values in registers."""
    for i in cutlass.range_constexpr(len(activations)):
        if cutlass.const_expr(activations[i] is not Identity):  # noqa: SIM102  decided when compiling
            if which == i:
                values.store(activations[i].apply(values.load()))
