"""What the contracts of matrix products share."""

from __future__ import annotations

import math
from typing import Any

import aot

# m, n and k of products to tune on: enough for a first model. The shipped ones are fitted to many more, which
# `benchmarks/tilings.py` measures.
TUNE = tuple((m, n, k) for m in (8, 48, 200, 1000) for n, k in ((4096, 4096), (12288, 5120)))


def with_specials(problem: dict[str, Any]) -> dict[str, Any]:
    """NaN and infinity, which must reach the elements of their row and column, and no others: 40 x 72 by 72 x 72."""
    problem["a"][3, 5], problem["a"][9, 0], problem["b"][7, 70], problem["bias"][11] = (
        math.nan,
        math.inf,
        -math.inf,
        math.nan,
    )
    return problem


def cost(a: Any, b: Any, **_: Any) -> aot.Cost:
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-2]
    batch = a.numel() // max(m * k, 1)
    return aot.Cost(operations=2 * batch * m * n * k, bytes=(a.numel() + b.numel() + batch * m * n) * a.element_size())
