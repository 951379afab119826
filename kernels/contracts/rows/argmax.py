"""The first index of the largest element of each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, SHORT_ROWS, SPECIAL, special_rows, tied_rows


def reference(x: Any) -> Any:
    # A stable sort keeps equal elements in order, and takes NaN for the largest. argmax promises neither on a GPU.
    return x.double().sort(dim=-1, descending=True, stable=True).indices[:, 0]


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (*ROWS, *SHORT_ROWS):
        yield {"x": layout.make(make, dtype)}
    for columns, positions in SPECIAL:
        yield {"x": special_rows(make, dtype, columns, positions)}
        yield {"x": tied_rows(make, dtype, columns)}


def cost(x: Any) -> aot.Cost:
    return aot.Cost(operations=x.numel(), bytes=x.numel() * x.element_size() + 8 * x.shape[0])


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield {"x": layout.make(make, dtype)}


def torch_equivalent(x: Any) -> Any:
    return x.argmax(-1)
