"""Caches of keys and values as calls have them: contiguous or in pages, of which some places hold NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

F8_NAN = 0x7F  # NaN as f8e4m3
KEY, VALUE = 576, 512  # elements of a latent vector, and how many of them are its value


@dataclass(frozen=True)
class Case:
    """``page`` is the size of a page, or 0 for a contiguous cache with room for ``capacity`` tokens."""

    lengths: tuple[int, ...]
    tokens: int = 1
    heads: int = 8
    kv_heads: int = 2
    dim: int = 128
    page: int = 0
    capacity: int = 0
    huge: bool = False  # scores of many thousands, exact in f32: they are equal, or so far apart that one takes all
    heads_first: bool = False  # the cache lies in memory head by head
    narrow: bool = False  # the cache is f8e4m3, with a scale per head

    def make(self, make: Any, dtype: str, names: tuple[str, ...] = ("k_cache", "v_cache")) -> dict[str, Any]:
        """The arguments of a call, with caches of these names."""
        q = make.tensor((len(self.lengths), self.tokens, self.heads, self.dim), dtype)
        q = q.round() * 8192 if self.huge else q
        call = {"q": q, **self.caches(make, "f8e4m3" if self.narrow else dtype, names), "scale": self.dim**-0.5}
        if self.narrow:
            call |= {name: make.tensor((self.kv_heads,), "f32").abs() + 0.1 for name in ("k_scale", "v_scale")}
        call["lengths"] = make.torch.tensor(self.lengths, dtype=make.torch.int32, device=make.device)
        return call

    def caches(self, make: Any, dtype: str, names: tuple[str, ...]) -> dict[str, Any]:
        """Caches that are NaN past the end of each sequence, with a table that names no page there."""
        torch = make.torch
        size = self.page or max(self.capacity, *self.lengths, 1)
        each = -(-max((*self.lengths, 1)) // size) + 1 if self.page else 1
        used = [-(-length // size) for length in self.lengths]
        count = sum(used) + 3 if self.page else len(self.lengths)
        if self.page:
            table = torch.full((len(self.lengths), each), -(2**30), dtype=torch.int32)
            order = torch.randperm(count, generator=torch.Generator().manual_seed(7)).to(torch.int32)
        else:
            table = torch.arange(count, dtype=torch.int32)[:, None]
        owned = torch.zeros(count, size, dtype=torch.bool)
        first = 0
        for row, length in enumerate(self.lengths):
            if self.page:
                table[row, : used[row]] = order[first : first + used[row]]
                first += used[row]
            for index in range(used[row]):
                owned[int(table[row, index]), : min(size, length - index * size)] = True
        caches = {name: self._cache(make, dtype, count, size, owned) for name in names}
        return {**caches, "pages": table.to(make.device)} if self.page else caches

    def _cache(self, make: Any, dtype: str, count: int, size: int, owned: Any) -> Any:
        if self.heads_first:
            cache = make.tensor((count, self.kv_heads, size, self.dim), dtype).transpose(1, 2)
        else:
            cache = make.tensor((count, size, self.kv_heads, self.dim), dtype)
        if self.huge:
            cache.copy_((cache.float() * 4).round() / 4)
        if self.narrow:  # torch cannot assign to all tensors of this dtype
            cache.view(make.torch.uint8)[~owned.to(make.device)] = F8_NAN
        else:
            cache[~owned.to(make.device)] = math.nan
        return cache


def sequence(cache: Any, index: int, length: int, pages: Any, factor: Any) -> Any:
    """The tokens of a sequence, side by side, in f64."""
    if pages is None:
        tokens = cache[index, :length]
    else:
        used = -(-length // cache.shape[1])
        tokens = indexed(cache, pages[index, :used].long()).flatten(0, 1)[:length]
    return tokens.double() if factor is None else tokens.double() * factor.double()[:, None]


def indexed(cache: Any, pages: Any) -> Any:
    import torch

    if cache.element_size() > 1:
        return cache[pages]
    return cache.view(torch.uint8)[pages].view(cache.dtype)  # torch cannot index all tensors of this dtype


def dense(cache: Any, factor: Any, pages: Any, dtype: Any) -> Any:
    """All tokens of all sequences, side by side."""
    if pages is not None:
        cache = indexed(cache, pages.long().clamp(min=0)).flatten(1, 2)
    return cache.to(dtype) if factor is None else (cache.to(dtype) * factor[:, None]).to(dtype)
