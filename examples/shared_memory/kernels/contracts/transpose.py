"""What ``transpose`` must compute."""

from collections.abc import Iterator
from typing import Any

import aot


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for shape in ((0, 5), (1, 1), (32, 32), (31, 33), (100, 1000), (1000, 100)):
        yield {"x": make.tensor(shape, dtype)}


def reference(x: Any) -> Any:
    return x.double().T


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    yield {"x": make.tensor((8192, 8192), dtype)}


def cost(x: Any) -> aot.Cost:
    return aot.Cost(operations=0, bytes=2 * x.numel() * x.element_size())


def torch_equivalent(x: Any) -> Any:
    return x.T.contiguous()
