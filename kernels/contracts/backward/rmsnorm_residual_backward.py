"""The gradients of rows to which others were added before they were scaled to a root mean square of one and weighted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH
from ._gradients import norm_call, norm_inputs
from ._rmsnorm import rmsnorm_autograd, rmsnorm_gradients


def reference(grad_out: Any, grad_residual_out: Any, residual_out: Any, weight: Any, eps: float = 1e-6) -> Any:
    grad_x, *others = rmsnorm_gradients(grad_out, residual_out, weight, eps)
    return grad_x + grad_residual_out.double(), *others


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for x in norm_inputs(make, dtype):
        yield _call(make, x, dtype)
    x = make.tensor((16, 512), dtype)
    yield {**_call(make, x, dtype), "weight": make.tensor((512,), dtype, offset=1)}
    yield {**_call(make, x, dtype), "grad_residual_out": make.tensor((16, 512), dtype, stride=515), "eps": 0.5}


def _call(make: Any, x: Any, dtype: str) -> dict[str, Any]:
    call = norm_call(make, x, dtype)
    added = make.tensor(tuple(x.shape), dtype)
    return {"grad_out": call["grad_out"], "grad_residual_out": added, "residual_out": x, "weight": call["weight"]}


def cost(residual_out: Any, weight: Any, **_: Any) -> aot.Cost:
    elements = 4 * residual_out.numel() + 2 * weight.numel()
    return aot.Cost(operations=13 * residual_out.numel(), bytes=elements * residual_out.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield _call(make, layout.make(make, dtype), dtype)


def torch_equivalent(grad_out: Any, grad_residual_out: Any, residual_out: Any, weight: Any, eps: float = 1e-6) -> Any:
    grad_x, grad_weight = rmsnorm_autograd(grad_out, residual_out, weight, eps)
    return grad_x + grad_residual_out, grad_weight
