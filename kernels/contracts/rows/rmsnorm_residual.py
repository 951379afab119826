"""A residual is added; the sum is scaled to a root mean square of one, then weighted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, SHORT_ROWS, SPECIAL, special_rows


def reference(x: Any, residual: Any, weight: Any, eps: float = 1e-6) -> Any:
    total = x.double() + residual.double()
    rounded = total.to(x.dtype).double()
    return rounded * (rounded.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double(), total


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (*ROWS, *SHORT_ROWS):
        plain = make.tensor(layout.shape, dtype)
        yield _call(make, layout.make(make, dtype), plain, dtype)
        yield _call(make, plain, layout.make(make, dtype), dtype)
    x, residual = make.tensor((8, 512), dtype), make.tensor((8, 512), dtype)
    x[0, 3], x[1, 5], residual[2, 7] = float("nan"), float("inf"), float("-inf")
    yield {**_call(make, x, residual, dtype), "eps": 0.5}
    for columns, positions in SPECIAL:
        x = special_rows(make, dtype, columns, positions)
        yield _call(make, x, make.tensor(tuple(x.shape), dtype), dtype)
        yield _call(make, make.tensor(tuple(x.shape), dtype), x, dtype)


def _call(make: Any, x: Any, residual: Any, dtype: str) -> dict[str, Any]:
    return {"x": x, "residual": residual, "weight": make.tensor(x.shape[1:], dtype)}


def cost(x: Any, weight: Any, **_: Any) -> aot.Cost:
    elements = 4 * x.numel() + weight.numel()
    return aot.Cost(operations=5 * x.numel(), bytes=elements * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield _call(make, layout.make(make, dtype), layout.make(make, dtype), dtype)


def torch_equivalent(x: Any, residual: Any, weight: Any, eps: float = 1e-6) -> Any:
    from torch.nn import functional

    total = x + residual
    return functional.rms_norm(total, x.shape[-1:], weight, eps), total
