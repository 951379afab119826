"""Two products of rows that belong to experts, one of which gates the other, and a weight for each row.

The tolerance of the output's dtype is enough: both products are sums in f32, and only the result is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import aot

# Rows of each expert, n, k: at least one product for every tiling.
CASES: tuple[tuple[Sequence[int], int, int], ...] = (
    ((0,), 8, 16),
    ((1,), 8, 16),
    ((0, 0, 3, 0), 72, 80),
    ((5, 17, 9), 40, 24),
    ((64, 64), 128, 128),
    ((1, 63, 65, 0, 128, 127, 129), 136, 272),
    ((0, 200, 0, 0, 1, 0, 700), 264, 144),
    ((180,), 648, 1168),
    ((1500, 0, 20, 1601), 520, 272),
    (tuple(7 * i % 45 for i in range(100)), 200, 144),  # more experts than a warp has lanes
    ((2, 3000), 1000, 400),
)
BENCH = ((8, 1024, 14_336, 4096), (64, 256, 2048, 7168), (64, 8, 2048, 7168))


def reference(a: Any, b: Any, offsets: Any, weights: Any = None) -> Any:
    import torch

    out = torch.zeros(a.shape[0], b.shape[1] // 2, dtype=torch.float64, device=a.device)
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        gate, up = (a[start:end].double() @ b[expert].double().mT).chunk(2, dim=-1)
        out[start:end] = gate * gate.sigmoid() * up
        start = end
    return out if weights is None else out * weights.double()[:, None]


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for rows, n, k in CASES:
        problem = _problem(make, dtype, rows, n, k)
        yield problem
        yield problem | {"weights": make.tensor((sum(rows),), "f32")}
    yield _problem(make, dtype, (40, 0, 90), 136, 72, padding=16)
    special = _problem(make, dtype, (30, 70, 0, 40), 72, 64)
    # These reach the elements of their row, or of the column of their half in the rows of their expert, and no others.
    special["a"][3, 5], special["b"][1, 7, 60], special["b"][1, 80, 0] = math.nan, math.nan, math.inf
    special["b"][2] = math.nan  # of an expert without rows
    yield special | {"weights": make.tensor((140,), "f32").abs() + 0.125}


def _problem(make: Any, dtype: str, rows: Sequence[int], n: int, k: int, padding: int = 0) -> dict[str, Any]:
    """Elements near k ** -0.25, so that products are in the range in which silu is not linear."""
    torch = make.torch
    a = make.tensor((sum(rows), k), dtype, stride=k + padding)
    b = make.tensor((len(rows), 2 * n, k), dtype, stride=k + padding)
    for matrix in (a, b):
        matrix.mul_(k**-0.25)
    return {"a": a, "b": b, "offsets": torch.tensor(rows, device=make.device).cumsum(0).to(torch.int32)}


def cost(a: Any, b: Any, offsets: Any, **_: Any) -> aot.Cost:
    both = b.shape[1]
    moved = (a.numel() + b.numel() + a.shape[0] * both // 2) * a.element_size()
    return aot.Cost(operations=2 * a.numel() * both, bytes=moved)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for experts, each, n, k in BENCH:
        yield _problem(make, dtype, (each,) * experts, n, k)


def torch_equivalent(a: Any, b: Any, offsets: Any, weights: Any = None) -> Any:
    import torch
    from torch.nn import functional

    if a.is_cuda:
        product = torch._grouped_mm(a, b.mT, offs=offsets)
    else:
        product, start = a.new_zeros(a.shape[0], b.shape[1]), 0
        for expert, end in enumerate(offsets.tolist()):
            product[start:end] = a[start:end] @ b[expert].mT
            start = end
    gate, up = product.chunk(2, dim=-1)
    out = functional.silu(gate) * up
    return out if weights is None else (out * weights[:, None]).to(a.dtype)
