"""The largest elements of each row in descending order, and their indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import ROWS, SPECIAL, Layout, special_rows, tied_rows


def reference(x: Any, k: int) -> Any:
    # A stable sort keeps equal elements in order, and takes NaN for the largest.
    found = x.double().sort(dim=-1, descending=True, stable=True)
    return found.values[:, :k], found.indices[:, :k]


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in ROWS:
        for k in (1, 8, 50, 1024):
            if k <= layout.shape[1]:
                yield {"x": layout.make(make, dtype), "k": k}
    yield {"x": make.tensor((300, 512), dtype), "k": 32}  # the most that a warp keeps
    yield {"x": make.tensor((300, 512), dtype), "k": 33}
    yield {"x": make.tensor((300, 512), dtype), "k": 512}  # all elements: a sort
    for columns, positions in SPECIAL:
        for k in (1, 17, 1000):
            if k <= columns:
                yield {"x": special_rows(make, dtype, columns, positions), "k": k}
                yield {"x": tied_rows(make, dtype, columns), "k": k}


def cost(x: Any, k: int) -> aot.Cost:
    written = x.shape[0] * k * (x.element_size() + 8)
    return aot.Cost(operations=x.numel(), bytes=x.numel() * x.element_size() + written)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape, k in (((16_384, 128), 8), ((1024, 1024), 8), ((64, 128_256), 50)):
        yield {"x": Layout(shape).make(make, dtype), "k": k}


def torch_equivalent(x: Any, k: int) -> Any:
    found = x.topk(k, -1)
    return found.values, found.indices
