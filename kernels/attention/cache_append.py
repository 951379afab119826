"""Writes the keys and values of new tokens into a cache, contiguous or in pages.

Keys are rotated on their way by choice (rotary position embedding), and both are quantized if the cache is f8e4m3.
Memory is the limit: every element is read once and written once. A thread has one chunk of the first half of a head and
one chunk of its second half, because a rotation of halves combines the two.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass import Float32, Int32

import aot

from .._device import ARCHS, VECTOR_BYTES, KernelObject, await_previous, fetch, launched_early, store
from ..contracts.attention import cache_append as contract

CHUNK = 8  # elements
THREADS = 128


class CacheAppend(KernelObject):
    """``rotated``: element ``i`` of a key turns with element ``i + dim / 2``."""

    def __init__(self, target: aot.Target, paged: bool, rotated: bool) -> None:
        self.early = launched_early(target)
        self.paged = paged
        self.rotated = rotated

    @cute.jit
    def __call__(
        self,
        k: cute.Tensor,
        v: cute.Tensor,
        k_cache: cute.Tensor,
        v_cache: cute.Tensor,
        lengths: cute.Tensor,
        k_out: cute.Tensor,
        v_out: cute.Tensor,
        pages,
        cos,
        sin,
        k_scale,
        v_scale,
        stream: CUstream,
    ):
        """The caches themselves are not read. Their shapes are those of the outputs, which are the same memory."""
        batch, tokens, heads, dim = k.shape
        count = batch * tokens * heads * (dim // (2 * CHUNK))
        if count > 0:  # CUDA refuses an empty grid
            self.kernel(k, v, lengths, k_out, v_out, pages, cos, sin, k_scale, v_scale).launch(
                grid=[cute.ceil_div(count, THREADS), 1, 1], block=[THREADS, 1, 1], use_pdl=self.early, stream=stream
            )

    @cute.kernel
    def kernel(self, k, v, lengths, k_out, v_out, pages, cos, sin, k_scale, v_scale):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        batch, tokens, heads, dim = k.shape
        chunks = dim // (2 * CHUNK)  # of a half
        index = block * THREADS + thread
        chunk, head = index % chunks, index // chunks % heads
        token, sequence = index // (chunks * heads) % tokens, index // (chunks * heads * tokens)
        await_previous(self.early)
        if sequence < batch:
            position = lengths[sequence] - tokens + token
            page, row = self.place(sequence, position, k_out, pages)
            if page >= 0 and page < k_out.shape[0] and row >= 0:
                halves = (chunk, chunks + chunk)
                keys = self.rotate(self.read(k[sequence, token, head, None], halves), cos, sin, position, halves)
                values = self.read(v[sequence, token, head, None], halves)
                self.write(keys, k_out[page, row, head, None], halves, factor(k_scale, head))
                self.write(values, v_out[page, row, head, None], halves, factor(v_scale, head))

    @cute.jit
    def place(self, sequence: Int32, position: Int32, out: cute.Tensor, pages) -> tuple[Int32, Int32]:
        """The page and the token in it; a negative one if the cache has no such place, and nothing is to be written."""
        page, row = sequence, position
        size = out.shape[1]
        if cutlass.const_expr(self.paged):
            page = Int32(-1)
            if position >= 0 and position < pages.shape[1] * size:
                page, row = pages[sequence, position // size], position % size
        else:
            page = sequence if position < size else Int32(-1)
        return page, row

    def read(self, row: cute.Tensor, halves: tuple[Int32, Int32]) -> list[cute.TensorSSA]:
        return [fetch(row, index, CHUNK).load().to(Float32) for index in halves]

    def write(self, values: list[cute.TensorSSA], row: cute.Tensor, halves: tuple[Int32, Int32], scale) -> None:
        for value, index in zip(values, halves, strict=True):
            store(value if scale is None else value * scale, row, index, cute.size(row) // CHUNK, CHUNK)

    def rotate(self, values: list[cute.TensorSSA], cos, sin, position: Int32, halves) -> list[cute.TensorSSA]:
        """Angles have one entry for each pair of elements, by position."""
        if not self.rotated:
            return values
        c, s = (fetch(table[position, None], halves[0], CHUNK).load() for table in (cos, sin))
        return [values[0] * c - values[1] * s, values[1] * c + values[0] * s]


def factor(scale, head: Int32):
    """What to multiply by before rounding, or None."""
    return None if scale is None else 1 / scale[head]


def cache(name: str, dtype: str, dim: Any, paged: bool) -> aot.Tensor:
    shape = ("page_count", "page_size", "kv_heads", dim) if paged else ("batch", "capacity", "kv_heads", dim)
    strides = [aot.Dim(f"{name}_stride_{i}", divisible_by=CHUNK, bits=64) for i in range(3)]
    return aot.Tensor(dtype, shape, (*strides, 1), align=CHUNK * aot.Tensor(dtype, ()).element_bytes)


@aot.kernel(
    parameters=(
        aot.In("k", "batch x tokens x kv_heads x dim: the keys of the new tokens"),
        aot.In("v", "like `k`"),
        aot.In("k_cache", "batch x capacity x kv_heads x dim, or pages x page_size x kv_heads x dim"),
        aot.In("v_cache", "like `k_cache`"),
        aot.In("lengths", "tokens of each sequence, the new ones included"),
        aot.Out("k_out", "pass `k_cache`", shape="k_cache.shape", dtype="k_cache.dtype", may_be="k_cache"),
        aot.Out("v_out", "pass `v_cache`", shape="v_cache.shape", dtype="v_cache.dtype", may_be="v_cache"),
        aot.In("pages", "batch x pages of a sequence: which pages of the cache it has; or none", default=None),
        aot.In("cos", "positions x dim / 2, in f32: rotate keys by halves; or none", default=None),
        aot.In("sin", "like `cos`", default=None),
        aot.In("k_scale", "per head: the cache is about `k / k_scale`; none unless it is f8e4m3", default=None),
        aot.In("v_scale", "like `k_scale`", default=None),
    ),
    archs=ARCHS,
    axes={
        "rotated": (True, False),
        "dtype": ("f16", "bf16"),
        "cache_dtype": {"same": False, "f8e4m3": True},
        "paged": {"pages": True, "contiguous": False},
    },
    contract=contract,
)
def cache_append(
    target: aot.Target, rotated: bool, dtype: str, cache_dtype: bool, paged: bool
) -> aot.Spec | list[aot.Spec]:
    """Write new tokens at the end of their sequences: token ``i`` of ``n`` goes to position ``length - n + i``.

    ``k_out`` and ``v_out`` are the caches themselves, and the rest of them is not touched. Positions that are negative,
    past the capacity, or on a page that does not exist are left out. ``dim`` is a multiple of 16. Two tokens must not go to
    one place: which of them stays is not defined.
    """
    if cache_dtype and target.capability < (8, 9):  # no conversion to f8
        return []
    dim = aot.Dim("dim", divisible_by=2 * CHUNK)
    stored = "f8e4m3" if cache_dtype else dtype
    tokens = aot.Tensor(dtype, ("batch", "tokens", "kv_heads", dim), align=VECTOR_BYTES)
    angles = aot.Tensor("f32", ("positions", aot.Dim("pairs", CHUNK)), align=VECTOR_BYTES) if rotated else None
    scale = aot.Tensor("f32", ("kv_heads",)) if cache_dtype else None
    caches = {name: cache(name, stored, dim, paged) for name in ("k_cache", "v_cache", "k_out", "v_out")}
    arguments: dict[str, Any] = {
        "k": tokens, "v": tokens, "k_cache": caches["k_cache"], "v_cache": caches["v_cache"],
        "lengths": aot.Tensor("i32", ("batch",)), "k_out": caches["k_out"], "v_out": caches["v_out"],
        "pages": aot.Tensor("i32", ("batch", "pages_each")) if paged else None,
        "cos": angles, "sin": angles, "k_scale": scale, "v_scale": scale, "stream": aot.Stream(),
    }  # fmt: skip
    room = "pages_each * page_size" if paged else "capacity"
    # The code counts threads and tokens in 32 bits. Each thread has 16 elements.
    guards: tuple[str, ...] = (f"batch * tokens * kv_heads * dim < {2**34}",)
    if paged:
        guards = (*guards, f"{room} < {2**31}")
    if rotated:
        guards = (*guards, "pairs * 2 == dim", f"positions >= {room}")
    return aot.Spec(CacheAppend(target, paged, rotated), arguments, guards)
