"""``gemm_gated`` that keeps the product for its gradients.

The tolerance of the dtype is enough for both outputs: each is rounded once from sums in f32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from ._gated_products import gated, matrix, special
from ._small import SMALL

SHAPES = (*SMALL, (600, 1288, 1032), (1030, 1368, 200), (2049, 4104, 200))
BENCH = ((4096, 14_336, 4096), (16_384, 8192, 2048))


def reference(a: Any, b: Any) -> Any:
    return gated(a, b), a.double() @ b.double().mT


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in SHAPES:
        yield {"a": matrix(make, dtype, m, k), "b": matrix(make, dtype, 2 * n, k)}
    yield {"a": make.tensor((40, 64), dtype, stride=72), "b": make.tensor((144, 64), dtype, stride=128)}
    yield special(make, dtype)


def cost(a: Any, b: Any) -> aot.Cost:
    (m, k), both = a.shape, b.shape[0]
    return aot.Cost(2 * m * both * k, (a.numel() + b.numel() + m * (both + both // 2)) * a.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for m, n, k in BENCH:
        yield {"a": make.tensor((m, k), dtype), "b": make.tensor((2 * n, k), dtype)}


def torch_equivalent(a: Any, b: Any) -> Any:
    from torch.nn import functional

    product = functional.linear(a, b)
    gate, up = product.chunk(2, dim=-1)
    return functional.silu(gate) * up, product
