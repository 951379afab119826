"""The loss of hidden states and a vocabulary, with its gradients.

Logits are rounded to the dtype of ``x``, by ``u`` of themselves at most: 2^-9 in bf16. The loss of a token has
the error of two of them, ``2 * u * max(|logits|)`` at most, and with a z-loss ``2 * z_loss * |lse|`` of that in addition. Tokens
err independently of each other. So the error of their sum is near the root of the sum of squares, and four times that
is its bound. Gradients have the tolerance of their dtype: they are sums of rounded products, and rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

# Tokens, words, k. The last ones take two steps.
SHAPES = (
    (0, 16, 8),
    (1, 8, 8),
    (40, 8, 16),
    (5, 24, 520),
    (77, 2000, 40),
    (3, 256, 64),
    (130, 1000, 72),
    (300, 32000, 128),
    (2100, 128256, 64),
    (2100, 262144, 64),
)
BENCH = ((8192, 128256, 4096), (16384, 32000, 2048))


def reference(
    x: Any, weight: Any, target: Any, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    reduction: str = "mean", by_x: Any = ..., by_weight: Any = ...,
) -> Any:  # fmt: skip
    import torch

    x, weight = (tensor.double().requires_grad_() for tensor in (x, weight))
    with torch.enable_grad():
        logits = x @ weight.mT
        loss = torch.nn.functional.cross_entropy(
            logits, target, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="sum"
        )
        counts = target != ignore_index
        loss = loss + z_loss * (logits.logsumexp(-1).square() * counts).sum()
        loss = loss / counts.sum() if reduction == "mean" else loss
        gradients = torch.autograd.grad(loss, (x, weight))
    return _kept((loss.detach().view(1), *gradients), by_x)


def _kept(results: tuple[Any, Any, Any], by_x: Any) -> Any:
    """The loss alone if the call leaves out its gradients."""
    return results[0] if by_x is None else results


def bounds(
    x: Any, weight: Any, target: Any, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    reduction: str = "mean", by_x: Any = ..., by_weight: Any = ...,
) -> Any:  # fmt: skip
    import torch

    logits, counts = x.double() @ weight.double().mT, target != ignore_index
    each = (2 + 4 * z_loss * logits.logsumexp(-1).abs()) * logits.abs().amax(-1)
    unit = torch.finfo(x.dtype).eps / 2
    total = 4 * unit * (each * counts).norm()
    total = total / counts.sum() if reduction == "mean" else total
    return _kept((total.view(1), None, None), by_x)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in SHAPES:
        yield _call(make, dtype, *shape)
    for numbers in ({"label_smoothing": 0.1}, {"z_loss": 1e-4}, {"label_smoothing": 0.2, "z_loss": 0.01}):
        yield {**_call(make, dtype, 130, 4000, 64), **numbers}
    ignored = _call(make, dtype, 70, 320, 64)
    ignored["target"][::3] = 7
    yield {**ignored, "ignore_index": 7}
    ignored = _call(make, dtype, 70, 320, 64)
    ignored["target"][5:50] = -100
    yield ignored
    for shape in ((130, 4000, 64), (300, 32000, 128)):
        yield {**_call(make, dtype, *shape), "label_smoothing": 0.1, "by_x": None, "by_weight": None}


def _call(make: Any, dtype: str, tokens: int, words: int, k: int) -> dict[str, Any]:
    """Logits of the order of 1."""
    target = make.torch.arange(tokens, device=make.device) * 7919 % words
    return {"x": make.tensor((tokens, k), dtype), "weight": make.tensor((words, k), dtype) * k**-0.5, "target": target}


def torch_equivalent(
    x: Any, weight: Any, target: Any, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    reduction: str = "mean", by_x: Any = ..., by_weight: Any = ...,
) -> Any:  # fmt: skip
    import torch

    x, weight = (tensor.detach().requires_grad_() for tensor in (x, weight))
    with torch.enable_grad():
        logits = torch.nn.functional.linear(x, weight).float()
        loss = torch.nn.functional.cross_entropy(
            logits, target, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
        )
        if z_loss:
            counts = target != ignore_index
            squares = z_loss * (logits.logsumexp(-1).square() * counts).sum()
            loss = loss + (squares / counts.sum() if reduction == "mean" else squares)
        gradients = torch.autograd.grad(loss, (x, weight))
    return _kept((loss.detach().view(1), *gradients), by_x)


def cost(x: Any, weight: Any, target: Any, **_: Any) -> aot.Cost:
    (tokens, k), words = x.shape, weight.shape[0]
    moved = 2 * x.element_size() * (x.numel() + weight.numel())
    return aot.Cost(operations=6 * tokens * words * k, bytes=moved)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in BENCH:
        yield _call(make, dtype, *shape)
