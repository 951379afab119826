"""Attention of the last tokens of each sequence against a cache of latent vectors, contiguous or in pages.

The tolerance of the output's dtype is enough for the reasons given in ``attention_decode``: weights are rounded to that
dtype before they meet the values, and the result once more. Scores sum 576 products in f32, which adds nothing to that.
Elements of f8e4m3 are exact in both dtypes. Those of packed tokens, times their scale, are rounded to the dtype of the queries
before they are used, if there are more than 16 query rows. With fewer, weights times scales are rounded to f16 instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import aot

from ._caches import KEY, VALUE, Case, dense, sequence
from ._packed import pack, unpacked

SHAPES = (
    Case((), heads=16),
    Case((0,), heads=16),
    Case((1,), heads=16),
    Case((1, 0, 2, 3), heads=3),
    Case((15, 16, 17, 63, 64, 65, 127, 128, 129), heads=16),
    Case((1, 64, 300, 129), heads=64, capacity=5000),  # short ones in a cache with much room
    Case((1, 64, 300, 129), heads=64, capacity=5000, tokens=2),
    Case((0, 300, 0, 0, 1000, 7, 0), heads=128),
    Case(tuple(7 * i % 90 for i in range(40)), heads=64),  # more sequences than a warp has lanes
    Case((5000,), heads=32, capacity=5001),
    Case((2100, 1, 700), heads=128),
    Case((900,) * 5, heads=128),  # equal lengths: parts of the same size, the last one smaller
    Case((130,) * 70, heads=128),  # more sequences than runs
    Case((1100,) * 4, tokens=2, heads=64),
    Case((5, 1, 2, 0, 130), tokens=4, heads=16),  # the first tokens of short sequences see nothing
    Case((33, 16, 700), tokens=3, heads=40),
    Case((77, 1500, 3), tokens=16, heads=16),
    Case((300, 64), tokens=2, heads=128),
    Case((5, 400), heads=16, huge=True),
)
PAGES = (64, 16, 48, 256)
BENCH = ((128, 128, 4096), (32, 128, 4096), (128, 16, 8192))


def reference(q: Any, cache: Any, lengths: Any, scale: float, pages: Any = None, cache_scale: Any = None) -> Any:
    import torch

    batch, tokens, heads, _ = q.shape
    cache = unpacked(cache, q.dtype)
    out = torch.zeros((batch, tokens, heads, VALUE), dtype=torch.float64, device=q.device)
    for i, length in enumerate(lengths.tolist()):
        if length > 0:
            keys = sequence(cache[:, :, None], i, length, pages, cache_scale)[:, 0]
            scores = torch.einsum("thd,nd->htn", q[i].double(), keys) * scale
            own = torch.arange(length - tokens, length, device=q.device)[:, None]
            scores[..., torch.arange(length, device=q.device) > own] = -math.inf
            weights = torch.where(own >= 0, scores.softmax(-1), 0)  # a row that sees no token is zero
            out[i] = torch.einsum("htn,nd->thd", weights, keys[:, :VALUE])
    return out


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for index, case in enumerate(SHAPES):
        for page in (0, PAGES[index % len(PAGES)]):
            for narrow in (False, True):
                yield call(make, dtype, replace(case, page=page, narrow=narrow))
            if dtype == "bf16" and not case.huge:
                made = call(make, dtype, replace(case, page=page))
                yield {**made, "cache": pack(made["cache"])}
    if dtype == "bf16":
        yield growing(call(make, dtype, Case((1500, 40, 300), heads=16, page=PAGES[0])))


def growing(made: dict[str, Any]) -> dict[str, Any]:
    """Packed tokens whose scales differ by up to 2**12, from page to page."""
    import torch

    cache = made["cache"]
    sizes = torch.linspace(-12, 0, len(cache), device=cache.device).exp2()
    return {**made, "cache": pack(cache * sizes[:, None, None])}


def call(make: Any, dtype: str, case: Case) -> dict[str, Any]:
    """A cache of one head, as keys and values at once."""
    made = replace(case, kv_heads=1, dim=KEY).make(make, dtype, ("cache",))
    renamed = {"q": "q", "lengths": "lengths", "scale": "scale", "pages": "pages", "k_scale": "cache_scale"}
    return {**{renamed[name]: made[name] for name in renamed if name in made}, "cache": made["cache"].squeeze(2)}


def cost(q: Any, cache: Any, lengths: Any, **_: Any) -> aot.Cost:
    tokens, rows = int(lengths.sum()), q.shape[1] * q.shape[2]
    read = tokens * cache.shape[2] * cache.element_size()
    return aot.Cost(2 * tokens * rows * (KEY + VALUE), read + q.shape[0] * rows * (KEY + VALUE) * q.element_size())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for batch, heads, length in BENCH:
        yield call(make, dtype, Case((length,) * batch, heads=heads))


def torch_equivalent(q: Any, cache: Any, lengths: Any, scale: float, pages: Any = None, cache_scale: Any = None) -> Any:
    """Pages side by side, zeros past the end, two products."""
    import torch

    batch, tokens, heads, _ = q.shape
    keys = dense(unpacked(cache, q.dtype)[:, :, None], cache_scale, pages, q.dtype)[:, :, 0]
    place = torch.arange(keys.shape[1], device=q.device)
    keys = torch.where((place < lengths[:, None])[:, :, None], keys, 0)
    scores = (q.flatten(1, 2) @ keys.transpose(1, 2)).float() * scale
    own = lengths[:, None] - tokens + torch.arange(tokens, device=q.device)
    hidden = (place > own[:, :, None]).repeat_interleave(heads, 1)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1).to(q.dtype)
    return (weights @ keys[:, :, :VALUE]).view(batch, tokens, heads, VALUE).nan_to_num()
