"""Shapes of results for operators of torch that have no rule of their own for tensors without memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["shape_rule"]


def shape_rule(operator: Any) -> Callable[..., Any] | None:
    """What gives an empty result of an operator, from its arguments; None for those that torch has a rule for."""
    return _RULES.get(operator.name()) if isinstance(operator, torch._ops.OpOverload) else None


def _grouped_product(a: Any, b: Any, *scales: Any, offs: Any = None, out_dtype: Any = None, **others: Any) -> Any:
    """A product for each group: of rows, of columns, of the summed extent, or of matrices."""
    rows, columns = a.shape[-2], b.shape[-1]
    groups = offs.shape[0] if offs is not None else a.shape[0]
    is_batch = a.dim() == b.dim()  # both in groups, or both cut along the summed extent
    shape = (groups, rows, columns) if is_batch else (rows, columns)
    return a.new_empty(shape, dtype=out_dtype or torch.bfloat16)


def _scaled_grouped_product(a: Any, b: Any, *given: Any, **named: Any) -> Any:
    # scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, then offs, bias, out_dtype
    last: dict[str, Any] = dict(zip(("offs", "bias", "out_dtype"), given[6:], strict=False))
    last.update((name, named[name]) for name in ("offs", "out_dtype") if name in named)
    return _grouped_product(a, b, **last)


_RULES: dict[str, Callable[..., Any]] = {"aten::_scaled_grouped_mm_v2": _scaled_grouped_product}
