"""What ``matmul`` must compute."""

from collections.abc import Iterator
from typing import Any

import aot


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in ((0, 5, 8), (1, 1, 1), (3, 5, 0), (64, 64, 32), (65, 63, 33), (200, 100, 1000)):
        yield {"a": make.tensor((m, k), dtype), "b": make.tensor((n, k), dtype)}


def reference(a: Any, b: Any) -> Any:
    return a.double() @ b.double().T


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in ((4096, 4096, 4096),):
        yield {"a": make.tensor((m, k), dtype), "b": make.tensor((n, k), dtype)}


def cost(a: Any, b: Any) -> aot.Cost:
    m, n, k = len(a), len(b), a.shape[1]
    return aot.Cost(operations=2 * m * n * k, bytes=(m * k + n * k + m * n) * a.element_size())


def torch_equivalent(a: Any, b: Any) -> Any:
    return a @ b.T
