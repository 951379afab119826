"""Problems of products of experts, and products of the transposed rows of each expert, which two contracts share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

# Rows of each expert, n, k: at least one product for every tiling.
CASES: tuple[tuple[Sequence[int], int, int], ...] = (
    ((0,), 8, 16),
    ((1,), 8, 16),
    ((0, 0, 3, 0), 72, 80),
    ((64, 64), 128, 128),
    ((1, 63, 65, 0, 128, 127, 129), 136, 272),
    ((0, 200, 0, 0, 1, 0, 700), 264, 144),
    ((333,), 648, 1168),
    ((1500, 0, 20, 1601), 520, 272),
    (tuple(7 * i % 45 for i in range(100)), 200, 144),  # more experts than a warp has lanes
    ((0,) * 40 + (300,) + (0,) * 40, 72, 64),
    (tuple(0 if i % 33 else 90 for i in range(300)), 64, 64),
    ((2, 3000), 1000, 400),
    (tuple(range(60, 236, 4)), 384, 80),
    ((300,) * 40, 200, 80),
)
BENCH = ((8, 1024, 14_336, 4096), (64, 256, 2048, 7168), (64, 8, 2048, 7168))


def weights(a: Any, b: Any, offsets: Any) -> Any:
    import torch

    out = torch.zeros(len(offsets), a.shape[1], b.shape[1], dtype=torch.float64, device=a.device)
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        out[expert] = a[start:end].double().mT @ b[start:end].double()
        start = end
    return out


def weights_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for rows, n, k in CASES:
        yield weights_call(make, dtype, rows, n, k)
    yield weights_call(make, dtype, (40, 0, 90), 136, 72, padding=16)
    yield weights_call(make, dtype, (63, 64, 65), 8, 136)
    special = weights_call(make, dtype, (30, 70, 0, 40), 72, 64)
    # These must reach the elements of their expert's row or column, and no others.
    special["a"][29, 5], special["a"][30, 6], special["b"][100, 7] = math.nan, math.inf, math.nan
    yield special


def weights_call(make: Any, dtype: str, rows: Sequence[int], n: int, k: int, padding: int = 0) -> dict[str, Any]:
    a = make.tensor((sum(rows), n), dtype, stride=n + padding)
    b = make.tensor((sum(rows), k), dtype, stride=k + padding)
    offsets = make.torch.tensor(rows, device=make.device).cumsum(0).to(make.torch.int32)
    return {"a": a, "b": b, "offsets": offsets}


def weights_bench(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for experts, each, n, k in BENCH:
        yield weights_call(make, dtype, (each,) * experts, n, k)


def weights_of_torch(a: Any, b: Any, offsets: Any) -> Any:
    import torch

    if a.is_cuda:
        return torch._grouped_mm(a.mT, b, offs=offsets)
    return weights(a, b, offsets).float()
