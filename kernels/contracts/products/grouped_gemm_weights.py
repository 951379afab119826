"""Products of the transposed rows of each expert. The tolerance is that of the output's dtype, as for ``gemm``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import aot

from .grouped_gemm import BENCH, CASES


def reference(a: Any, b: Any, offsets: Any) -> Any:
    import torch

    out = torch.zeros(len(offsets), a.shape[1], b.shape[1], dtype=torch.float64, device=a.device)
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        out[expert] = a[start:end].double().mT @ b[start:end].double()
        start = end
    return out


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for rows, n, k in CASES:
        yield _call(make, dtype, rows, n, k)
    yield _call(make, dtype, (40, 0, 90), 136, 72, padding=16)
    yield _call(make, dtype, (63, 64, 65), 8, 136)
    special = _call(make, dtype, (30, 70, 0, 40), 72, 64)
    # These must reach the elements of their expert's row or column, and no others.
    special["a"][29, 5], special["a"][30, 6], special["b"][100, 7] = math.nan, math.inf, math.nan
    yield special


def _call(make: Any, dtype: str, rows: Sequence[int], n: int, k: int, padding: int = 0) -> dict[str, Any]:
    a = make.tensor((sum(rows), n), dtype, stride=n + padding)
    b = make.tensor((sum(rows), k), dtype, stride=k + padding)
    offsets = make.torch.tensor(rows, device=make.device).cumsum(0).to(make.torch.int32)
    return {"a": a, "b": b, "offsets": offsets}


def cost(a: Any, b: Any, offsets: Any) -> aot.Cost:
    (m, n), k = a.shape, b.shape[1]
    moved = (a.numel() + b.numel() + len(offsets) * n * k) * a.element_size()
    return aot.Cost(operations=2 * m * n * k, bytes=moved)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for experts, each, n, k in BENCH:
        yield _call(make, dtype, (each,) * experts, n, k)


def torch_equivalent(a: Any, b: Any, offsets: Any) -> Any:
    import torch

    if a.is_cuda:
        return torch._grouped_mm(a.mT, b, offs=offsets)
    return reference(a, b, offsets).float()
