"""Rows scaled so that their largest magnitude is that of f8e4m3, and rounded to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._layouts import BENCH, ROWS, SHORT_ROWS, SPECIAL, special_rows

LARGEST = 448.0  # of f8e4m3
SMALLEST = 2.0**-100  # lower bound for the largest value of a row


def reference(x: Any) -> Any:
    x = x.double()
    largest = x.abs().amax(-1).clamp_min(SMALLEST)
    scaled = (x * (LARGEST / largest)[:, None]).clamp(-LARGEST, LARGEST)
    return scaled, largest / LARGEST


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in (*ROWS, *SHORT_ROWS):
        yield {"x": layout.make(make, dtype)}
    for columns in (24, 40_000):  # held in registers, and not
        x = make.tensor((6, columns), dtype)
        x[0, 3], x[1, 5], x[2, 7], x[3] = float("nan"), float("inf"), float("-inf"), 0.0
        yield {"x": x}
    for columns, positions in SPECIAL:
        yield {"x": special_rows(make, dtype, columns, positions)}


def cost(x: Any) -> aot.Cost:
    written = x.numel() + 4 * x.shape[0]
    return aot.Cost(operations=3 * x.numel(), bytes=x.numel() * x.element_size() + written)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for layout in BENCH:
        yield {"x": layout.make(make, dtype)}


def torch_equivalent(x: Any) -> Any:
    import torch

    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).clamp_min(SMALLEST) / LARGEST
    return (x / scale).to(torch.float8_e4m3fn), scale.squeeze(-1)
