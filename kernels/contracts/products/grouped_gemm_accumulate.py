"""Products of the transposed rows of each expert, added to matrices of f32. The bounds are those of ``gemm_accumulate``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aot

from ._experts import weights, weights_bench, weights_inputs, weights_of_torch


def reference(a: Any, b: Any, offsets: Any, addend: Any = None) -> Any:
    product = weights(a, b, offsets)
    return product if addend is None else product + addend.double()


def bounds(a: Any, b: Any, offsets: Any, addend: Any = None) -> Any:
    instructions = a.shape[0] / 16 + 1
    bound = 2.0**-23 * instructions * weights(a.abs(), b.abs(), offsets)
    return bound if addend is None else bound + 2.0**-23 * addend.double().abs()


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for call in weights_inputs(make, dtype):
        yield call
        yield {**call, "addend": _addend(make, call)}


def _addend(make: Any, call: dict[str, Any]) -> Any:
    return make.tensor((len(call["offsets"]), call["a"].shape[1], call["b"].shape[1]), "f32")


def cost(a: Any, b: Any, offsets: Any, addend: Any = None) -> aot.Cost:
    (m, n), k = a.shape, b.shape[1]
    moved = (a.numel() + b.numel()) * a.element_size() + 4 * len(offsets) * n * k * (1 if addend is None else 2)
    return aot.Cost(operations=2 * m * n * k, bytes=moved)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for call in weights_bench(make, dtype):
        yield {**call, "addend": _addend(make, call)}


def torch_equivalent(a: Any, b: Any, offsets: Any, addend: Any = None) -> Any:
    product = weights_of_torch(a, b, offsets).float()
    return product if addend is None else product + addend
