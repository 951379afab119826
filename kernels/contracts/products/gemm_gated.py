"""Two products of the same rows, one of which gates the other: silu of the first, times the second.

The tolerance of the output's dtype is enough: both products are sums in f32, and only the result is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from ._gated_products import gated, matrix, special

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
    return gated(a, b)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in SHAPES:
        yield {"a": matrix(make, dtype, m, k), "b": matrix(make, dtype, 2 * n, k)}
    yield {"a": make.tensor((40, 64), dtype, stride=72), "b": make.tensor((144, 64), dtype, stride=128)}
    yield special(make, dtype)


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
