"""Rows scaled to a sum of one after taking exponentials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, SHORT_ROWS, SPECIAL, special_rows


def reference(x: Any) -> Any:
    return x.double().softmax(-1)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (*ROWS, *SHORT_ROWS):
        yield {"x": layout.make(make, dtype)}
    for columns in (24, 40_000):  # held in registers, and not
        x = make.tensor((6, columns), dtype)
        x[0, 3], x[1, 5], x[2, 7], x[3] = float("nan"), float("inf"), float("-inf"), float("-inf")
        x[4, : columns // 2] = float("-inf")
        x[5] *= 1000
        yield {"x": x}
    for columns, positions in SPECIAL:
        yield {"x": special_rows(make, dtype, columns, positions)}


def cost(x: Any) -> aot.Cost:
    return aot.Cost(operations=5 * x.numel(), bytes=2 * x.numel() * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield {"x": layout.make(make, dtype)}


def torch_equivalent(x: Any) -> Any:
    return x.softmax(-1)
