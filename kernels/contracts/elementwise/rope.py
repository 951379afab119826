"""Pairs of elements of each head, turned by the angle of their position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._rotation import angles, turned


def reference(x: Any, cos: Any, sin: Any) -> Any:
    return turned(x.double(), cos.double(), sin.double())


# Tokens, heads, elements of a head: one pair, odd counts, halves that are no multiple of a chunk, long ones.
SHAPES = (
    (0, 8, 128), (3, 0, 128), (1, 1, 2), (5, 3, 6), (7, 5, 24), (37, 1, 64), (1, 32, 128), (129, 8, 128), (33, 7, 80),
    (65, 13, 96), (17, 3, 256), (3, 2, 2048), (2, 3, 2050), (2048, 32, 128), (70_000, 1, 16),
)  # fmt: skip


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in SHAPES:
        yield _call(make, make.tensor(shape, dtype))
    yield _call(make, make.tensor((9, 4, 128), dtype, stride=256))
    yield _call(make, make.tensor((9, 4, 128), dtype, stride=134))
    yield _call(make, make.tensor((9, 4, 128), dtype, offset=1))
    yield _call(make, make.tensor((4, 9, 128), dtype).transpose(0, 1))  # heads first in memory
    call = _call(make, make.tensor((9, 4, 128), dtype))
    yield {**call, "cos": make.tensor((9, 64), "f32", offset=1)}
    x = call["x"].clone()
    x[0, 0, 3], x[1, 1, 5], x[2, 2, 127] = float("nan"), float("inf"), float("-inf")
    yield {**call, "x": x}


def _call(make: Any, x: Any) -> dict[str, Any]:
    return {"x": x, **angles(make, x.shape[0], x.shape[2] // 2)}


def cost(x: Any, cos: Any, sin: Any) -> aot.Cost:
    return aot.Cost(operations=3 * x.numel(), bytes=2 * x.numel() * x.element_size() + 4 * (cos.numel() + sin.numel()))


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in ((4096, 8, 128), (4096, 32, 128), (32_768, 32, 128)):
        yield _call(make, make.tensor(shape, dtype))


def torch_equivalent(x: Any, cos: Any, sin: Any) -> Any:
    return turned(x.float(), cos, sin).to(x.dtype)
