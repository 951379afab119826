"""The gradient of an activation, element by element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ELEMENTWISE, SPECIAL, special_rows

OPERATIONS = {"relu": 2, "gelu": 30, "gelu_tanh": 16, "silu": 9}  # per element


def reference(grad_out: Any, x: Any, op: str) -> Any:
    return torch_equivalent(grad_out.double(), x.double(), op)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in ELEMENTWISE:
        x, grad_out = layout.make(make, dtype), make.tensor(layout.shape, dtype)
        yield {"grad_out": grad_out, "x": x}
        yield {"grad_out": x, "x": grad_out}
    special = make.tensor((8,), dtype)
    special[:5] = special.new_tensor([math.nan, math.inf, 0.0, -30.0, 30.0])
    yield {"grad_out": make.tensor((8,), dtype), "x": special}
    for columns, positions in SPECIAL:
        x = special_rows(make, dtype, columns, positions)
        yield {"grad_out": make.tensor(tuple(x.shape), dtype), "x": x}
        yield {"grad_out": x, "x": make.tensor(tuple(x.shape), dtype)}


def cost(x: Any, op: str, **_: Any) -> aot.Cost:
    return aot.Cost(operations=OPERATIONS[op] * x.numel(), bytes=3 * x.numel() * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield {"grad_out": layout.make(make, dtype), "x": layout.make(make, dtype)}


def torch_equivalent(grad_out: Any, x: Any, op: str) -> Any:
    import torch

    if op == "relu":
        return torch.ops.aten.threshold_backward(grad_out, x, 0)
    if op == "silu":
        return torch.ops.aten.silu_backward(grad_out, x)
    return torch.ops.aten.gelu_backward(grad_out, x, approximate="tanh" if op == "gelu_tanh" else "none")
