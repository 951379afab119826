"""A matrix over a given scale, rounded to f8e4m3. What is too large becomes the largest number, 448."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from .._f8 import LARGEST
from .._layouts import ROWS
from ._quantize import BENCH, matrices


def reference(x: Any, scale: Any) -> Any:
    return (x.double() / scale.double()).clamp(-LARGEST, LARGEST)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for x in matrices(make, dtype):
        yield {"x": x, "scale": _scale(make, 0.01)}
    for layout in ROWS:
        yield {"x": layout.make(make, dtype), "scale": _scale(make, 0.003)}  # some are too large


def _scale(make: Any, value: float) -> Any:
    return make.torch.tensor([value], dtype=make.torch.float32, device=make.device)


def cost(x: Any, scale: Any) -> aot.Cost:
    return aot.Cost(operations=x.numel(), bytes=x.numel() * (x.element_size() + 1))


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in BENCH:
        yield {"x": make.tensor(shape, dtype), "scale": _scale(make, 0.01)}


def torch_equivalent(x: Any, scale: Any) -> Any:
    import torch

    return (x.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
