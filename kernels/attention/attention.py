"""``out = softmax(scale * q @ k.T) @ v`` for whole sequences: prompts, training, chunks of a prompt.

The tensor cores are the limit: ``q`` queries and ``n`` tokens take ``2 * q * n * (dim + value_dim)`` operations, and each
key and value is used by all queries of a tile. The code is in ``_attention_sm90`` and ``_attention``. For one to sixteen
queries per sequence, reading keys and values is the limit: see ``attention_decode``.
"""

from __future__ import annotations

from typing import Any

import aot

from ..contracts import attention as contract
from ._attention_sm90 import Attention, Tiling

ALIGNMENT = 16  # bytes; TMA needs it for addresses and strides
CHUNK = ALIGNMENT // 2  # elements

TILINGS = {  # by the width of a head
    128: Tiling(128, 128, 128, 128),
    64: Tiling(192, 128, 64, 64),
    256: Tiling(128, 80, 256, 256),
}
RAGGED = (128,)  # widths for sequences side by side


def tokens(name: str, dtype: str, count: str, heads: str, dim: int, ragged: bool) -> aot.Tensor:
    """Tokens of heads, by sequence unless they lie side by side. Only the elements of a head must be neighbours."""
    shape = (count, heads, dim) if ragged else ("batch", count, heads, dim)
    strides = [aot.Dim(f"{name}_stride_{i}", divisible_by=CHUNK, bits=64) for i in range(len(shape) - 1)]
    return aot.Tensor(dtype, shape, (*strides, 1), align=ALIGNMENT)


@aot.kernel(
    parameters=(
        aot.In("q", "batch x tokens x heads x dim, or tokens x heads x dim of sequences side by side"),
        aot.In("k", "batch x kv_tokens x kv_heads x dim, or without batch like `q`"),
        aot.In("v", "like `k`"),
        aot.Out("out", shape="q.shape", dtype="q.dtype"),
        aot.In("scale", "of the scores, above 0, often 1 / sqrt(dim)"),
        aot.In("left", "how many tokens before its own place a query sees; -1: all of them", default=-1),
        aot.In("right", "how many tokens after its own place a query sees; 0: causal; -1: all of them", default=-1),
        aot.In("q_starts", "where each sequence begins in `q`, then where the last one ends; or none", default=None),
        aot.In("k_starts", "likewise in `k` and `v`", default=None),
        aot.Out(
            "lse", "the logarithm of the sum of exp(score); or none", shape="q.shape[:-1]", dtype="f32", default=None
        ),
        aot.Workspace("tickets", bytes="4", zeroed=True),
    ),
    archs=("sm_90a",),
    axes={
        "dtype": ("bf16",),
        "layout": {"batch": False, "ragged": True},
        "dim": tuple(TILINGS),
        "lse": {"lse": True, "no_lse": False},
    },
    reference=contract.reference,
    inputs=contract.inputs,
    cost=contract.cost,
)
def attention(target: aot.Target, dtype: str, layout: bool, dim: int, lse: bool) -> list[aot.Spec]:
    """Attention of each query to the tokens of its own sequence. The last query is at the place of the last token.

    A query that sees no token gives zeros, and minus infinity in ``lse``. Tokens past the end of a sequence have no
    influence, whatever the memory there contains. ``heads`` is a multiple of ``kv_heads``; neighbouring heads share one.
    """
    if layout and dim not in RAGGED:
        return []
    starts = aot.Tensor("i32", ("starts",)) if layout else None
    rows = ("tokens", "heads") if layout else ("batch", "tokens", "heads")
    arguments: dict[str, Any] = {
        "q": tokens("q", dtype, "tokens", "heads", dim, layout),
        "k": tokens("k", dtype, "kv_tokens", "kv_heads", dim, layout),
        "v": tokens("v", dtype, "kv_tokens", "kv_heads", dim, layout),
        "out": tokens("out", dtype, "tokens", "heads", dim, layout),
        "scale": aot.Scalar("f32"),
        "left": aot.Scalar("i32"),
        "right": aot.Scalar("i32"),
        "lse": aot.Tensor("f32", rows) if lse else None,
        "q_starts": starts,
        "k_starts": starts,
        "tickets": aot.Tensor("i32", ("length",), align=128),
        "multiprocessors": aot.Multiprocessors(),
        "stream": aot.Stream(),
    }
    guards = ("scale > 0", "kv_heads > 0", "kv_tokens > 0", "heads % kv_heads == 0")
    return [aot.Spec(Attention(TILINGS[dim], target, layout), arguments, guards + (("starts > 0",) if layout else ()))]
