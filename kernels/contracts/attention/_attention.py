"""Calls of ``attention``, what they compute and what they cost: its contract and that of its gradients share these."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import aot

from . import _caches

ALL = -1  # no bound
NO_PAGE = -(2**30)  # in a table, for a page that must not be read


@dataclass(frozen=True)
class Case:
    """Queries and tokens of each sequence. Sequences of different lengths lie side by side.

    ``page``: keys and values are in pages of this size, and queries lie side by side.
    """

    queries: tuple[int, ...]
    tokens: tuple[int, ...]
    heads: int = 2
    kv_heads: int = 1
    dim: int = 128
    value_dim: int = 128
    left: int = ALL
    right: int = ALL
    lse: bool = True
    huge: bool = False  # scores of many thousands, exact in f32: they are equal, or so far apart that one takes all
    soft_cap: float = 0.0
    sinks: bool = False
    page: int = 0
    heads_first: bool = False  # pages lie in memory head by head

    @property
    def ragged(self) -> bool:
        return bool(self.page) or len(set(self.queries)) > 1 or len(set(self.tokens)) > 1

    def make(self, make: Any, dtype: str) -> dict[str, Any]:
        torch = make.torch
        q = self._tokens(make, dtype, self.queries, self.heads, self.dim)
        q = q.round() * 8192 if self.huge else q
        cached = self._in_pages(make, dtype) if self.page else self._in_line(make, dtype)
        call = {"q": q, **cached, "scale": self.dim**-0.5, "left": self.left, "right": self.right}
        if self.ragged:
            call["q_starts"] = torch.tensor([0, *accumulate(self.queries)], dtype=torch.int32, device=make.device)
        if self.soft_cap:
            call["soft_cap"] = self.soft_cap
        if self.sinks:
            call["sinks"] = make.tensor((self.heads,), "f32")
            call["sinks"][0] = 30.0
            call["sinks"][-1] = -math.inf
        return call if self.lse else {**call, "lse": None}

    def _tokens(self, make: Any, dtype: str, lengths: tuple[int, ...], heads: int, dim: int) -> Any:
        shape = (sum(lengths), heads, dim) if self.ragged else (len(lengths), lengths[0], heads, dim)
        return make.tensor(shape, dtype)

    def _in_line(self, make: Any, dtype: str) -> dict[str, Any]:
        torch = make.torch
        k = self._tokens(make, dtype, self.tokens, self.kv_heads, self.dim)
        k = (k.float() * 4).round().to(k.dtype) / 4 if self.huge else k
        v = self._tokens(make, dtype, self.tokens, self.kv_heads, self.value_dim)
        call = {"k": fenced(torch, k), "v": fenced(torch, v)}
        if self.ragged:
            call["k_starts"] = torch.tensor([0, *accumulate(self.tokens)], dtype=torch.int32, device=make.device)
        return call

    def _in_pages(self, make: Any, dtype: str) -> dict[str, Any]:
        """Pages hold NaN past the end of each sequence. The table names none there, and none before a window.

        Without any token there is no page.
        """
        cache = _caches.Case(
            self.tokens, kv_heads=self.kv_heads, page=self.page, huge=self.huge, heads_first=self.heads_first
        )
        call = replace(cache, dim=self.dim).caches(make, dtype, ("k",))
        call |= replace(cache, dim=self.value_dim).caches(make, dtype, ("v",))
        for table, queries, tokens in zip(call["pages"], self.queries, self.tokens, strict=True):
            first = max(tokens - queries - self.left, 0) if self.left >= 0 else 0
            table[: first // self.page] = NO_PAGE
        if not any(self.tokens):
            call = {"k": call["k"][:0], "v": call["v"][:0], "pages": call["pages"][:, :0]}
        lengths = make.torch.tensor(self.tokens, dtype=make.torch.int32, device=make.device)
        return {**call, "lengths": lengths}


def fenced(torch: Any, x: Any) -> Any:
    """The same tensor inside a larger one, with NaN past the last token. An empty one stays as it is."""
    if not x.numel():
        return x
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
PAGED = (
    Case((5, 300), (130, 300), page=16),
    Case((100, 300, 1, 0, 77, 260), (100, 333, 1, 5, 0, 260), heads=4, kv_heads=2, page=16, **CAUSAL),
    Case((64, 200), (1000, 2000), heads=6, kv_heads=2, page=256, heads_first=True, **CAUSAL),  # chunks of prompts
    Case((3, 40), (3, 16), page=64, **CAUSAL),  # one page, not full and full; queries that see nothing
    Case((130, 16, 500), (900, 16, 700), page=32, left=100, right=0),  # pages before the window are gone
    Case((7,), (321,), page=80, left=3, right=2),
    Case((200, 9), (300, 40), page=48, huge=True),
    Case((0, 0, 3), (0, 9, 0), page=128),
    Case((0,), (0,), page=16),
)
EMPTY = (Case((0,), (0,)), Case((0, 0), (5, 5)))  # no query: nothing is launched, whether there are keys or not
KEYLESS = (Case((70, 70), (0, 0)), Case((5, 70), (0, 0), **CAUSAL), Case((5, 70), (0, 0), page=16))
# B, H, heads of keys, S, D
BENCH = ((4, 16, 16, 4096, 128), (1, 32, 8, 8192, 128), (16, 16, 16, 1024, 128), (4, 32, 32, 4096, 64))


class Scoring(NamedTuple):
    """How scores become weights."""

    scale: float
    left: int
    right: int
    soft_cap: float
    sinks: Any


def attend(
    q: Any, k: Any, v: Any, scoring: Scoring, q_starts: Any, k_starts: Any, pages: Any = None, lengths: Any = None
) -> tuple[Any, Any]:
    """The output and the logarithms in the dtype of ``q``, sequence by sequence."""
    import torch

    if q_starts is None:
        parts = [_sequence(*tensors, scoring) for tensors in zip(q, k, v, strict=True)]
        return torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts])
    queries = q.split(q_starts.diff().tolist())
    if pages is None:
        tokens = k_starts.diff().tolist()
        cached = [x[: sum(tokens)].split(tokens) for x in (k, v)]
    else:
        cached = [
            [_caches.sequence(x, i, n, pages.clamp(min=0), None).to(q.dtype) for i, n in enumerate(lengths.tolist())]
            for x in (k, v)
        ]
    parts = [_sequence(*tensors, scoring) for tensors in zip(queries, *cached, strict=True)]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


def _sequence(q: Any, k: Any, v: Any, scoring: Scoring) -> tuple[Any, Any]:
    """One sequence: tokens x heads x dim. What no query sees has no influence, be it NaN."""
    import torch

    scale, left, right, soft_cap, sinks = scoring
    queries, heads, _ = q.shape
    tokens = k.shape[0]
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,nhd->hqn", q, k) * scale
    scores = soft_cap * torch.tanh(scores / soft_cap) if soft_cap else scores
    own = torch.arange(queries, device=q.device)[:, None] + tokens - queries
    place = torch.arange(tokens, device=q.device)
    hidden = torch.zeros(queries, tokens, dtype=torch.bool, device=q.device)
    hidden |= (place > own + right) if right >= 0 else hidden
    hidden |= (place < own - left) if left >= 0 else hidden
    scores = scores.masked_fill(hidden, -math.inf)
    v = v.masked_fill(hidden.all(0)[:, None, None], 0)
    extra = torch.full((heads,), -math.inf, device=q.device) if sinks is None else sinks
    scores = torch.cat([scores, extra.to(q.dtype)[:, None, None].expand(-1, queries, 1)], -1)  # a sink has no value
    lse = scores.logsumexp(-1)
    weights = torch.where(lse[..., None] > -math.inf, scores.softmax(-1), 0)[..., :-1]
    return torch.einsum("hqn,nhd->qhd", weights, v), lse.T


def cost(
    q: Any,
    k: Any,
    v: Any,
    left: int = ALL,
    right: int = ALL,
    q_starts: Any = None,
    lengths: Any = None,
    **_: Any,
) -> aot.Cost:
    """Operations of the two products over what queries see, as if all sequences had the mean length."""
    sequences = max(q.shape[0] if q_starts is None else len(q_starts) - 1, 1)
    width = k.shape[-2] * (k.shape[-1] + v.shape[-1])  # of a token
    all_tokens = int(lengths.sum()) if lengths is not None else k.numel() // max(k.shape[-2] * k.shape[-1], 1)
    rows = q.numel() // q.shape[-1]
    queries, tokens = rows / q.shape[-2] / sequences, all_tokens / sequences
    seen = tokens
    if right == 0 and left < 0 and queries <= tokens:
        seen = tokens - (queries - 1) / 2
    elif left >= 0 and right >= 0:
        seen = min(tokens, left + right + 1)
    moved = all_tokens * width + rows * (q.shape[-1] + v.shape[-1])
    return aot.Cost(int(2 * rows * seen * (q.shape[-1] + v.shape[-1])), moved * q.element_size())
