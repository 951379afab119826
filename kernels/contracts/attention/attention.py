"""Attention of sequences: batches of one length, sequences of different lengths side by side, or caches in pages.

Why the tolerance of the output's dtype is enough: the arithmetic is that of ``attention_decode``, whose contract derives
it. Weights are rounded to the dtype, sums are f32, and the result is rounded once more. A soft cap is computed in f32 from
a power of two and a reciprocal, each with an error of about 2**-22, or from a polynomial with an error of 2**-21. So a score
is wrong by about 2**-20 of the cap. With a cap of 50 that changes a weight by a factor of 1 + 2**-14, which is a quarter of
what rounding it to f16 does. A sink adds one weight, in f32, to the sum.

The logarithm of the sum of weights is f32. Scores are sums of exact products in f32, with an error of about 2**-22 of
their magnitude, and so is the logarithm. With a soft cap, errors of 2**-20 of the cap average out over the tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ._attention import ALL, BENCH, EMPTY, KEYLESS, PAGED, RAGGED, SHAPES, Scoring, attend, cost

__all__ = ["bench_inputs", "cost", "inputs", "reference", "torch_equivalent"]


def reference(
    q: Any,
    k: Any,
    v: Any,
    scale: float,
    left: int = ALL,
    right: int = ALL,
    q_starts: Any = None,
    k_starts: Any = None,
    lse: Any = ...,
    soft_cap: float = 0.0,
    sinks: Any = None,
    pages: Any = None,
    lengths: Any = None,
) -> Any:
    """The output, and unless ``lse`` is None the logarithm of the sum of weights of each query and head."""
    import torch

    wide = (x.double() for x in (q, k, v))
    out, logarithms = attend(*wide, Scoring(scale, left, right, soft_cap, sinks), q_starts, k_starts, pages, lengths)
    assert out.dtype == torch.float64
    return out if lse is None else (out, logarithms)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for case in (*SHAPES, *RAGGED, *PAGED):
        yield case.make(make, dtype)
    for case in (SHAPES[5], RAGGED[1], PAGED[1], *EMPTY, *KEYLESS):
        yield replace(case, lse=False).make(make, dtype)
    for case in KEYLESS:
        yield replace(case, dim=192, heads=8, kv_heads=2).make(make, dtype)
        yield replace(case, dim=64, value_dim=64, sinks=True).make(make, dtype)
    # What other widths, sinks and a soft cap have of their own.
    for dim, value_dim in ((64, 64), (96, 96), (192, 128), (256, 256)):
        for case in (SHAPES[1], SHAPES[7], SHAPES[12], PAGED[6]):
            yield replace(case, heads=8, kv_heads=2, dim=dim, value_dim=value_dim).make(make, dtype)
        yield from _few(make, dtype, dim=dim, value_dim=value_dim)
    for dim in (128, 64):
        yield from _few(make, dtype, dim=dim, value_dim=dim, sinks=True)
        yield replace(PAGED[4], dim=dim, value_dim=dim, sinks=True, soft_cap=15.0).make(make, dtype)
    for dim, value_dim in ((128, 128), (64, 64), (96, 96), (192, 128), (256, 256)):
        # Scores are at and below 0.8 times the cap in about half of the tiles of a warp, which bends them in another way.
        yield from _few(make, dtype, dim=dim, value_dim=value_dim, soft_cap=4.25)
    yield replace(SHAPES[12], soft_cap=50.0).make(make, dtype)


def _few(make: Any, dtype: str, **changes: Any) -> Iterator[dict[str, Any]]:
    """A batch, sequences side by side and pages, each with the logarithm and without it."""
    some = (SHAPES[5], SHAPES[10], RAGGED[1], RAGGED[3], PAGED[1], PAGED[4])
    for index, case in enumerate(some):
        yield replace(case, heads=8, kv_heads=2, lse=index % 2 == 0, **changes).make(make, dtype)


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for batch, heads, kv_heads, length, dim in BENCH:
        for right in (0, ALL):
            q = make.tensor((batch, length, heads, dim), dtype)
            k, v = (make.tensor((batch, length, kv_heads, dim), dtype) for _ in range(2))
            yield {"q": q, "k": k, "v": v, "scale": dim**-0.5, "right": right, "lse": None}


def torch_equivalent(
    q: Any,
    k: Any,
    v: Any,
    scale: float,
    left: int = ALL,
    right: int = ALL,
    q_starts: Any = None,
    k_starts: Any = None,
    lse: Any = ...,
    soft_cap: float = 0.0,
    sinks: Any = None,
    pages: Any = None,
    lengths: Any = None,
) -> Any:
    """torch's own attention if it has the mask, else plain operations."""
    import torch

    whole = q_starts is None and left < 0 and sinks is None and not soft_cap and lse is None
    if whole and (right < 0 or (right == 0 and q.shape[1] == k.shape[1])):
        tensors = (x.transpose(1, 2) for x in (q, k, v))
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(*tensors, is_causal=right == 0, scale=scale, enable_gqa=True).transpose(1, 2)
    scoring = Scoring(scale, left, right, soft_cap, sinks)
    out, logarithms = attend(q, k, v, scoring, q_starts, k_starts, pages, lengths)
    return out if lse is None else (out, logarithms)
