"""Sums over the rows of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, Layout
from ._gradients import group_sums


def reference(x: Any) -> Any:
    return x.double().sum(0), group_sums(x.double())


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (Layout((3, 0)), *ROWS, Layout((130, 24)), Layout((1029, 129)), Layout((3000, 264))):
        yield {"x": layout.make(make, dtype)}
    x = make.tensor((70, 40), dtype)
    x[3, 5], x[6, 7] = float("nan"), float("inf")  # they reach their column, and no other
    yield {"x": x}


def cost(x: Any) -> aot.Cost:
    return aot.Cost(operations=x.numel(), bytes=x.numel() * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield {"x": layout.make(make, dtype)}


def torch_equivalent(x: Any) -> Any:
    return x.float().sum(0).to(x.dtype)
