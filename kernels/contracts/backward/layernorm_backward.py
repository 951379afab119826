"""The gradients of rows that are shifted to a mean of zero and scaled to a variance of one, then weighted and shifted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH
from ._gradients import group_sums, norm_call, norm_inputs


def reference(grad_out: Any, x: Any, weight: Any, eps: float = 1e-5) -> Any:
    grad_out, x, weight = grad_out.double(), x.double(), weight.double()
    mean = x.mean(-1, keepdim=True)
    difference = x - mean
    factor = (difference.square().mean(-1, keepdim=True) + eps).rsqrt()
    weighted = grad_out * weight
    slope = (weighted * difference).mean(-1, keepdim=True) * factor * factor
    grad_x = factor * (weighted - weighted.mean(-1, keepdim=True) - difference * slope)
    by_weight = grad_out * difference * factor
    sums = (by_weight.sum(0), grad_out.sum(0))
    return grad_x, *sums, mean.squeeze(-1), factor.squeeze(-1), group_sums(by_weight), group_sums(grad_out)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for x in norm_inputs(make, dtype):
        # The mean is not zero, because the error of a mean is judged relative to its size.
        yield norm_call(make, x.add_(1), dtype)
    x = make.tensor((16, 512), dtype).add_(1)
    yield {**norm_call(make, x, dtype), "weight": make.tensor((512,), dtype, offset=1)}
    yield {**norm_call(make, x, dtype), "grad_out": make.tensor((16, 512), dtype, stride=515), "eps": 0.5}


def cost(x: Any, weight: Any, **_: Any) -> aot.Cost:
    """One pass over memory; the kernel takes more, since it reads ``x`` and ``grad_out`` twice."""
    elements = 3 * x.numel() + 3 * weight.numel()
    return aot.Cost(operations=16 * x.numel(), bytes=elements * x.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield norm_call(make, layout.make(make, dtype), dtype)


def torch_equivalent(grad_out: Any, x: Any, weight: Any, eps: float = 1e-5) -> Any:
    """Torch's autograd, with the forward that it needs."""
    import torch

    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    bias = torch.zeros_like(weight).requires_grad_()
    with torch.enable_grad():
        out = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    return torch.autograd.grad(out, (x, weight, bias), grad_out)
