"""The gradient of the cross entropy of each row by its logits: their softmax, less one at the row's class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, Layout

IGNORED = -100


def reference(grad_loss: Any, x: Any, target: Any, ignore_index: int = IGNORED) -> Any:
    import torch

    inside = (target >= 0) & (target < x.shape[1])
    gradient = x.double().softmax(-1)
    gradient[torch.arange(x.shape[0], device=x.device), target.where(inside, 0)] -= 1
    gradient = (gradient * grad_loss.double()[:, None]).where(inside[:, None], torch.nan)
    return gradient.where((target != ignore_index)[:, None], 0.0)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in ROWS:
        yield _call(make, layout.make(make, dtype))
    for rows, columns in ((8, 24), (8, 40_000), (264, 40_000)):  # held by a block, by a cluster, and read twice
        x = make.tensor((rows, columns), dtype)
        x[0, 3], x[1, 5], x[2, 7], x[3] = float("nan"), float("inf"), float("-inf"), float("-inf")
        x[4, : columns // 2] = float("-inf")
        x[5] *= 1000
        call = _call(make, x)
        call["target"][2], call["target"][6] = 7, columns  # a class that is impossible, and one that does not exist
        yield call
        yield {**call, "target": call["target"].clamp(0, columns - 1), "ignore_index": 0}


def _call(make: Any, x: Any) -> dict[str, Any]:
    # Classes far apart, not at random: the same ones on every machine.
    rows, columns = x.shape
    classes = make.torch.arange(rows, device=make.device) * 7919 % max(columns, 1)
    if rows > 4:
        classes[4] = IGNORED
    return {"grad_loss": make.tensor((rows,), "f32"), "x": x, "target": classes}


def cost(x: Any, **_: Any) -> aot.Cost:
    return aot.Cost(operations=6 * x.numel(), bytes=2 * x.numel() * x.element_size() + 12 * x.shape[0])


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (*BENCH, Layout((4096, 128_256))):
        yield _call(make, layout.make(make, dtype))


def torch_equivalent(grad_loss: Any, x: Any, target: Any, ignore_index: int = IGNORED) -> Any:
    """Torch's autograd, with the forward that it needs. A class that does not exist stops its process."""
    import torch

    x, inside = x.detach().requires_grad_(), (target >= 0) & (target < x.shape[1])
    with torch.enable_grad():
        classes = target.where(inside | (target == ignore_index), 0)
        loss = torch.nn.functional.cross_entropy(x.float(), classes, reduction="none", ignore_index=ignore_index)
    (gradient,) = torch.autograd.grad(loss, x, grad_loss)
    gradient = gradient.where((inside | (target == ignore_index))[:, None], torch.nan)
    return gradient.where((target != ignore_index)[:, None], 0.0)  # torch's own is NaN if an ignored row has one
