"""Packed tokens of a cache of latent vectors, as inference engines keep them for DeepSeek-V3.2."""

from __future__ import annotations

from typing import Any

from ._caches import KEY, VALUE

SCALED = 128  # elements that share a scale
SCALES = VALUE // SCALED


def pack(cache: Any) -> Any:
    """Packed tokens: elements over their scale as f8e4m3, scales, and the last elements as bf16."""
    import torch

    blocks = cache[..., :VALUE].float().unflatten(-1, (SCALES, SCALED))
    scales = blocks.abs().amax(-1) / 448 + 2**-20
    narrow = (blocks / scales[..., None]).to(torch.float8_e4m3fn).flatten(-2).view(torch.uint8)
    last = cache[..., VALUE:].to(torch.bfloat16).contiguous().view(torch.uint8)
    return torch.cat((narrow, scales.contiguous().view(torch.uint8), last), -1)


def unpacked(cache: Any, dtype: Any) -> Any:
    """The elements of a cache, packed or not."""
    import torch

    if cache.dtype != torch.uint8:
        return cache
    narrow, scales, last = (part.contiguous() for part in cache.split((VALUE, 4 * SCALES, 2 * (KEY - VALUE)), -1))
    blocks = narrow.view(torch.float8_e4m3fn).float().unflatten(-1, (SCALES, SCALED))
    wide = (blocks * scales.view(torch.float32)[..., None]).flatten(-2).to(dtype)
    return torch.cat((wide, last.view(torch.bfloat16).to(dtype)), -1)
