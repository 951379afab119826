"""The largest elements of each row in descending order, and their indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from ._layouts import ROWS, Layout, special_rows, tied_rows

MOST, LONGEST = 32, 512  # elements that are taken, columns


def reference(x: Any, k: int) -> Any:
    # A stable sort keeps equal elements in order, and takes NaN for the largest.
    found = x.double().sort(dim=-1, descending=True, stable=True)
    return found.values[:, :k], found.indices[:, :k]


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (layout for layout in ROWS if layout.shape[1] <= LONGEST):
        for k in (1, 8, MOST):
            if k <= layout.shape[1]:
                yield {"x": layout.make(make, dtype), "k": k}
    yield {"x": make.tensor((300, LONGEST), dtype), "k": MOST}
    yield {"x": make.tensor((70_000, 31), dtype), "k": 31}  # all elements: a sort
    for columns, positions in ((24, 24), (25, 24), (500, 2)):
        for k in (1, 17):
            yield {"x": special_rows(make, dtype, columns, positions), "k": k}
            yield {"x": tied_rows(make, dtype, columns), "k": k}


def cost(x: Any, k: int) -> aot.Cost:
    written = x.shape[0] * k * (x.element_size() + 8)
    return aot.Cost(operations=x.numel(), bytes=x.numel() * x.element_size() + written)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape, k in (((1024, 64), 8), ((16_384, 128), 8), ((65_536, 256), 8)):
        yield {"x": Layout(shape).make(make, dtype), "k": k}


def torch_equivalent(x: Any, k: int) -> Any:
    found = x.topk(k, -1)
    return found.values, found.indices
