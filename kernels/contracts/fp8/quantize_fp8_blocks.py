"""128 elements of a row scaled so that their largest magnitude is that of f8e4m3, and rounded to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from ._quantize import BENCH, in_blocks, in_blocks_by_torch, matrices


def reference(x: Any) -> Any:
    return in_blocks(x, 1)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for x in matrices(make, dtype):
        yield {"x": x}


def cost(x: Any) -> aot.Cost:
    return aot.Cost(operations=3 * x.numel(), bytes=x.numel() * (x.element_size() + 1) + x.numel() // 32)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in BENCH:
        yield {"x": make.tensor(shape, dtype)}


def torch_equivalent(x: Any) -> Any:
    return in_blocks_by_torch(x, 1)
