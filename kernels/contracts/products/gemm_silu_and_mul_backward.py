"""A product that is the gradient of a gated one.

The tolerance of the dtype is enough: sums and the derivative are f32, and each result is rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import aot

from ._small import SMALL

SHAPES = (*SMALL, (2049, 1288, 200), (1030, 4104, 520))
BENCH = ((4096, 14_336, 4096), (16_384, 8192, 2048))


def reference(a: Any, b: Any, product: Any) -> Any:
    import torch

    grad, (gate, up) = a.double() @ b.double().mT, product.double().chunk(2, dim=-1)
    passed = gate.sigmoid()
    return torch.cat((grad * up * passed * (1 + gate * (1 - passed)), grad * gate * passed), -1)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in SHAPES:
        for columns in (False, True):
            yield _call(make, dtype, m, n, k, columns)
    strided = _call(make, dtype, 40, 72, 64, False)
    yield {**strided, "product": make.tensor((40, 144), dtype, stride=160)}
    special = _call(make, dtype, 40, 72, 72, True)
    # These must reach the elements of their row or column, and no others.
    special["a"][3, 5], special["b"][7, 70], special["product"][9, 80] = math.nan, math.inf, math.nan
    yield special


def _call(make: Any, dtype: str, m: int, n: int, k: int, columns: bool) -> dict[str, Any]:
    a, b = make.tensor((m, k), dtype), make.tensor((k, n) if columns else (n, k), dtype)
    b *= max(k, 1) ** -0.5
    return {"a": a, "b": b.mT if columns else b, "product": make.tensor((m, 2 * n), dtype)}


def cost(a: Any, b: Any, product: Any) -> aot.Cost:
    (m, k), n = a.shape, b.shape[0]
    return aot.Cost(2 * m * n * k, (a.numel() + b.numel() + 2 * product.numel()) * a.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in BENCH:
        yield _call(make, dtype, m, n, k, True)


def torch_equivalent(a: Any, b: Any, product: Any) -> Any:
    import torch

    grad, (gate, up) = a @ b.mT, product.chunk(2, dim=-1)
    passed = torch.sigmoid(gate)
    return torch.cat((grad * up * passed * (1 + gate * (1 - passed)), grad * gate * passed), -1)
