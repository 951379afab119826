"""Products of the transposed rows of each expert. The tolerance is that of the output's dtype, as for ``gemm``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from ._experts import weights, weights_bench, weights_inputs, weights_of_torch


def reference(a: Any, b: Any, offsets: Any) -> Any:
    return weights(a, b, offsets)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    return weights_inputs(make, dtype)


def cost(a: Any, b: Any, offsets: Any) -> aot.Cost:
    (m, n), k = a.shape, b.shape[1]
    moved = (a.numel() + b.numel() + len(offsets) * n * k) * a.element_size()
    return aot.Cost(operations=2 * m * n * k, bytes=moved)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    return weights_bench(make, dtype)


def torch_equivalent(a: Any, b: Any, offsets: Any) -> Any:
    return weights_of_torch(a, b, offsets)
