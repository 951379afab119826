"""Rows shifted to a mean of zero and scaled to a variance of one, then weighted and shifted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, SHORT_ROWS, SPECIAL, special_rows


def reference(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    from torch.nn import functional

    return functional.layer_norm(x.double(), x.shape[-1:], weight.double(), bias.double(), eps)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (*ROWS, *SHORT_ROWS):
        yield _with_parameters(make, layout.make(make, dtype), dtype)
    for columns in (512, 40_000):  # held in registers, and not
        x = make.tensor((8, columns), dtype)
        x[0, 3], x[1, 5], x[2, 7] = float("nan"), float("inf"), float("-inf")
        x[4] = 3.0
        yield {**_with_parameters(make, x, dtype), "eps": 0.5}
        yield _with_parameters(make, make.tensor((4, columns), dtype) + 3, dtype)
    yield {**_with_parameters(make, make.tensor((16, 512), dtype), dtype), "bias": make.tensor((512,), dtype, offset=1)}
    for columns, positions in SPECIAL:
        yield _with_parameters(make, special_rows(make, dtype, columns, positions), dtype)


def _with_parameters(make: Any, x: Any, dtype: str) -> dict[str, Any]:
    columns = x.shape[1:]
    return {"x": x, "weight": make.tensor(columns, dtype), "bias": make.tensor(columns, dtype)}


def cost(x: Any, weight: Any, **_: Any) -> aot.Cost:
    elements = 2 * x.numel() + 2 * weight.numel()
    return aot.Cost(operations=8 * x.numel(), bytes=elements * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield _with_parameters(make, layout.make(make, dtype), dtype)


def torch_equivalent(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    from torch.nn import functional

    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
