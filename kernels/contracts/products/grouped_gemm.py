"""Products of rows that belong to experts, each expert with a matrix of its own.

The tolerance is that of the output's dtype. For f8e4m3 the reason is that of ``gemm_fp8``, for 16 bits that of ``gemm``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import aot

from ._experts import BENCH, CASES


def reference(a: Any, b: Any, offsets: Any, a_scale: Any = None, b_scale: Any = None) -> Any:
    import torch

    out = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        out[start:end] = a[start:end].double() @ b[expert].double().mT
        if a_scale is not None:
            out[start:end] *= a_scale[start:end, None].double() * b_scale[expert].double()
        start = end
    return out


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for rows, n, k in CASES:
        yield _problem(make, dtype, rows, n, k)
        yield _narrow(make, rows, n, k)
        if k % 8 == 0:
            yield _problem(make, dtype, rows, n, k, columns=True)
    yield _problem(make, dtype, (40, 0, 90), 136, 72, padding=16)
    yield _narrow(make, (40, 0, 90), 136, 80, padding=16)
    yield _special(make, dtype)


def _offsets(make: Any, rows: Sequence[int]) -> Any:
    torch = make.torch
    return torch.tensor(rows, device=make.device).cumsum(0).to(torch.int32)


def _problem(
    make: Any, dtype: str, rows: Sequence[int], n: int, k: int, padding: int = 0, columns: bool = False
) -> dict[str, Any]:
    a = make.tensor((sum(rows), k), dtype, stride=k + padding)
    b = (
        make.tensor((len(rows), k, n), dtype).mT
        if columns
        else make.tensor((len(rows), n, k), dtype, stride=k + padding)
    )
    return {"a": a, "b": b, "offsets": _offsets(make, rows)}


def _narrow(make: Any, rows: Sequence[int], n: int, k: int, padding: int = 0) -> dict[str, Any]:
    scales = {"a_scale": (sum(rows),), "b_scale": (len(rows), n)}
    scaled = {name: make.tensor(shape, "f32").abs() + 0.125 for name, shape in scales.items()}
    return _problem(make, "f8e4m3", rows, n, k, padding) | scaled


def _special(make: Any, dtype: str) -> dict[str, Any]:
    """NaN and infinity reach the elements of their row, or of the rows of their expert, and no others."""
    problem = _problem(make, dtype, (30, 70, 0, 40), 72, 64)
    problem["a"][3, 5], problem["a"][31, 0], problem["b"][1, 7, 60] = math.nan, math.inf, -math.inf
    problem["b"][2] = math.nan  # of an expert without rows
    return problem


def cost(a: Any, b: Any, offsets: Any, **_: Any) -> aot.Cost:
    n = b.shape[1]
    moved = (a.numel() + b.numel()) * a.element_size() + 2 * a.shape[0] * n
    return aot.Cost(operations=2 * a.numel() * n, bytes=moved)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for experts, each, n, k in BENCH:
        yield _problem(make, dtype, (each,) * experts, n, k)


def torch_equivalent(a: Any, b: Any, offsets: Any, a_scale: Any = None, b_scale: Any = None) -> Any:
    import torch

    if a.is_cuda and a_scale is None:
        return torch._grouped_mm(a, b.mT, offs=offsets)
    if a.is_cuda:
        return torch._scaled_grouped_mm(a, b.mT, a_scale, b_scale, offsets, out_dtype=torch.bfloat16)
    out = a.new_zeros((a.shape[0], b.shape[1]), dtype=torch.float32)
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        product = a[start:end].float() @ b[expert].float().mT
        out[start:end] = product if a_scale is None else product * a_scale[start:end, None] * b_scale[expert]
        start = end
    return out
