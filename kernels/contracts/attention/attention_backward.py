"""The gradients of attention by queries, keys and values.

Why the tolerance of the dtype is enough: weights and the gradients of scores are rounded to the dtype before the last
products, sums are f32, and a result is rounded once more. Gradients of scores may be computed from rounded weights. All four
are relative errors of one rounding, and those of the operands average out over a sum. ``delta`` is computed from ``out`` as it is passed, rounded: the reference does the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import aot

from . import _attention as forward

ALL = forward.ALL
# If one token takes all weight, the gradients of scores are nothing but what rounding left.
SHAPES = [case for case in forward.SHAPES if not case.huge and case.left != 0 and case.tokens != (1,)]
NARROW_AND_WIDE = ((64, 64), (96, 96), (192, 128), (256, 256))
CASES = (*SHAPES, *forward.RAGGED, *forward.EMPTY, *forward.KEYLESS[:2])


def reference(
    grad_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    scale: float,
    left: int = ALL,
    right: int = ALL,
    q_starts: Any = None,
    k_starts: Any = None,
    soft_cap: float = 0.0,
    sinks: Any = None,
    deterministic: bool = False,
) -> Any:
    wide = [x.double() for x in (grad_out, q, k, v, out, lse)]
    scoring = forward.Scoring(scale, left, right, soft_cap, None if sinks is None else sinks.double())
    return _gradients(*wide, scoring, q_starts, k_starts)


def _gradients(
    grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, scoring: Any, q_starts: Any, k_starts: Any
) -> tuple[Any, ...]:
    """The same in the dtype of ``q``, sequence by sequence."""
    import torch

    of_queries, of_keys = (grad_out, q, out, lse), (k, v)
    if q_starts is None:
        sequences = zip(*of_queries, *of_keys, strict=True)
        join = torch.stack
    else:
        queries, keys = (starts.diff().tolist() for starts in (q_starts, k_starts))
        sequences = zip(
            *(x[: sum(queries)].split(queries) for x in of_queries),
            *(x[: sum(keys)].split(keys) for x in of_keys),
            strict=True,
        )
        join = torch.cat
    parts = [_sequence(*tensors, scoring) for tensors in sequences]
    by_sinks = _by_sinks(grad_out, out, lse, scoring.sinks)
    if not parts:
        return (*(torch.zeros_like(x) for x in (q, k, v)), by_sinks)
    return (*(join(gradients) for gradients in zip(*parts, strict=True)), by_sinks)


def _by_sinks(grad_out: Any, out: Any, lse: Any, sinks: Any) -> Any:
    """Zeros without sinks."""
    if sinks is None:
        return lse.new_zeros(lse.shape[-1])
    weights = (sinks - lse).exp().nan_to_num(0)  # a sink may be minus infinity, and be all that a query sees
    return -(weights * (grad_out * out).sum(-1)).flatten(0, -2).sum(0)


def _sequence(grad_out: Any, q: Any, out: Any, lse: Any, k: Any, v: Any, scoring: Any) -> tuple[Any, Any, Any]:
    """One sequence: tokens x heads x dim."""
    import torch

    scale, left, right, soft_cap, _ = scoring
    (queries, heads, _), (tokens, key_heads, _) = q.shape, k.shape
    wide_k, wide_v = (x.repeat_interleave(heads // key_heads, 1) for x in (k, v))
    scores = torch.einsum("qhd,nhd->hqn", q, wide_k) * scale
    bent = torch.tanh(scores / soft_cap) if soft_cap else None
    scores = scores if bent is None else soft_cap * bent
    own = torch.arange(queries, device=q.device)[:, None] + tokens - queries
    place = torch.arange(tokens, device=q.device)
    hidden = torch.zeros(queries, tokens, dtype=torch.bool, device=q.device)
    hidden |= (place > own + right) if right >= 0 else hidden
    hidden |= (place < own - left) if left >= 0 else hidden
    weights = torch.exp(scores - lse.T[..., None]).masked_fill(hidden, 0)
    delta = (grad_out * out).sum(-1).T[..., None]
    slopes = weights * (torch.einsum("qhd,nhd->hqn", grad_out, wide_v) - delta)
    slopes = slopes if bent is None else slopes * (1 - bent.square())
    grad_k = torch.einsum("hqn,qhd->nhd", slopes, q) * scale
    grad_v = torch.einsum("hqn,qhd->nhd", weights, grad_out)
    grad_k, grad_v = (x.unflatten(1, (key_heads, heads // key_heads)).sum(2) for x in (grad_k, grad_v))
    return torch.einsum("hqn,nhd->qhd", slopes, wide_k) * scale, grad_k, grad_v


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for case in CASES:
        yield call(make, dtype, case)
    for dim, value_dim in NARROW_AND_WIDE:
        for case in (*SHAPES[3:9], *forward.RAGGED[1:4], forward.KEYLESS[0]):
            yield call(make, dtype, replace(case, heads=8, kv_heads=2, dim=dim, value_dim=value_dim))
    for dim in (128, 64):
        for case in (forward.SHAPES[5], forward.RAGGED[1]):
            yield call(make, dtype, replace(case, heads=4, kv_heads=2, dim=dim, value_dim=dim, sinks=True))
            yield call(make, dtype, replace(case, heads=4, kv_heads=2, dim=dim, value_dim=dim, soft_cap=4.25))
    for case in (forward.SHAPES[5], forward.SHAPES[9]):
        yield {**call(make, dtype, case), "deterministic": True}
    for dim, value_dim in ((128, 128), *NARROW_AND_WIDE):
        yield {**call(make, dtype, replace(forward.RAGGED[1], dim=dim, value_dim=value_dim)), "deterministic": True}


def call(make: Any, dtype: str, case: forward.Case) -> dict[str, Any]:
    """The arguments of the backward of a call of ``attention``."""
    arguments = case.make(make, dtype)
    q, k, v, scale, left, right = (arguments[name] for name in ("q", "k", "v", "scale", "left", "right"))
    scoring = forward.Scoring(scale, left, right, arguments.get("soft_cap", 0.0), arguments.get("sinks"))
    starts = (arguments.get("q_starts"), arguments.get("k_starts"))
    out, lse = forward.attend(q.double(), k.double(), v.double(), scoring, *starts)
    out = out.to(q.dtype)
    return {"grad_out": make.tensor(tuple(out.shape), dtype), **arguments, "out": out, "lse": lse.float().contiguous()}


def cost(grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, **others: Any) -> aot.Cost:
    """Five products where the forward has two."""
    forth = forward.cost(q=q, k=k, v=v, **others)
    products = (3 * q.shape[-1] + 2 * v.shape[-1]) / (q.shape[-1] + v.shape[-1])
    moved = sum(x.numel() for x in (grad_out, out)) + 2 * sum(x.numel() for x in (q, k, v))
    return aot.Cost(int(forth.operations * products), moved * q.element_size() + 4 * lse.numel())


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    import torch

    for batch, heads, kv_heads, length, dim in forward.BENCH:
        for right in (0, ALL):
            q, grad_out = (make.tensor((batch, length, heads, dim), dtype) for _ in range(2))
            k, v = (make.tensor((batch, length, kv_heads, dim), dtype) for _ in range(2))
            seen = torch.arange(1, length + 1, device=q.device) if right == 0 else torch.full((length,), length)
            lse = seen.to(q.device).log().float()[None, :, None].expand(batch, length, heads).contiguous()
            yield {
                "grad_out": grad_out, "q": q, "k": k, "v": v, "out": make.tensor(tuple(q.shape), dtype), "lse": lse,
                "scale": dim**-0.5, "right": right,
            }  # fmt: skip


def torch_equivalent(
    grad_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    scale: float,
    left: int = ALL,
    right: int = ALL,
    q_starts: Any = None,
    k_starts: Any = None,
    soft_cap: float = 0.0,
    sinks: Any = None,
    deterministic: bool = False,
) -> Any:
    """The formulas in plain operations, in f32."""
    wide = [x.float() for x in (grad_out, q, k, v, out, lse)]
    *gradients, by_sinks = _gradients(*wide, forward.Scoring(scale, left, right, soft_cap, sinks), q_starts, k_starts)
    return (*(x.to(q.dtype) for x in gradients), by_sinks)
