"""Rows scaled to a root mean square of one, then weighted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, SHORT_ROWS, SPECIAL, special_rows


def reference(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    x, weight = x.double(), weight.double()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (*ROWS, *SHORT_ROWS):
        yield {"x": layout.make(make, dtype), "weight": make.tensor(layout.shape[1:], dtype)}
    x = make.tensor((16, 512), dtype)
    yield {"x": x, "weight": make.tensor((512,), dtype, offset=1)}
    yield {"x": x, "weight": make.tensor((512,), dtype), "eps": 0.5}
    for columns, positions in SPECIAL:
        yield {"x": special_rows(make, dtype, columns, positions), "weight": make.tensor((columns,), dtype)}


def cost(x: Any, weight: Any, **_: Any) -> aot.Cost:
    elements = 2 * x.numel() + weight.numel()
    return aot.Cost(operations=4 * x.numel(), bytes=elements * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield {"x": layout.make(make, dtype), "weight": make.tensor(layout.shape[1:], dtype)}


def torch_equivalent(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    from torch.nn import functional

    return functional.rms_norm(x, x.shape[-1:], weight, eps)
