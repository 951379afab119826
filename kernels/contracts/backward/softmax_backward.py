"""The gradient of rows that are scaled to a sum of one after taking exponentials, from these rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, Layout


def reference(grad_out: Any, out: Any) -> Any:
    grad_out, out = grad_out.double(), out.double()
    return out * (grad_out - (grad_out * out).sum(-1, keepdim=True))


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in ROWS:
        yield _call(make, layout, dtype)
    yield {**_call(make, Layout((9, 512)), dtype), "grad_out": make.tensor((9, 512), dtype, stride=515)}
    for columns in (24, 40_000):  # held in registers, and not
        call = _call(make, Layout((6, columns)), dtype)
        call["grad_out"][0, 3], call["grad_out"][1, 5], call["out"][2, 7] = float("nan"), float("inf"), float("nan")
        call["out"][3], call["out"][4] = 0.0, 0.0
        call["out"][4, 1] = 1.0  # all of it on one element
        yield call


def _call(make: Any, layout: Layout, dtype: str) -> dict[str, Any]:
    out = layout.make(make, dtype)
    out.copy_(out.float().softmax(-1))
    return {"grad_out": make.tensor(layout.shape, dtype), "out": out}


def cost(out: Any, **_: Any) -> aot.Cost:
    return aot.Cost(operations=4 * out.numel(), bytes=3 * out.numel() * out.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield _call(make, layout, dtype)


def torch_equivalent(grad_out: Any, out: Any) -> Any:
    import torch

    return torch.ops.aten._softmax_backward_data(grad_out, out, -1, out.dtype)
