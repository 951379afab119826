"""Attention of queries against chosen tokens of a cache of latent vectors.

The tolerance is that of ``mla_decode``: nothing but the order of the tokens differs. So is what is rounded of packed tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import aot

from ._caches import KEY, VALUE
from ._packed import pack, unpacked

NONE = (-1, -(2**31), 2**31 - 1)  # indices that name no token


@dataclass(frozen=True)
class Choice:
    """A query for each length. Some of its indices name no token: about one of ``missing``, if that is not 0."""

    lengths: tuple[int, ...]
    chosen: int  # indices of each query
    heads: int = 16
    pages: int = 6
    page: int = 64
    missing: int = 0
    huge: bool = False  # scores of many thousands, as in ``_caches``
    packed: bool = False

    def make(self, make: Any, dtype: str) -> dict[str, Any]:
        """Indices past a query's length name any token or none, and tokens that no query sees are NaN."""
        torch, queries = make.torch, len(self.lengths)
        draw = torch.Generator().manual_seed(11)
        total = self.pages * self.page
        indices = torch.randint(total // 2, (queries, self.chosen), generator=draw, dtype=torch.int64) * 2
        if self.missing:
            lost = torch.randint(self.missing, indices.shape, generator=draw) == 0
            indices[lost] = torch.tensor(NONE)[torch.randint(len(NONE), (int(lost.sum()),), generator=draw)]
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        past = torch.arange(self.chosen) >= lengths[:, None]
        indices[past] = indices[past] | 1  # tokens that are NaN, or none
        cache, q = make.tensor((self.pages, self.page, KEY), dtype), make.tensor((queries, self.heads, KEY), dtype)
        if self.huge:
            q = q.round() * 8192
            cache.copy_((cache.float() * 4).round() / 4)
        cache.view(total, KEY)[1::2] = math.nan
        return {
            "q": q,
            "cache": pack(cache) if self.packed else cache,
            "indices": indices.to(torch.int32).to(make.device),
            "lengths": lengths.to(make.device),
            "scale": KEY**-0.5,
        }


SHAPES = (
    Choice((), 64),
    Choice((0,), 64),
    Choice((1, 0, 2, 3), 3, heads=3),
    Choice((1,) * 3, 1, missing=2),
    Choice((15, 16, 17, 63, 64, 65, 127, 128, 129), 130, missing=7),
    Choice((2048,) * 3, 2048, heads=128),
    Choice((2048, 0, 300, 1999), 2048, heads=96, missing=3),
    Choice((700,) * 70, 704, heads=64, pages=400, missing=50),
    Choice(tuple(7 * i % 90 for i in range(40)), 90, heads=9, pages=20, page=16),
    Choice((500, 130), 512, missing=1),  # no token at all
    Choice((400, 5), 400, pages=9, page=48, huge=True),
    Choice((3000,), 4096, heads=33, pages=400, page=1),
)
BENCH = ((128, 128), (32, 128), (1, 128), (128, 64), (128, 16))  # queries and heads
CHOSEN = 2048


def reference(q: Any, cache: Any, indices: Any, lengths: Any, scale: float) -> Any:
    import torch

    queries, heads, _ = q.shape
    flat = unpacked(cache, q.dtype).flatten(0, 1)
    out = torch.zeros((queries, heads, VALUE), dtype=torch.float64, device=q.device)
    for i, length in enumerate(lengths.tolist()):
        own = indices[i, :length].long()
        keys = flat[own[(own >= 0) & (own < len(flat))]].double()
        if len(keys):
            out[i] = (q[i].double() @ keys.T * scale).softmax(-1) @ keys[:, :VALUE]
    return out


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for choice in SHAPES:
        yield choice.make(make, dtype)
        if dtype == "bf16" and not choice.huge:
            yield replace(choice, packed=True).make(make, dtype)


def cost(q: Any, cache: Any, indices: Any, lengths: Any, **_: Any) -> aot.Cost:
    queries, heads, _ = q.shape
    tokens = int(lengths.clamp(max=indices.shape[1]).sum())
    read = tokens * (cache.shape[2] * cache.element_size() + 4)
    return aot.Cost(2 * tokens * heads * (KEY + VALUE), read + queries * heads * (KEY + VALUE) * q.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for queries, heads in BENCH:
        yield Choice((CHOSEN,) * queries, CHOSEN, heads=heads, pages=8192).make(make, dtype)


def torch_equivalent(q: Any, cache: Any, indices: Any, lengths: Any, scale: float) -> Any:
    """Gather the tokens, then two products."""
    import torch

    flat = unpacked(cache, q.dtype).flatten(0, 1)
    exists = (indices >= 0) & (indices < len(flat))
    exists &= torch.arange(indices.shape[1], device=q.device) < lengths[:, None]
    keys = flat[torch.where(exists, indices, 0).long()]
    keys = torch.where(exists[:, :, None], keys, 0).to(q.dtype)
    scores = (q @ keys.transpose(1, 2)).float() * scale
    weights = scores.masked_fill(~exists[:, None], -math.inf).softmax(-1).nan_to_num().to(q.dtype)
    return weights @ keys[:, :, :VALUE]
