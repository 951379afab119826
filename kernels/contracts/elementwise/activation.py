"""An activation, element by element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import aot

from .._activations import EXACT
from .._layouts import BENCH, ELEMENTWISE, SPECIAL, every_value, special_rows

OPERATIONS = {"relu": 1, "gelu": 20, "gelu_tanh": 8, "silu": 5}  # per element


def reference(x: Any, op: str) -> Any:
    return EXACT[op](x.double())


def ulps(x: Any, op: str) -> float | None:
    """Correct rounding is half a unit; the rest is for the arithmetic in f32.

    In f32 itself, silu has the errors of a power of two, which may be 2 units, of a sum and of a quotient.
    """
    if x.element_size() == 4:
        return 5.0 if op == "silu" else None
    return 1.0


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in ELEMENTWISE:
        yield {"x": layout.make(make, dtype)}
    special = make.tensor((8,), dtype)
    special[:4] = special.new_tensor([math.nan, math.inf, 0.0, -30.0])
    yield {"x": special}
    if dtype != "f32":
        yield {"x": every_value(make, dtype, 256)}
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
