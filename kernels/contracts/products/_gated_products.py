"""What the contracts of gated products share: the formula, and matrices in whose range silu is not linear."""

from __future__ import annotations

import math
from typing import Any


def gated(a: Any, b: Any) -> Any:
    gate, up = (a.double() @ b.double().mT).chunk(2, dim=-1)
    return gate * gate.sigmoid() * up


def special(make: Any, dtype: str) -> dict[str, Any]:
    """NaN and infinity must reach the elements of their row, or of the column of their half, and no others."""
    given = {"a": matrix(make, dtype, 40, 72), "b": matrix(make, dtype, 144, 72)}
    given["a"][3, 5], given["b"][7, 70], given["b"][80, 0] = math.nan, math.nan, math.inf
    return given


def matrix(make: Any, dtype: str, rows: int, k: int) -> Any:
    """Elements near k ** -0.25, so that products are in the range in which silu is not linear."""
    tensor = make.tensor((rows, k), dtype)
    tensor *= max(k, 1) ** -0.25
    return tensor
