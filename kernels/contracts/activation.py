"""An activation, element by element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import aot

from ._layouts import BENCH, ELEMENTWISE, SPECIAL, special_rows

OPERATIONS = {"relu": 1, "gelu": 20, "gelu_tanh": 8, "silu": 5}  # per element


def reference(x: Any, op: str) -> Any:
    return torch_equivalent(x.double(), op)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in ELEMENTWISE:
        yield {"x": layout.make(make, dtype)}
    special = make.tensor((8,), dtype)
    special[:4] = special.new_tensor([math.nan, math.inf, 0.0, -30.0])
    yield {"x": special}
    for columns, positions in SPECIAL:
        yield {"x": special_rows(make, dtype, columns, positions)}


def cost(x: Any, op: str, **_: Any) -> aot.Cost:
    return aot.Cost(operations=OPERATIONS[op] * x.numel(), bytes=2 * x.numel() * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield {"x": layout.make(make, dtype)}


def torch_equivalent(x: Any, op: str) -> Any:
    from torch.nn import functional

    return functional.gelu(x, approximate="tanh") if op == "gelu_tanh" else getattr(functional, op)(x)
