"""A step of AdamW, element by element. Sizes and ends of tensors differ from multiples of a chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

# Elements of each tensor.
MODELS = (
    (0,),
    (1,),
    (8,),
    (3, 2),
    (1000, 24),
    (9,) * 40,
    (5, 0, 3, 1, 1, 2, 4),
    (4096, 4099, 7, 1 << 16),
    tuple(1 + 7 * i % 45 for i in range(300)),
    ((1 << 22) + 5,),
)


def reference(
    grad: Any, master: Any, mean: Any, square: Any, ends: Any, decays: Any, rate: Any, step: Any, scale: Any = None,
    beta1: float = 0.9, beta2: float = 0.95, eps: float = 1e-8,
) -> Any:  # fmt: skip
    import torch

    grad, master, mean, square = grad.double(), master.double(), mean.double(), square.double()
    grad = grad if scale is None else grad * scale.double()
    steps = int(step)
    mean = beta1 * mean + (1 - beta1) * grad
    square = beta2 * square + (1 - beta2) * grad.square()
    places = torch.arange(grad.numel(), device=grad.device)
    decay = decays.double()[torch.searchsorted(ends, places, right=True)]
    update = mean / (1 - beta1**steps) / ((square / (1 - beta2**steps)).sqrt() + eps)
    master = master - rate.double() * (update + decay * master)
    return master, master, mean, square


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for sizes in MODELS:
        for gradients in {dtype, "f32"}:
            yield _call(make, sizes, gradients, step=1)
    yield {**_call(make, (300, 1 << 16), dtype, step=1000), "beta1": 0.8, "beta2": 0.999, "eps": 1e-3}
    for gradients in {dtype, "f32"}:
        call = _call(make, (300, 1 << 16), gradients, step=7)
        yield {**call, "scale": make.torch.tensor([0.25], device=make.device)}


def _call(make: Any, sizes: tuple[int, ...], dtype: str, step: int) -> dict[str, Any]:
    torch, size = make.torch, (sum(sizes),)
    return {
        "grad": make.tensor(size, dtype), "master": make.tensor(size, "f32"), "mean": make.tensor(size, "f32"),
        "square": make.tensor(size, "f32").square(),
        "ends": torch.tensor(sizes, device=make.device).cumsum(0),
        "decays": torch.tensor([0.1 * (i % 2) for i in range(len(sizes))], device=make.device),
        "rate": torch.tensor([0.01], device=make.device), "step": torch.tensor([step], device=make.device),
    }  # fmt: skip


def cost(grad: Any, **_: Any) -> aot.Cost:
    return aot.Cost(operations=16 * grad.numel(), bytes=(2 * grad.element_size() + 24) * grad.numel())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    yield _call(make, (1 << 20,) * 8, dtype, step=3)
    yield _call(make, (1 << 22,) * 64, dtype, step=3)


def torch_equivalent(
    grad: Any, master: Any, mean: Any, square: Any, ends: Any, decays: Any, rate: Any, step: Any, scale: Any = None,
    beta1: float = 0.9, beta2: float = 0.95, eps: float = 1e-8,
) -> Any:  # fmt: skip
    """What torch's optimizer calls, once for each decay. Its weights are the masters."""
    from torch.optim import adamw

    grad = grad.float() if scale is None else grad.float() * scale
    results = [tensor.clone() for tensor in (master, mean, square)]
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    tensors = [tensor.split(sizes) for tensor in (results[0], grad, *results[1:])]
    for decay in set(decays.tolist()):
        chosen = [i for i, (own, size) in enumerate(zip(decays.tolist(), sizes, strict=True)) if own == decay and size]
        lists = [[tensor[i] for i in chosen] for tensor in tensors]
        steps = [step.float().squeeze() - 1 for _ in chosen]
        adamw.adamw(
            *lists, [], steps, fused=grad.is_cuda, foreach=False, amsgrad=False, beta1=beta1, beta2=beta2, lr=float(rate),
            weight_decay=decay, eps=eps, maximize=False,
        )  # fmt: skip
    return results[0], *results
