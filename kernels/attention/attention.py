"""``out = softmax(scale * q @ k.T) @ v`` for whole sequences: prompts, training, chunks of a prompt against a cache.

The tensor cores are the limit: ``q`` queries and ``n`` tokens take ``2 * q * n * (dim + value_dim)`` operations, and each
key and value is used by all queries of a tile. The code for Hopper is in ``_attention_sm90``, that for other architectures
in ``_attention_sm80``, and what both share in ``_attention``. For one to sixteen queries per sequence, reading keys and
values is the limit: see ``attention_decode``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import aot

from .._device import HOPPER_ARCHS, forward
from ..contracts.attention import attention as contract
from .prompts import _attention_sm80
from .prompts._attention_sm90 import Attention, Tiling
from .prompts._producer_sm90 import BOX

ALIGNMENT = 16  # bytes; TMA needs it for addresses and strides
CHUNK = ALIGNMENT // 2  # elements

Dims = tuple[int, int]  # the width of keys, and that of values

SM90_TILINGS: dict[Dims, Tiling] = {
    (128, 128): Tiling(128, 128, 128, 128),
    (64, 64): Tiling(192, 128, 64, 64),
    (96, 96): Tiling(192, 112, 96, 96),
    (192, 128): Tiling(128, 128, 192, 128),
    (256, 256): Tiling(128, 80, 256, 256),
}
WITH_SINKS: tuple[Dims, ...] = ((128, 128), (64, 64))  # widths that models with sinks have


# What the gradients are computed from.
SAVED = ("q", "k", "v", "out", "lse", "scale", "left", "right", "q_starts", "k_starts", "soft_cap", "sinks")


class Extras(NamedTuple):
    """Optional tensors of a call. A soft cap is none of them: the code asks for it at run time."""

    lse: bool
    sinks: bool


EXTRAS = {
    "no_lse": Extras(lse=False, sinks=False),
    "lse": Extras(lse=True, sinks=False),
    "sinks": Extras(lse=False, sinks=True),
    "sinks_lse": Extras(lse=True, sinks=True),
}


def tokens(name: str, dtype: str, leading: tuple[Any, ...], heads: str, dim: int) -> aot.Tensor:
    """Tokens of heads. Only the elements of a head must be neighbours."""
    shape = (*leading, heads, dim)
    strides = [aot.Dim(f"{name}_stride_{i}", divisible_by=CHUNK, bits=64) for i in range(len(shape) - 1)]
    return aot.Tensor(dtype, shape, (*strides, 1), align=ALIGNMENT)


def arguments_of(dtype: str, layout: str, dims: Dims, extras: Extras) -> dict[str, Any]:
    """What a call passes, whatever the architecture."""
    dim, value_dim = dims
    rows = ("batch", "tokens") if layout == "batch" else ("tokens",)
    cached: tuple[Any, ...] = {
        "batch": ("batch", "kv_tokens"),
        "ragged": ("kv_tokens",),
        "pages": ("page_count", aot.Dim("page_size", divisible_by=BOX)),
    }[layout]
    starts = aot.Tensor("i32", ("starts",))
    return {
        "q": tokens("q", dtype, rows, "heads", dim),
        "k": tokens("k", dtype, cached, "kv_heads", dim),
        "v": tokens("v", dtype, cached, "kv_heads", value_dim),
        "out": tokens("out", dtype, rows, "heads", value_dim),
        "scale": aot.Scalar("f32"),
        "left": aot.Scalar("i32"),
        "right": aot.Scalar("i32"),
        "q_starts": None if layout == "batch" else starts,
        "k_starts": starts if layout == "ragged" else None,
        "lse": aot.Tensor("f32", (*rows, "heads")) if extras.lse else None,
        "soft_cap": aot.Scalar("f32"),
        "sinks": aot.Tensor("f32", ("heads",)) if extras.sinks else None,
        "pages": aot.Tensor("i32", ("sequences", "pages_each")) if layout == "pages" else None,
        "lengths": aot.Tensor("i32", ("sequences",)) if layout == "pages" else None,
    }


def guards_of(layout: str) -> tuple[str, ...]:
    guards = ("scale > 0", "soft_cap >= 0", "kv_heads > 0", "heads % kv_heads == 0")
    counted = f"pages_each * page_size < {2**31}"  # in 32 bits
    paged = (*guards, "starts == sequences + 1", counted)
    return {"batch": guards, "ragged": (*guards, "starts > 0"), "pages": paged}[layout]


@aot.kernel(
    parameters=(
        aot.In("q", "batch x tokens x heads x dim, or tokens x heads x dim of sequences side by side"),
        aot.In(
            "k", "batch x kv_tokens x kv_heads x dim, or without batch like `q`, or pages x page_size x kv_heads x dim"
        ),
        aot.In("v", "like `k`, with a width of its own"),
        aot.Out("out", shape="(*q.shape[:-1], v.shape[-1])", dtype="q.dtype"),
        aot.In("scale", "of the scores, above 0, often 1 / sqrt(dim)"),
        aot.In("left", "how many tokens before its own place a query sees; -1: all of them", default=-1),
        aot.In("right", "how many tokens after its own place a query sees; 0: causal; -1: all of them", default=-1),
        aot.In("q_starts", "where each sequence begins in `q`, then where the last one ends; or none", default=None),
        aot.In("k_starts", "likewise in `k` and `v`; none if they are in pages", default=None),
        aot.Out(
            "lse", "the logarithm of the sum of exp(score); or none", shape="q.shape[:-1]", dtype="f32", default=None
        ),
        aot.In("soft_cap", "scores become `soft_cap * tanh(score / soft_cap)`; 0: they do not", default=0.0),
        aot.In("sinks", "per head: the score of one more token, whose value is zero; or none", default=None),
        aot.In("pages", "sequences x pages of a sequence: which pages of `k` and `v` it has; or none", default=None),
        aot.In("lengths", "tokens of each sequence in its pages; none if there are no pages", default=None),
        aot.Workspace("tickets", bytes="4", zeroed=True),
    ),
    archs=HOPPER_ARCHS,
    axes={
        "dtype": ("bf16", "f16"),
        "layout": ("batch", "ragged", "pages"),
        "dims": {
            f"dim{dim}" if dim == value_dim else f"dim{dim}x{value_dim}": (dim, value_dim)
            for dim, value_dim in SM90_TILINGS
        },
        "extras": EXTRAS,
    },
    contract=contract,
    backward=aot.Backward("attention_backward", saves=SAVED, gradients=("q", "k", "v", "sinks")),
)
def attention(target: aot.Target, dtype: str, layout: str, dims: Dims, extras: Extras) -> list[aot.Spec]:
    """Attention of each query to the tokens of its own sequence. The last query is at the place of the last token.

    A query that sees no token gives zeros, and minus infinity in ``lse`` unless there is a sink, also if there is no key at
    all. Tokens past the end of a sequence have no influence, whatever the memory there contains. A page of which no query
    sees a token is not read.
    ``heads`` is a multiple of ``kv_heads``; neighbouring heads share one. ``page_size`` is a multiple of 16. Starts, lengths
    and pages are read on the device, so a captured CUDA graph may be replayed after they changed.
    A length above what a row of ``pages`` has room for counts as that. Starts must not decrease or exceed the tokens, and
    pages that are read must exist: nothing checks these numbers, and wrong ones reach outside the tensors.
    """
    if extras.sinks and dims not in WITH_SINKS:
        return []
    return [SPECS[target.written_for](target, dtype, layout, dims, extras)]


def spec_sm80(target: aot.Target, dtype: str, layout: str, dims: Dims, extras: Extras) -> aot.Spec:
    arguments = {**arguments_of(dtype, layout, dims, extras), "tickets": None, "stream": aot.Stream()}
    kernel = _attention_sm80.Attention(_attention_sm80.TILINGS[dims], target, layout)
    return aot.Spec(kernel, arguments, guards_of(layout))


def spec_sm90(target: aot.Target, dtype: str, layout: str, dims: Dims, extras: Extras) -> aot.Spec:
    arguments = {
        **arguments_of(dtype, layout, dims, extras),
        "tickets": aot.Tensor("i32", ("length",), align=128),
        "multiprocessors": aot.Multiprocessors(),
        "stream": aot.Stream(),
    }
    guards = (*guards_of(layout), *forward(arguments, "q", "k", "v", "out"))
    if layout == "pages":
        # Pages are found by counting tokens: see ``_producer_sm90``.
        apart = [f"{x}_stride_0 % {x}_stride_1 == 0" for x in ("k", "v")]
        near = [f"page_count * ({x}_stride_0 // {x}_stride_1) < {2**31}" for x in ("k", "v")]
        guards = (*guards, *apart, *near)
    return aot.Spec(Attention(SM90_TILINGS[dims], target, layout), arguments, guards)


SPECS = {"sm_80": spec_sm80, "sm_90a": spec_sm90}
