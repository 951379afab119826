"""The gradients of ``attention`` by ``q``, ``k`` and ``v``, from its output and the logarithms of its sums of weights.

The tensor cores are the limit: five products where the forward has two. The codes for Hopper are ``_backward_sm90``,
``_backward_wide_sm90`` for wide heads, and ``_backward_split_sm90`` for soft caps: three ways to multiply in the kernel of
``_backward_tma_sm90``. The code for other architectures is ``_backward_sm80``. All share ``_backward``, which has the formulas.
"""

from __future__ import annotations

from typing import Any

import aot

from .._device import HOPPER_ARCHS, forward
from ..contracts.attention import attention_backward as contract
from .attention import SM90_TILINGS, WITH_SINKS, Dims, tokens
from .gradients import _backward_sm80, _backward_sm90
from .gradients import _backward_split_sm90 as split
from .gradients import _backward_wide_sm90 as wide

# The fastest of those that were timed on an H200.
SM90_FUSED: dict[Dims, tuple[Any, Any]] = {
    (128, 128): (_backward_sm90.Backward, _backward_sm90.Tiling(64, 128, 128, cut=(64,))),
    (64, 64): (_backward_sm90.Backward, _backward_sm90.Tiling(128, 64, 64, cut=(64, 64))),
    (96, 96): (_backward_sm90.Backward, _backward_sm90.Tiling(64, 96, 96, cut=(64,), single=True)),
    (192, 128): (_backward_sm90.Backward, _backward_sm90.Tiling(48, 192, 128, cut=(48,), exact=False)),
    (256, 256): (wide.WideBackward, wide.Tiling(256, 256)),
}

# Blocks of 80 queries read keys and values less often. Of short sequences under a causal mask, they waste more.
SM90_LONG: dict[Dims, _backward_sm90.Tiling] = {(128, 128): _backward_sm90.Tiling(80, 128, 128)}
LONG = {"batch": "right < 0 or tokens >= 4608", "ragged": "right < 0 or tokens >= 6144 * (starts - 1)"}

SM90_SPLIT: dict[Dims, split.Tiling] = {
    (128, 128): split.Tiling(64, 128, 128),
    (64, 64): split.Tiling(64, 64, 64),
    (96, 96): split.Tiling(64, 96, 96),
    (192, 128): split.Tiling(32, 192, 128),
    (256, 256): split.Tiling(64, 256, 256, parts=2),
}


def arguments_of(dtype: str, layout: str, dims: Dims, sinks: bool) -> dict[str, Any]:
    """What a call passes, whatever the architecture."""
    dim, value_dim = dims
    rows = ("batch", "tokens") if layout == "batch" else ("tokens",)
    keys = ("batch", "kv_tokens") if layout == "batch" else ("kv_tokens",)
    starts = None if layout == "batch" else aot.Tensor("i32", ("starts",))
    return {
        "grad_out": tokens("grad_out", dtype, rows, "heads", value_dim),
        "q": tokens("q", dtype, rows, "heads", dim),
        "k": tokens("k", dtype, keys, "kv_heads", dim),
        "v": tokens("v", dtype, keys, "kv_heads", value_dim),
        "out": tokens("out", dtype, rows, "heads", value_dim),
        "lse": aot.Tensor("f32", (*rows, "heads")),
        "grad_q": tokens("grad_q", dtype, rows, "heads", dim),
        "grad_k": tokens("grad_k", dtype, keys, "kv_heads", dim),
        "grad_v": tokens("grad_v", dtype, keys, "kv_heads", value_dim),
        "grad_sinks": aot.Tensor("f32", ("heads",)),
        "scale": aot.Scalar("f32"),
        "left": aot.Scalar("i32"),
        "right": aot.Scalar("i32"),
        "q_starts": starts,
        "k_starts": starts,
        "soft_cap": aot.Scalar("f32"),
        "sinks": aot.Tensor("f32", ("heads",)) if sinks else None,
        "deterministic": aot.Scalar("bool"),
        "scratch": aot.Tensor("f32", (aot.Dim("length", bits=64),), align=128),
        "stream": aot.Stream(),
    }


def guards_of(layout: str) -> tuple[str, ...]:
    guards = ("scale > 0", "soft_cap >= 0", "kv_heads > 0", "heads % kv_heads == 0")
    return guards if layout == "batch" else (*guards, "starts > 0")


@aot.kernel(
    parameters=(
        aot.In("grad_out", "the gradient of `out`"),
        aot.In("q", "batch x tokens x heads x dim, or tokens x heads x dim of sequences side by side"),
        aot.In("k", "batch x kv_tokens x kv_heads x dim, or without batch like `q`"),
        aot.In("v", "like `k`, with a width of its own"),
        aot.In("out", "what `attention` gave"),
        aot.In("lse", "the logarithm of the sum of exp(score), as `attention` gave it"),
        aot.Out("grad_q", shape="q.shape", dtype="q.dtype"),
        aot.Out("grad_k", shape="k.shape", dtype="k.dtype"),
        aot.Out("grad_v", shape="v.shape", dtype="v.dtype"),
        aot.Out("grad_sinks", "per head; zeros without sinks", shape="(q.shape[-2],)", dtype="f32"),
        aot.In("scale", "of the scores, above 0, often 1 / sqrt(dim)"),
        aot.In("left", "how many tokens before its own place a query sees; -1: all of them", default=-1),
        aot.In("right", "how many tokens after its own place a query sees; 0: causal; -1: all of them", default=-1),
        aot.In("q_starts", "where each sequence begins in `q`, then where the last one ends; or none", default=None),
        aot.In("k_starts", "likewise in `k` and `v`", default=None),
        aot.In("soft_cap", "scores become `soft_cap * tanh(score / soft_cap)`; 0: they do not", default=0.0),
        aot.In("sinks", "as `attention` got them; or none", default=None),
        aot.In("deterministic", "whether sums are added in a fixed order: the same bits in every run", default=False),
        aot.Workspace("scratch", "statistics of rows, and sums of `grad_q` in f32", bytes="4 * q.size + 12 * lse.size"),
    ),
    archs=HOPPER_ARCHS,
    axes={
        "dtype": ("bf16", "f16"),
        "layout": ("batch", "ragged"),
        "dims": {
            f"dim{dim}" if dim == value_dim else f"dim{dim}x{value_dim}": (dim, value_dim)
            for dim, value_dim in SM90_TILINGS
        },
        "sinks": {"no_sinks": False, "sinks": True},
    },
    contract=contract,
)
def attention_backward(target: aot.Target, dtype: str, layout: str, dims: Dims, sinks: bool) -> list[aot.Spec]:
    """The gradients of ``attention`` by ``q``, ``k``, ``v`` and ``sinks``. Sums are f32.

    A query that sees no token has a gradient of zero, and so have keys and values that no query sees. Sums are in a fixed order
    if the call is ``deterministic``. Else, on sm_90a and without a soft cap, those of ``grad_q`` are not.
    """
    if sinks and dims not in WITH_SINKS:
        return []
    return SPECS[target.written_for](target, dtype, layout, dims, sinks)


def specs_sm80(target: aot.Target, dtype: str, layout: str, dims: Dims, sinks: bool) -> list[aot.Spec]:
    kernel = _backward_sm80.Backward(_backward_sm80.TILINGS[dims], target, layout)
    return [aot.Spec(kernel, arguments_of(dtype, layout, dims, sinks), guards_of(layout))]


def specs_sm90(target: aot.Target, dtype: str, layout: str, dims: Dims, sinks: bool) -> list[aot.Spec]:
    arguments = arguments_of(dtype, layout, dims, sinks)
    guards = (*guards_of(layout), *forward(arguments, "grad_out", "q", "k", "v", "grad_q", "grad_k", "grad_v"))
    taken, specs = (*guards, "soft_cap == 0"), []
    if dims in SM90_LONG:
        long = SM90_LONG[dims]
        kernel = _backward_sm90.Backward(long, target, layout)
        specs.append(aot.Spec(kernel, arguments, taken, long.label, prefer=(LONG[layout],)))
    code, fused = SM90_FUSED[dims]
    specs.append(aot.Spec(code(fused, target, layout), arguments, taken, fused.label))
    tiling = SM90_SPLIT[dims]
    return [*specs, aot.Spec(split.SplitBackward(tiling, target, layout), arguments, guards, tiling.label)]


SPECS = {"sm_80": specs_sm80, "sm_90a": specs_sm90}
