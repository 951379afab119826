"""A product whose first heads are turned. The tolerance of the dtype is enough: sums are f32, and rounded once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import aot

from .._rotation import angles, turned

# Rows, heads, turned heads, elements of a head, k. Most extents are not multiples of a tile.
SHAPES = (
    (0, 2, 1, 64, 8),
    (1, 1, 1, 64, 8),
    (3, 3, 0, 64, 24),
    (17, 5, 3, 64, 72),
    (40, 2, 2, 64, 264),
    (64, 2, 1, 64, 64),
    (65, 4, 9, 64, 136),
    (128, 1, 1, 128, 8),
    (129, 3, 2, 128, 72),
    (333, 40, 36, 64, 808),
    (1030, 12, 10, 128, 520),
    (2049, 24, 20, 64, 200),
)
BENCH = ((16_384, 48, 40, 64, 2048), (16_384, 48, 40, 128, 4096))


def reference(a: Any, b: Any, cos: Any, sin: Any, heads: int) -> Any:
    import torch

    product = (a.double() @ b.double().mT).unflatten(-1, (-1, 2 * cos.shape[-1]))
    first = turned(product[:, :heads], cos.double(), sin.double())
    return torch.cat((first, product[:, heads:]), 1).flatten(1)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in SHAPES:
        yield _call(make, dtype, *shape)
    yield {**_call(make, dtype, 40, 3, 2, 64, 64), "a": make.tensor((40, 64), dtype, stride=72)}
    special = _call(make, dtype, 40, 3, 2, 64, 72)
    # These must reach the elements of their row, or of their column and the one that makes a pair with it, and no others.
    special["a"][3, 5], special["b"][7, 70] = math.nan, math.inf
    yield special


def _call(make: Any, dtype: str, m: int, heads: int, first: int, dim: int, k: int) -> dict[str, Any]:
    b = make.tensor((heads * dim, k), dtype)
    b *= max(k, 1) ** -0.5
    return {"a": make.tensor((m, k), dtype), "b": b, **angles(make, m, dim // 2), "heads": first}


def cost(a: Any, b: Any, cos: Any, sin: Any, heads: int) -> aot.Cost:
    (m, k), n = a.shape, b.shape[0]
    moved = (a.numel() + b.numel() + m * n) * a.element_size() + 4 * (cos.numel() + sin.numel())
    return aot.Cost(2 * m * n * k, moved)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in BENCH:
        yield _call(make, dtype, *shape)


def torch_equivalent(a: Any, b: Any, cos: Any, sin: Any, heads: int) -> Any:
    import torch

    product = (a @ b.mT).unflatten(-1, (-1, 2 * cos.shape[-1]))
    first = turned(product[:, :heads].float(), cos, sin).to(a.dtype)
    return torch.cat((first, product[:, heads:]), 1).flatten(1)
