"""Two products of the same rows, one of which gates the other: silu of the first, times the second.

The tolerance of the output's dtype is enough: both products are sums in f32, and only the result is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import aot

# m, n, k: at least one product for every tiling. Most extents are not multiples of a tile.
SHAPES = (
    (0, 8, 8),
    (1, 8, 8),
    (3, 24, 16),
    (40, 16, 264),
    (100, 56, 128),
    (16, 72, 64),
    (9, 136, 4104),
    (17, 64, 40),
    (64, 128, 1032),
    (65, 200, 64),
    (129, 264, 72),
    (333, 648, 808),
    (600, 1288, 1032),
    (1030, 1368, 200),
    (2049, 1136, 520),
    (2049, 4104, 200),
)
BENCH = ((1, 14_336, 4096), (64, 14_336, 4096), (4096, 14_336, 4096), (4096, 32_768, 5120))


def reference(a: Any, b: Any) -> Any:
    gate, up = (a.double() @ b.double().mT).chunk(2, dim=-1)
    return gate * gate.sigmoid() * up


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in SHAPES:
        yield {"a": _matrix(make, dtype, m, k), "b": _matrix(make, dtype, 2 * n, k)}
    yield {"a": make.tensor((40, 64), dtype, stride=72), "b": make.tensor((144, 64), dtype, stride=128)}
    special = {"a": _matrix(make, dtype, 40, 72), "b": _matrix(make, dtype, 144, 72)}
    # These must reach the elements of their row, or of the column of their half, and no others.
    special["a"][3, 5], special["b"][7, 70], special["b"][80, 0] = math.nan, math.nan, math.inf
    yield special


def _matrix(make: Any, dtype: str, rows: int, k: int) -> Any:
    """Elements near k ** -0.25, so that products are in the range in which silu is not linear."""
    tensor = make.tensor((rows, k), dtype)
    tensor *= max(k, 1) ** -0.25
    return tensor


def cost(a: Any, b: Any) -> aot.Cost:
    (m, k), both = a.shape, b.shape[0]
    return aot.Cost(2 * m * both * k, (a.numel() + b.numel() + m * both // 2) * a.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in BENCH:
        yield {"a": make.tensor((m, k), dtype), "b": make.tensor((2 * n, k), dtype)}


def torch_equivalent(a: Any, b: Any) -> Any:
    from torch.nn import functional

    gate, up = functional.linear(a, b).chunk(2, dim=-1)
    return functional.silu(gate) * up
