"""A product that is added to a matrix. The tolerance of the dtype is enough: the sum is f32, and rounded once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import aot

from ._small import SMALL

# The last one has the tiling for long sums.
SHAPES = (*SMALL, (2049, 1288, 200), (1030, 4104, 520), (2056, 8200, 8200))
BENCH = ((16_384, 2048, 2048), (16_384, 2048, 8192), (4096, 4096, 14_336))


def reference(a: Any, b: Any, addend: Any) -> Any:
    return addend.double() + a.double() @ b.double().mT


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in SHAPES:
        yield _call(make, dtype, m, n, k)
    yield {**_call(make, dtype, 40, 72, 64), "addend": make.tensor((40, 72), dtype, stride=80)}
    special = _call(make, dtype, 40, 72, 72)
    # These must reach the elements of their row or column, and no others.
    special["a"][3, 5], special["b"][7, 70], special["addend"][9, 9] = math.nan, math.inf, math.nan
    yield special


def _call(make: Any, dtype: str, m: int, n: int, k: int) -> dict[str, Any]:
    b = make.tensor((n, k), dtype)
    b *= max(k, 1) ** -0.5
    return {"a": make.tensor((m, k), dtype), "b": b, "addend": make.tensor((m, n), dtype)}


def cost(a: Any, b: Any, addend: Any) -> aot.Cost:
    (m, k), n = a.shape, b.shape[0]
    return aot.Cost(2 * m * n * k, (a.numel() + b.numel() + 2 * addend.numel()) * a.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in BENCH:
        yield _call(make, dtype, m, n, k)


def torch_equivalent(a: Any, b: Any, addend: Any) -> Any:
    import torch

    return torch.addmm(addend, a, b.mT)
