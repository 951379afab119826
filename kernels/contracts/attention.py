"""Attention of sequences: batches of one length, or sequences of different lengths side by side.

Why the tolerance of the output's dtype is enough: the arithmetic is that of ``attention_decode``, whose contract derives
it. Weights are rounded to the dtype, sums are f32, and the result is rounded once more.

The logarithm of the sum of weights is f32. Scores are sums of exact products in f32, with an error of about 2**-22 of
their magnitude, and so is the logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import aot

ALL = -1  # no bound


@dataclass(frozen=True)
class Case:
    """Queries and tokens of each sequence. ``ragged``: sequences lie side by side; else all have one length."""

    queries: tuple[int, ...]
    tokens: tuple[int, ...]
    heads: int = 2
    kv_heads: int = 1
    dim: int = 128
    left: int = ALL
    right: int = ALL
    lse: bool = True
    huge: bool = False  # scores of many thousands, exact in f32: they are equal, or so far apart that one takes all

    @property
    def ragged(self) -> bool:
        return len(set(self.queries)) > 1 or len(set(self.tokens)) > 1

    def make(self, make: Any, dtype: str) -> dict[str, Any]:
        torch = make.torch
        q = self._tokens(make, dtype, self.queries, self.heads, self.dim)
        q = q.round() * 8192 if self.huge else q
        k = self._tokens(make, dtype, self.tokens, self.kv_heads, self.dim)
        k = (k.float() * 4).round().to(k.dtype) / 4 if self.huge else k
        v = self._tokens(make, dtype, self.tokens, self.kv_heads, self.dim)
        call = {"q": q, "k": fenced(torch, k), "v": fenced(torch, v), "scale": self.dim**-0.5}
        call |= {"left": self.left, "right": self.right}
        if self.ragged:
            for name, lengths in (("q_starts", self.queries), ("k_starts", self.tokens)):
                starts = [0, *accumulate(lengths)]
                call[name] = torch.tensor(starts, dtype=torch.int32, device=make.device)
        return call if self.lse else {**call, "lse": None}

    def _tokens(self, make: Any, dtype: str, lengths: tuple[int, ...], heads: int, dim: int) -> Any:
        shape = (sum(lengths), heads, dim) if self.ragged else (len(lengths), lengths[0], heads, dim)
        return make.tensor(shape, dtype)


def fenced(torch: Any, x: Any) -> Any:
    """The same tensor inside a larger one, with NaN past the last token."""
    tokens = x.dim() - 3
    shape = list(x.shape)
    shape[tokens] += 40
    larger = torch.full(shape, math.nan, dtype=x.dtype, device=x.device)
    inside = larger.narrow(tokens, 0, x.shape[tokens])
    inside.copy_(x)
    return inside


CAUSAL = {"right": 0}
SHAPES = (
    Case((1,), (1,)),
    Case((1, 1), (77, 77), heads=4, kv_heads=4),
    Case((128,), (128,), **CAUSAL),
    Case((64, 64, 64), (130, 130, 130)),
    Case((127,), (129,), **CAUSAL),
    Case((193, 193), (193, 193), heads=6, kv_heads=2, **CAUSAL),
    Case((300,), (700,), **CAUSAL),
    Case((400,), (150,), **CAUSAL),  # the first queries see nothing
    Case((260,), (260,), left=0, right=0),  # each sees itself alone
    Case((500,), (500,), left=70, right=0),
    Case((500,), (520,), left=200, right=130),
    Case((90,), (900,), left=5, right=5),
    Case((200,), (300,), huge=True),
    Case((1500,), (1500,), heads=4, kv_heads=2, **CAUSAL),  # many blocks
)
RAGGED = (
    Case((5, 300), (130, 300)),
    Case((100, 300, 1, 0, 77, 260), (100, 333, 1, 5, 0, 260), heads=4, kv_heads=2, **CAUSAL),
    Case(tuple(7 * i % 90 for i in range(40)), tuple(11 * i % 300 for i in range(40)), **CAUSAL),  # more than 32
    Case((400, 129, 200), (400, 1290, 200), left=100, right=0),
    Case((0, 0, 3), (0, 9, 0)),
    Case((1000, 130), (700, 130), heads=3, kv_heads=3, **CAUSAL),
)
# B, H, heads of keys, S, D
BENCH = ((4, 16, 16, 4096, 128), (1, 32, 8, 8192, 128), (16, 16, 16, 1024, 128), (4, 32, 32, 4096, 64))


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
) -> Any:
    """The output, and unless ``lse`` is None the logarithm of the sum of weights of each query and head."""
    import torch

    wide = (x.double() for x in (q, k, v))
    out, logarithms = _attend(*wide, scale, left, right, q_starts, k_starts)
    assert out.dtype == torch.float64
    return out if lse is None else (out, logarithms)


def _attend(
    q: Any, k: Any, v: Any, scale: float, left: int, right: int, q_starts: Any, k_starts: Any
) -> tuple[Any, Any]:
    """The same in the dtype of ``q``, sequence by sequence."""
    import torch

    options = (scale, left, right)
    if q_starts is None:
        parts = [_sequence(*tensors, *options) for tensors in zip(q, k, v, strict=True)]
        return torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts])
    queries, tokens = q_starts.diff().tolist(), k_starts.diff().tolist()
    k, v = k[: sum(tokens)], v[: sum(tokens)]
    pieces = zip(q.split(queries), k.split(tokens), v.split(tokens), strict=True)
    parts = [_sequence(*tensors, *options) for tensors in pieces]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


def _sequence(q: Any, k: Any, v: Any, scale: float, left: int, right: int) -> tuple[Any, Any]:
    """One sequence: tokens x heads x dim."""
    import torch

    queries, heads, _ = q.shape
    tokens = k.shape[0]
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,nhd->hqn", q, k) * scale
    own = torch.arange(queries, device=q.device)[:, None] + tokens - queries
    place = torch.arange(tokens, device=q.device)
    hidden = torch.zeros(queries, tokens, dtype=torch.bool, device=q.device)
    hidden |= (place > own + right) if right >= 0 else hidden
    hidden |= (place < own - left) if left >= 0 else hidden
    scores = scores.masked_fill(hidden, -math.inf)
    if tokens == 0:
        return q.new_zeros(queries, heads, v.shape[2]), q.new_full((queries, heads), -math.inf)
    lse = scores.logsumexp(-1)
    weights = torch.where(lse[..., None] > -math.inf, scores.softmax(-1), 0)
    return torch.einsum("hqn,nhd->qhd", weights, v), lse.T


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for case in (*SHAPES, *RAGGED):
        yield case.make(make, dtype)
    for case in (SHAPES[5], RAGGED[1]):
        yield replace(case, lse=False).make(make, dtype)
    for dim in (64, 256):
        for case in (SHAPES[1], SHAPES[5], SHAPES[7], SHAPES[10], SHAPES[12]):
            yield replace(case, heads=8, kv_heads=2, dim=dim).make(make, dtype)
        yield replace(SHAPES[9], heads=8, kv_heads=2, dim=dim, lse=False).make(make, dtype)


def cost(q: Any, k: Any, v: Any, left: int = ALL, right: int = ALL, **_: Any) -> aot.Cost:
    """Operations of the two products over what queries see, as if all sequences had one length."""
    queries, tokens = q.shape[-3], k.shape[-3]
    rows = q.numel() // q.shape[-1]
    seen = float(tokens)
    if right == 0 and left < 0 and queries <= tokens:
        seen = tokens - (queries - 1) / 2
    elif left >= 0 and right >= 0:
        seen = float(min(tokens, left + right + 1))
    size = q.element_size()
    read = sum(x.numel() for x in (q, k, v)) + rows * v.shape[-1]
    return aot.Cost(int(2 * rows * seen * (q.shape[-1] + v.shape[-1])), read * size)


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
) -> Any:
    """torch's own attention if it has the mask, else plain operations."""
    import torch

    whole = q_starts is None and left < 0 and lse is None
    if whole and (right < 0 or (right == 0 and q.shape[1] == k.shape[1])):
        tensors = (x.transpose(1, 2) for x in (q, k, v))
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(*tensors, is_causal=right == 0, scale=scale, enable_gqa=True).transpose(1, 2)
    out, logarithms = _attend(q, k, v, scale, left, right, q_starts, k_starts)
    return out if lse is None else (out, logarithms)
