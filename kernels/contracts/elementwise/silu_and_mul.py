"""A gate: silu of the left half of each row, times the right half."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, SPECIAL, Layout, special_rows


def reference(x: Any) -> Any:
    from torch.nn import functional

    gate, up = x.double().chunk(2, dim=-1)
    return functional.silu(gate) * up


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (Layout((3, 0)), *ROWS):
        rows, columns = layout.shape
        stride = None if layout.stride is None else 2 * layout.stride
        yield {"x": make.tensor((rows, 2 * columns), dtype, stride=stride, offset=layout.offset)}
    x = make.tensor((4, 16), dtype)
    x[0, 0], x[1, 9], x[2, 3] = float("nan"), float("inf"), float("-inf")
    yield {"x": x}
    for columns, positions in SPECIAL:
        x = special_rows(make, dtype, columns, positions)
        yield {"x": x[:, : columns // 2 * 2]}


def cost(x: Any, **_: Any) -> aot.Cost:
    return aot.Cost(operations=3 * x.numel(), bytes=3 * x.numel() // 2 * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield {"x": layout.make(make, dtype)}


def torch_equivalent(x: Any) -> Any:
    from torch.nn import functional

    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up
