"""Attention of the last tokens of each sequence against a cache, contiguous or in pages.

Why the tolerance of the output's dtype is enough. Let ``e`` be its unit roundoff: 2**-9 for bf16, 2**-12 for f16. Weights
are rounded to that dtype before they meet the values, which changes each by a factor of at most ``1 + e``, and the result
is rounded once more. Scores and sums are f32: with n tokens their error is below n * 2**-24 of the sum of magnitudes in
the worst case, and sqrt(n) * 2**-24 as a rule. So the error relative to ``sum(weight * |v|)`` is at most 2 * e, the bound
for the worst element: 2**-8 for bf16, half of what is tolerated. Roundings are independent of each other and spread
evenly, so each contributes ``e / sqrt(3)`` to the relative norm, together 0.82 * e, of which 2 * e are tolerated.
Elements of f8e4m3 are exact in both dtypes, so a cache of them changes nothing in this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import aot

from ._caches import Case, dense, sequence

# The number of query rows that share a head decides on the tiling: up to 16, up to 64, more.
SHAPES = (
    Case(()),
    Case((0,)),
    Case((1,)),
    Case((1, 0, 2, 3), heads=3, kv_heads=3),
    Case((15, 16, 17, 63, 64, 65, 127, 128, 129)),
    Case((1, 64, 300, 129, 500), heads=16, kv_heads=1, capacity=5000),  # short ones in a cache with much room
    Case((0, 300, 0, 0, 1000, 7, 0), heads=32, kv_heads=8),
    Case((2100, 1, 700), heads=16, kv_heads=1, heads_first=True),
    Case(tuple(7 * i % 90 for i in range(40)), heads=4, kv_heads=1),  # more sequences than a warp has lanes
    Case((9000,), heads=4, kv_heads=1, capacity=9001),
    Case((5, 1, 2, 0, 130), tokens=4, heads=4, kv_heads=2),  # the first tokens of short sequences see nothing
    Case((33, 16, 700), tokens=16, heads=8, kv_heads=8),
    Case((100, 7, 1500), tokens=5, heads=8, kv_heads=1),
    Case((1, 64, 999), heads=64, kv_heads=1),
    Case((300, 3000), heads=128, kv_heads=1, heads_first=True),
    Case((77, 1500, 3), tokens=16, heads=10, kv_heads=1),  # more rows than a tile has
    Case((5, 400), huge=True),
    Case((64, 0, 65, 1000), heads=96, kv_heads=1, page=256),  # many rows, and pages with room for a tile
)
PAGES = (16, 32, 48, 256)  # of cases that name none
BENCH = ((64, 32, 8, 8192), (8, 32, 8, 32_768), (1, 32, 8, 65_536), (128, 128, 1, 4096))


def reference(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    lengths: Any,
    scale: float,
    pages: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
) -> Any:
    import torch

    _, tokens, heads, dim = q.shape
    kv_heads = k_cache.shape[2]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for i, length in enumerate(lengths.tolist()):
        if length > 0:
            stored = ((k_cache, k_scale), (v_cache, v_scale))
            keys, values = (sequence(cache, i, length, pages, factor) for cache, factor in stored)
            rows = q[i].double().view(tokens, kv_heads, heads // kv_heads, dim)
            scores = torch.einsum("tkgd,nkd->kgtn", rows, keys) * scale
            own = torch.arange(length - tokens, length, device=q.device)[:, None]
            scores[..., torch.arange(length, device=q.device) > own] = -math.inf
            weights = torch.where(own >= 0, scores.softmax(-1), 0)  # a row that sees no token is zero
            out[i] = torch.einsum("kgtn,nkd->tkgd", weights, values).reshape(tokens, heads, dim)
    return out


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for index, case in enumerate(SHAPES):
        for page in (0, case.page or PAGES[index % len(PAGES)]):
            yield replace(case, page=page).make(make, dtype)
            yield replace(case, page=page, dim=64).make(make, dtype)
            yield replace(case, page=page, narrow=True).make(make, dtype)
    for heads in (2, 40, 130):  # of one head of a cache without room for a token
        case = Case((0, 0, 0), heads=heads, kv_heads=1)
        for page in (0, 16):
            call = replace(case, page=page).make(make, dtype)
            caches = {name: call[name][:0] if page else call[name][:, :0] for name in ("k_cache", "v_cache")}
            yield {**call, **caches, **({"pages": call["pages"][:, :0]} if page else {})}


def cost(q: Any, k_cache: Any, lengths: Any, **_: Any) -> aot.Cost:
    tokens, width = int(lengths.sum()), k_cache.shape[2] * k_cache.shape[3]
    operations = 4 * tokens * q.shape[1] * q.shape[2] * q.shape[3]
    return aot.Cost(operations, 2 * tokens * width * k_cache.element_size() + 2 * q.numel() * q.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for batch, heads, kv_heads, length in BENCH:
        yield Case((length,) * batch, heads=heads, kv_heads=kv_heads, heads_first=True).make(make, dtype)


def torch_equivalent(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    lengths: Any,
    scale: float,
    pages: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
) -> Any:
    """Pages side by side, zeros past the end, a mask."""
    import torch

    tokens, group = q.shape[1], q.shape[2] // k_cache.shape[2]
    keys, values = (dense(*stored, pages, q.dtype) for stored in ((k_cache, k_scale), (v_cache, v_scale)))
    place = torch.arange(keys.shape[1], device=q.device)
    inside = (place < lengths[:, None])[:, :, None, None]
    keys, values = (torch.where(inside, x, 0).transpose(1, 2).repeat_interleave(group, 1) for x in (keys, values))
    own = lengths[:, None] - tokens + torch.arange(tokens, device=q.device)
    seen = (place <= own[:, :, None])[:, None]
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(q.transpose(1, 2), keys, values, attn_mask=seen, scale=scale).transpose(1, 2).nan_to_num()
