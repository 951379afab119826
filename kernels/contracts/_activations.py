"""Activations in f64, exact for results as small as bf16 has them."""

from __future__ import annotations

import math
from typing import Any


def _relu(x: Any) -> Any:
    return x.relu()


def _gelu(x: Any) -> Any:
    """By erfc, because ``1 + erf`` has no digits left if ``x`` is below -8, and results of bf16 go on down to -13.6."""
    return 0.5 * x * (-math.sqrt(0.5) * x).erfc()


def _gelu_tanh(x: Any) -> Any:
    """By sigmoid, for the same reason."""
    return x * (2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).sigmoid()


def _silu(x: Any) -> Any:
    return x * x.sigmoid()


EXACT = {"relu": _relu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu}
