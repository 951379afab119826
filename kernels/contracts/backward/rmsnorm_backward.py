"""The gradients of rows that are scaled to a root mean square of one, then weighted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH
from ._gradients import norm_call, norm_inputs
from ._rmsnorm import rmsnorm_autograd, rmsnorm_gradients


def reference(grad_out: Any, x: Any, weight: Any, eps: float = 1e-6) -> Any:
    return rmsnorm_gradients(grad_out, x, weight, eps)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for x in norm_inputs(make, dtype):
        yield norm_call(make, x, dtype)
    x = make.tensor((16, 512), dtype)
    yield {**norm_call(make, x, dtype), "weight": make.tensor((512,), dtype, offset=1)}
    yield {**norm_call(make, x, dtype), "grad_out": make.tensor((16, 512), dtype, stride=515), "eps": 0.5}
    # With this eps the gradient does not cancel.
    yield {
        **norm_call(make, make.tensor((1, 1), dtype), dtype),
        "eps": 0.5,
    }


def cost(x: Any, weight: Any, **_: Any) -> aot.Cost:
    """One pass over memory; the kernel takes more, since it reads ``x`` and ``grad_out`` twice."""
    elements = 3 * x.numel() + 2 * weight.numel()
    return aot.Cost(operations=12 * x.numel(), bytes=elements * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield norm_call(make, layout.make(make, dtype), dtype)


def torch_equivalent(grad_out: Any, x: Any, weight: Any, eps: float = 1e-6) -> Any:
    return rmsnorm_autograd(grad_out, x, weight, eps)
