"""Two matrices times one number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

SHAPES = ((0, 0, 8), (7, 33, 40), (0, 8, 8), (2, 5, 16), (1, 8, 8), (3, 1000, 24), (300, 4000, 136), (5000, 3, 1024))
BENCH = ((8192, 128256, 4096),)


def reference(grad_loss: Any, by_x: Any, by_weight: Any) -> Any:
    return by_x.double() * grad_loss.double(), by_weight.double() * grad_loss.double()


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in SHAPES:
        for factor in (1.0, -0.3):
            yield _call(make, dtype, *shape, factor)


def _call(make: Any, dtype: str, tokens: int, words: int, k: int, factor: float) -> dict[str, Any]:
    return {
        "grad_loss": make.torch.tensor([factor], device=make.device),
        "by_x": make.tensor((tokens, k), dtype),
        "by_weight": make.tensor((words, k), dtype),
    }


def torch_equivalent(grad_loss: Any, by_x: Any, by_weight: Any) -> Any:
    return by_x * grad_loss.to(by_x.dtype), by_weight * grad_loss.to(by_weight.dtype)


def cost(grad_loss: Any, by_x: Any, by_weight: Any) -> aot.Cost:
    elements = by_x.numel() + by_weight.numel()
    return aot.Cost(operations=elements, bytes=2 * by_x.element_size() * elements)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in BENCH:
        yield _call(make, dtype, *shape, 0.5)
