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
from dataclasses import dataclass, replace
from typing import Any

import aot

F8_NAN = 0x7F  # NaN as f8e4m3


@dataclass(frozen=True)
class Case:
    """``page`` is the size of a page, or 0 for a contiguous cache with room for ``capacity`` tokens."""

    lengths: tuple[int, ...]
    tokens: int = 1
    heads: int = 8
    kv_heads: int = 2
    dim: int = 128
    page: int = 0
    capacity: int = 0
    huge: bool = False  # scores of many thousands, exact in f32: they are equal, or so far apart that one takes all
    heads_first: bool = False  # the cache lies in memory head by head
    narrow: bool = False  # the cache is f8e4m3, with a scale per head

    def make(self, make: Any, dtype: str) -> dict[str, Any]:
        q = make.tensor((len(self.lengths), self.tokens, self.heads, self.dim), dtype)
        q = q.round() * 8192 if self.huge else q
        call = {"q": q, **self._caches(make, "f8e4m3" if self.narrow else dtype), "scale": self.dim**-0.5}
        if self.narrow:
            call |= {name: make.tensor((self.kv_heads,), "f32").abs() + 0.1 for name in ("k_scale", "v_scale")}
        call["lengths"] = make.torch.tensor(self.lengths, dtype=make.torch.int32, device=make.device)
        return call

    def _caches(self, make: Any, dtype: str) -> dict[str, Any]:
        """Caches that are NaN past the end of each sequence, with a table that names no page there."""
        torch = make.torch
        size = self.page or max(self.capacity, *self.lengths, 1)
        each = -(-max(*self.lengths, 1) // size) + 1 if self.page else 1
        used = [-(-length // size) for length in self.lengths]
        count = sum(used) + 3 if self.page else len(self.lengths)
        if self.page:
            table = torch.full((len(self.lengths), each), -(2**30), dtype=torch.int32)
            order = torch.randperm(count, generator=torch.Generator().manual_seed(7)).to(torch.int32)
        else:
            table = torch.arange(count, dtype=torch.int32)[:, None]
        owned = torch.zeros(count, size, dtype=torch.bool)
        first = 0
        for row, length in enumerate(self.lengths):
            if self.page:
                table[row, : used[row]] = order[first : first + used[row]]
                first += used[row]
            for index in range(used[row]):
                owned[int(table[row, index]), : min(size, length - index * size)] = True
        caches = {name: self._cache(make, dtype, count, size, owned) for name in ("k_cache", "v_cache")}
        return {**caches, "pages": table.to(make.device)} if self.page else caches

    def _cache(self, make: Any, dtype: str, count: int, size: int, owned: Any) -> Any:
        if self.heads_first:
            cache = make.tensor((count, self.kv_heads, size, self.dim), dtype).transpose(1, 2)
        else:
            cache = make.tensor((count, size, self.kv_heads, self.dim), dtype)
        if self.huge:
            cache.copy_((cache.float() * 4).round() / 4)
        if self.narrow:  # torch cannot assign to all tensors of this dtype
            cache.view(make.torch.uint8)[~owned.to(make.device)] = F8_NAN
        else:
            cache[~owned.to(make.device)] = math.nan
        return cache


# The number of query rows that share a head decides on the tiling: up to 16, up to 64, more.
SHAPES = (
    Case((0,)),
    Case((1,)),
    Case((1, 0, 2, 3), heads=3, kv_heads=3),
    Case((15, 16, 17, 63, 64, 65, 127, 128, 129)),
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
)
PAGES = (16, 32, 48, 256)
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
            keys, values = (_sequence(cache, i, length, pages, factor) for cache, factor in stored)
            rows = q[i].double().view(tokens, kv_heads, heads // kv_heads, dim)
            scores = torch.einsum("tkgd,nkd->kgtn", rows, keys) * scale
            own = torch.arange(length - tokens, length, device=q.device)[:, None]
            scores[..., torch.arange(length, device=q.device) > own] = -math.inf
            weights = torch.where(own >= 0, scores.softmax(-1), 0)  # a row that sees no token is zero
            out[i] = torch.einsum("kgtn,nkd->tkgd", weights, values).reshape(tokens, heads, dim)
    return out


def _sequence(cache: Any, index: int, length: int, pages: Any, factor: Any) -> Any:
    """The tokens of a sequence, side by side, in f64."""
    if pages is None:
        tokens = cache[index, :length]
    else:
        used = -(-length // cache.shape[1])
        tokens = _indexed(cache, pages[index, :used].long()).flatten(0, 1)[:length]
    return tokens.double() if factor is None else tokens.double() * factor.double()[:, None]


def _indexed(cache: Any, pages: Any) -> Any:
    import torch

    if cache.element_size() > 1:
        return cache[pages]
    return cache.view(torch.uint8)[pages].view(cache.dtype)  # torch cannot index all tensors of this dtype


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for index, case in enumerate(SHAPES):
        for page in (0, PAGES[index % len(PAGES)]):
            yield replace(case, page=page).make(make, dtype)
            yield replace(case, page=page, dim=64).make(make, dtype)
            yield replace(case, page=page, narrow=True).make(make, dtype)


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
    keys, values = (_dense(*stored, pages, q.dtype) for stored in ((k_cache, k_scale), (v_cache, v_scale)))
    place = torch.arange(keys.shape[1], device=q.device)
    inside = (place < lengths[:, None])[:, :, None, None]
    keys, values = (torch.where(inside, x, 0).transpose(1, 2).repeat_interleave(group, 1) for x in (keys, values))
    own = lengths[:, None] - tokens + torch.arange(tokens, device=q.device)
    seen = (place <= own[:, :, None])[:, None]
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(q.transpose(1, 2), keys, values, attn_mask=seen, scale=scale).transpose(1, 2).nan_to_num()


def _dense(cache: Any, factor: Any, pages: Any, dtype: Any) -> Any:
    if pages is not None:
        cache = _indexed(cache, pages.long().clamp(min=0)).flatten(1, 2)
    return cache.to(dtype) if factor is None else (cache.to(dtype) * factor[:, None]).to(dtype)
