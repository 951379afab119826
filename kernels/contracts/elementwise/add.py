"""The sum of two tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ELEMENTWISE, SPECIAL, special_rows


def reference(x: Any, y: Any) -> Any:
    return x.double() + y.double()


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in ELEMENTWISE:
        x, y = layout.make(make, dtype), make.tensor(layout.shape, dtype)
        yield {"x": x, "y": y}
        yield {"x": y, "y": x}
    for columns, positions in SPECIAL:
        x = special_rows(make, dtype, columns, positions)
        yield {"x": x, "y": make.tensor(tuple(x.shape), dtype)}
        yield {"x": make.tensor(tuple(x.shape), dtype), "y": x}


def cost(x: Any, **_: Any) -> aot.Cost:
    return aot.Cost(operations=x.numel(), bytes=3 * x.numel() * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield {"x": layout.make(make, dtype), "y": layout.make(make, dtype)}


def torch_equivalent(x: Any, y: Any) -> Any:
    return x + y
