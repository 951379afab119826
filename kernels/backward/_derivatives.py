"""Derivatives of the activations, in f32. NaN gives NaN, as it does in torch."""

from __future__ import annotations

import math
from typing import Protocol

import cutlass.cute as cute


class Derivative(Protocol):
    """The gradient by ``x`` of a function of one variable, given the gradient of its result."""

    @staticmethod
    def apply(grad: cute.TensorSSA, x: cute.TensorSSA) -> cute.TensorSSA: ...


class Relu(Derivative):
    """Like torch: where ``x`` is NaN, the gradient passes."""

    @staticmethod
    def apply(grad: cute.TensorSSA, x: cute.TensorSSA) -> cute.TensorSSA:
        return cute.where(x <= 0.0, cute.zeros_like(grad), grad)


class Silu(Derivative):
    """``s * (1 + x * (1 - s))`` with ``s = sigmoid(x)``."""

    @staticmethod
    def apply(grad: cute.TensorSSA, x: cute.TensorSSA) -> cute.TensorSSA:
        gate = sigmoid(x)
        return grad * (gate * (1.0 + x * (1.0 - gate)))


class Gelu(Derivative):
    """The part of a normal distribution below ``x``, plus ``x`` times its density."""

    @staticmethod
    def apply(grad: cute.TensorSSA, x: cute.TensorSSA) -> cute.TensorSSA:
        below = 0.5 * cute.math.erfc(-math.sqrt(0.5) * x)
        density = (1 / math.sqrt(2 * math.pi)) * exp2((-0.5 * math.log2(math.e)) * x * x)
        return grad * (below + x * density)


class GeluTanh(Derivative):
    """``gelu_tanh(x) = x * s`` with ``s = sigmoid(2 u)``, so its derivative is ``s + x * s * (1 - s) * 2 u'``."""

    @staticmethod
    def apply(grad: cute.TensorSSA, x: cute.TensorSSA) -> cute.TensorSSA:
        scale = 2 * math.sqrt(2 / math.pi)
        gate = sigmoid(x * (scale + scale * 0.044715 * x * x))
        slope = scale + 3 * scale * 0.044715 * x * x
        return grad * (gate + x * gate * (1.0 - gate) * slope)


def sigmoid(x: cute.TensorSSA) -> cute.TensorSSA:
    return cute.math.rcp(1.0 + exp2(-math.log2(math.e) * x), approx=True, ftz=True)


def exp2(x: cute.TensorSSA) -> cute.TensorSSA:
    """One instruction, good to 2 units in the last place; results below 1e-38 are zero."""
    return cute.math.exp2(x, fastmath=True)
