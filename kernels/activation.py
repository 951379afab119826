"""``out = op(x)`` for an activation that the caller names.

Memory is the limit: ``x`` is read once, ``out`` written once; the arithmetic, in f32, hides behind that.
An activation is a class, and the kernel is compiled for it: a new one is a class and a line in ``OPS``.
"""

from __future__ import annotations

import math
from typing import Protocol

import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32

import aot

from ._device import ARCHS, DTYPES, SCALAR, SMALL, Elementwise, ElementwiseTiling, elementwise_specs
from .contracts import activation as contract

TILINGS = {"vector": (SMALL, ElementwiseTiling(threads=256, unroll=4, vector=True)), "scalar": (SCALAR,)}


class Activation(Protocol):
    """A function of one variable, which a kernel is compiled for. NaN in is NaN out."""

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA: ...


class Relu(Activation):
    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        return cute.where(x < 0.0, cute.zeros_like(x), x)


class Silu(Activation):
    """``x * sigmoid(x)``."""

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        return x * _sigmoid(x)


class Gelu(Activation):
    """``x * (1 + erf(x / sqrt(2))) / 2``: ``x`` times the part of a normal distribution that lies below it.

    By formula 7.1.26 of Abramowitz and Stegun, to 1.5e-7, with a quarter fewer instructions than the library's
    ``erf``: memory should not have to wait. It gives the part beyond ``|x|``, so that nothing cancels.
    """

    P, A = 0.3275911, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)

    @classmethod
    def apply(cls, x: cute.TensorSSA) -> cute.TensorSSA:
        t = cute.math.rcp(1.0 + cls.P * math.sqrt(0.5) * cute.math.abs(x), approx=True, ftz=True)
        series = 0.0
        for a in cls.A:
            series = series * t + 0.5 * a
        beyond = series * t * cute.math.exp2(-0.5 * math.log2(math.e) * x * x)
        return x * cute.where(x < 0.0, beyond, 1.0 - beyond)


class GeluTanh(Activation):
    """``x * (1 + tanh(u)) / 2`` with ``u = sqrt(2 / pi) * (x + 0.044715 * x^3)``.

    Written as ``x * sigmoid(2 * u)``, which is the same, and exact where ``1 + tanh(u)`` would cancel.
    """

    @staticmethod
    def apply(x: cute.TensorSSA) -> cute.TensorSSA:
        scale = 2 * math.sqrt(2 / math.pi)
        return x * _sigmoid(x * (scale + scale * 0.044715 * x * x))


def _sigmoid(x: cute.TensorSSA) -> cute.TensorSSA:
    # Two instructions of the special function unit, each good to 2 units in the last place.
    return cute.math.rcp(1.0 + cute.math.exp2(-math.log2(math.e) * x), approx=True, ftz=True)


OPS = {"relu": Relu, "gelu": Gelu, "gelu_tanh": GeluTanh, "silu": Silu}


class Activate(Elementwise):
    def __init__(self, tiling: ElementwiseTiling, rank: int, dtype: str, op: type[Activation]) -> None:
        super().__init__(tiling, rank, dtype)
        self.op = op

    def apply(self, x: cute.TensorSSA) -> cute.TensorSSA:
        return self.op.apply(x.to(Float32))

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream: CUstream):
        self.launch([x], out, stream)


@aot.kernel(
    parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x")),
    archs=ARCHS,
    choices={"op": OPS},
    axes={"rank": (1, 2), "dtype": DTYPES, "access": TILINGS},
    reference=contract.reference,
    inputs=contract.inputs,
    cost=contract.cost,
)
def activation(
    target: aot.Target, op: type[Activation], rank: int, dtype: str, access: tuple[ElementwiseTiling, ...]
) -> list[aot.Spec]:
    """``out = op(x)``, element by element, where ``op`` is relu, gelu (by erf), gelu_tanh or silu."""
    arguments = lambda made: {"x": made.tensor, "out": made.tensor, "stream": aot.Stream()}  # noqa: E731
    return elementwise_specs(target, access, lambda tiling: Activate(tiling, rank, dtype, op), arguments)
