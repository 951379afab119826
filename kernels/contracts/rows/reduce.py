"""Rows reduced to their sum, largest element or mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, SHORT_ROWS, SPECIAL, special_rows


def reference(x: Any, op: str) -> Any:
    return getattr(x.double(), {"sum": "sum", "max": "amax", "mean": "mean"}[op])(-1)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (*ROWS, *SHORT_ROWS):
        # The mean is not zero, because the error of a sum is judged relative to its size.
        yield {"x": layout.make(make, dtype).add_(1)}
    for columns in (24, 40_000):  # held in registers, and not
        x = make.tensor((6, columns), dtype)
        x[0, 3], x[1, 5], x[2, 7], x[3] = float("nan"), float("inf"), float("-inf"), float("-inf")
        yield {"x": x}
    for columns, positions in SPECIAL:
        x = special_rows(make, dtype, columns, positions)
        x[-1, 1::2] += 1
        yield {"x": x}


def cost(x: Any, **_: Any) -> aot.Cost:
    return aot.Cost(operations=x.numel(), bytes=(x.numel() + x.shape[0]) * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield {"x": layout.make(make, dtype)}


def torch_equivalent(x: Any, op: str) -> Any:
    return getattr(x, {"sum": "sum", "max": "amax", "mean": "mean"}[op])(-1)
