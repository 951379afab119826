"""What ``scale`` must compute. A contract needs torch and no CuTe DSL, and travels in the bundle."""

from collections.abc import Iterator
from typing import Any

import aot


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for n in (0, 1, 127, 128, 129, 100_000):
        yield {"x": make.tensor((n,), dtype), "factor": 3.0}


def reference(x: Any, factor: float) -> Any:
    return factor * x.double()


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    yield {"x": make.tensor((1 << 26,), dtype), "factor": 3.0}


def cost(x: Any, factor: float) -> aot.Cost:
    return aot.Cost(operations=x.numel(), bytes=2 * x.numel() * x.element_size())


def torch_equivalent(x: Any, factor: float) -> Any:
    return factor * x
