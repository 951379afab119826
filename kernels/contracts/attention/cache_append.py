"""New keys and values at the end of their sequences in a cache, keys rotated and both quantized by choice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import aot

LARGEST = 448.0  # of f8e4m3

# Lengths with the new tokens, number of new tokens, heads, dim, page size (0: contiguous).
CASES = (
    ((), 1, 1, 64, 0),
    ((), 1, 1, 64, 16),
    ((0,), 1, 1, 16, 0),
    ((1,), 1, 1, 64, 16),
    ((1, 0, 5), 1, 2, 128, 0),
    ((16, 17, 0, 33, 2), 3, 8, 128, 16),  # one sequence is shorter than the new tokens
    ((40, 64, 65), 16, 4, 64, 32),
    ((40, 7, 500), 5, 3, 80, 0),
    ((300, 1200, 0, 1, 256), 1, 2, 128, 256),
    ((90, 100_000), 2, 1, 128, 64),  # a length past the capacity, of which nothing is written
)


def reference(
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    lengths: Any,
    pages: Any = None,
    cos: Any = None,
    sin: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
) -> Any:
    """Elements that are not written are NaN, which is what outputs are filled with before a check."""
    outputs = []
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        out = cache.double() * math.nan
        for i, length in enumerate(lengths.tolist()):
            for token in range(new.shape[1]):
                position = length - new.shape[1] + token
                place = _place(i, position, cache, pages)
                if place is not None:
                    row = new[i, token].double()
                    row = _rotated(row, cos[position], sin[position]) if new is k and cos is not None else row
                    out[place] = row if scale is None else (row / scale.double()[:, None]).clamp(-LARGEST, LARGEST)
        outputs.append(out)
    return tuple(outputs)


def _place(sequence: int, position: int, cache: Any, pages: Any) -> tuple[int, int] | None:
    size = cache.shape[1]
    if position < 0 or position >= (size if pages is None else size * pages.shape[1]):
        return None
    if pages is None:
        return sequence, position
    page = int(pages[sequence, position // size])
    return (page, position % size) if 0 <= page < cache.shape[0] else None


def _rotated(row: Any, cos: Any, sin: Any) -> Any:
    import torch

    cos, sin = cos.double(), sin.double()
    first, second = row.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    for case in CASES:
        for stored in (dtype, "f8e4m3"):
            for rotated in (False, True):
                yield _call(make, dtype, stored, rotated, *case)
    for page in (0, 16):  # most elements are too large for f8e4m3: they become its largest
        small = {name: make.torch.full((2,), 2.0**-10, device=make.device) for name in ("k_scale", "v_scale")}
        yield _call(make, dtype, "f8e4m3", True, (3, 20), 2, 2, 64, page) | small


def _call(
    make: Any, dtype: str, stored: str, rotated: bool, lengths: Any, tokens: int, heads: int, dim: int, page: int
) -> dict:
    torch = make.torch
    room = max((min(length, 2000) for length in lengths), default=0) + 3
    each = -(-room // page) if page else 1
    count = len(lengths) * each + 2 if page else len(lengths)
    call = {name: make.tensor((len(lengths), tokens, heads, dim), dtype) for name in ("k", "v")}
    call |= {name: make.tensor((count, page or room, heads, dim), stored) for name in ("k_cache", "v_cache")}
    call["lengths"] = torch.tensor(lengths, dtype=torch.int32, device=make.device)
    if page:
        table = torch.randperm(count, generator=torch.Generator().manual_seed(3))[: len(lengths) * each]
        table = table.view(len(lengths), each).to(torch.int32)
        table[:1, -1] = -1  # a page that was never given out
        call["pages"] = table.to(make.device)
    if rotated:
        angles = make.tensor((each * (page or room) + 1, dim // 2), "f32")
        call |= {"cos": angles.cos(), "sin": angles.sin()}
    if stored != dtype:
        call |= {name: make.tensor((heads,), "f32").abs() + 0.01 for name in ("k_scale", "v_scale")}
    return call


def cost(k: Any, k_cache: Any, **_: Any) -> aot.Cost:
    return aot.Cost(operations=8 * k.numel(), bytes=2 * k.numel() * (k.element_size() + k_cache.element_size()))


def bench_inputs(make: Any, dtype: str) -> Iterator[dict[str, Any]]:
    yield _call(make, dtype, dtype, False, (4096,) * 128, 1, 8, 128, 64)


def torch_equivalent(
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    lengths: Any,
    pages: Any = None,
    cos: Any = None,
    sin: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
) -> Any:
    """Into new caches with one page more, for what is not to be written."""
    import torch

    batch, tokens, _, _ = k.shape
    count, size = k_cache.shape[:2]
    position = lengths[:, None].long() - tokens + torch.arange(tokens, device=k.device)
    inside = (position >= 0) & (position < size * (1 if pages is None else pages.shape[1]))
    position = torch.where(inside, position, 0)
    if pages is None:
        page = torch.arange(batch, device=k.device)[:, None].expand(batch, tokens)
    else:
        page = pages.long().gather(1, position // size)
    page = torch.where(inside & (page >= 0) & (page < count), page, count)
    if cos is not None:
        k = _rotated(k, cos[position][:, :, None], sin[position][:, :, None]).to(k.dtype)
    outputs = []
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        rows = new if scale is None else (new / scale[:, None]).clamp(-LARGEST, LARGEST)
        out = torch.full((count + 1, *cache.shape[1:]), math.nan, dtype=rows.dtype, device=k.device)
        out[page, position % size] = rows
        outputs.append(out[:count].to(cache.dtype))
    return tuple(outputs)
