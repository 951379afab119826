"""Pairs of elements of heads, turned by angles: element ``i`` of a head's first half and that of its second half are a pair."""

from __future__ import annotations

from typing import Any


def turned(x: Any, cos: Any, sin: Any) -> Any:
    """``x`` is tokens x heads x elements. Angles are those of each token."""
    import torch

    cos, sin = cos[:, None], sin[:, None]
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def angles(make: Any, tokens: int, half: int) -> dict[str, Any]:
    """Cosines and sines of tokens that are far apart."""
    rates = 10_000.0 ** -(make.torch.arange(half, device=make.device, dtype=make.torch.float64) / half)
    angles = make.torch.arange(tokens, device=make.device)[:, None] * 1009 % 131_072 * rates
    return {"cos": angles.cos().float(), "sin": angles.sin().float()}
