"""``out = softmax(scale * q @ k.T) @ v`` for one to sixteen new tokens of each sequence, against a cache.

The code is in ``_decode``. It is the same for all architectures: reading the cache is the limit, and cp.async with
mma.sync keeps up with the memory of each of them. With more than 64 query rows for each head of the cache it does not, and
sm_90a has ``_wide_sm90`` for them.
"""

from __future__ import annotations

from typing import Any

import aot

from .._device import HOPPER_ARCHS, TMA, forward
from ..contracts.attention import attention_decode as contract
from .decoding._decode import MAX_BLOCKS, Decode, Tiling
from .decoding._ring import PAGE
from .decoding._whole import WholeDecode
from .decoding._wide_sm90 import BOXES, WideDecode

ALIGNMENT = 16
MAX_TOKENS = 16
MAX_ROWS = 128

# By the number of query rows that share a head of the cache. The first that has room for them is taken.
TILINGS = (
    Tiling(row_warps=1, teams=4, tokens=32, stages=3, blocks=1),
    Tiling(row_warps=4, teams=1, tokens=64, stages=3, blocks=2),
    Tiling(row_warps=4, teams=1, tokens=16, stages=8, blocks=2, bands=2),
)
NARROW_TILINGS = (
    Tiling(row_warps=1, teams=4, tokens=32, stages=3, blocks=1),
    Tiling(row_warps=4, teams=1, tokens=64, stages=4, blocks=2),
    Tiling(row_warps=8, teams=1, tokens=64, stages=4, blocks=1),
)
_ROWS = f"min({MAX_ROWS}, q.shape[1] * (q.shape[2] // k_cache.shape[2]))"


def cache(name: str, dtype: str, dim: int, paged: bool) -> aot.Tensor:
    """Pages, or sequences, of tokens of heads. Only the elements of a head must lie side by side."""
    page_size = aot.Dim("page_size", divisible_by=PAGE)
    shape = ("page_count", page_size, "kv_heads", dim) if paged else ("batch", "capacity", "kv_heads", dim)
    chunk = ALIGNMENT // aot.Tensor(dtype, ()).element_bytes
    strides = [aot.Dim(f"{name}_stride_{i}", divisible_by=chunk, bits=64) for i in range(3)]
    return aot.Tensor(dtype, shape, (*strides, 1), align=ALIGNMENT)


@aot.kernel(
    parameters=(
        aot.In("q", "batch x tokens x heads x dim: the new tokens, at most 16, which the cache has already"),
        aot.In("k_cache", "batch x capacity x kv_heads x dim, or pages x page_size x kv_heads x dim"),
        aot.In("v_cache", "like `k_cache`"),
        aot.In("lengths", "tokens of each sequence in the cache, the new ones included"),
        aot.Out("out", shape="q.shape", dtype="q.dtype"),
        aot.In("scale", "of the scores, often 1 / sqrt(dim)"),
        aot.In("pages", "batch x pages of a sequence: which pages of the cache it has; or none", default=None),
        aot.In("k_scale", "per head: keys are about `k_cache * k_scale`; none unless it is f8e4m3", default=None),
        aot.In("v_scale", "like `k_scale`", default=None),
        aot.Workspace("parts", bytes=f"{8 * MAX_BLOCKS} * {_ROWS} * (q.shape[3] + 2)"),
    ),
    archs=HOPPER_ARCHS,
    axes={
        "dtype": ("f16", "bf16"),
        "cache_dtype": {"same": False, "f8e4m3": True},
        "dim": (128, 64),
        "paged": {"pages": True, "contiguous": False},
    },
    contract=contract,
)
def attention_decode(target: aot.Target, dtype: str, cache_dtype: bool, dim: int, paged: bool) -> list[aot.Spec]:
    """Attention of the last ``tokens`` tokens of each sequence; each sees the tokens up to itself.

    A sequence of length 0 gives zeros. Lengths and pages are read on the device, so a captured CUDA graph may be replayed
    after they changed. What the cache contains past the end of a sequence has no influence.
    ``heads`` is a multiple of ``kv_heads``, ``page_size`` is a multiple of 16.
    A length above what the cache, or a row of ``pages``, has room for counts as that. Pages up to the length must exist:
    nothing checks their numbers, and a wrong one reads outside the cache. Entries of ``pages`` past the end may be anything.
    """
    if cache_dtype and (target.capability < (8, 9) or dim != 128):  # no conversion from f8, or lines that are too short
        return []
    stored = "f8e4m3" if cache_dtype else dtype
    scale = aot.Tensor("f32", ("kv_heads",)) if cache_dtype else None
    tokens = aot.Tensor(dtype, ("batch", "tokens", "heads", dim), align=ALIGNMENT)
    arguments: dict[str, Any] = {
        "q": tokens,
        "k_cache": cache("k", stored, dim, paged),
        "v_cache": cache("v", stored, dim, paged),
        "lengths": aot.Tensor("i32", ("batch",)),
        "out": tokens,
        "scale": aot.Scalar("f32"),
        "pages": aot.Tensor("i32", ("batch", "pages_each")) if paged else None,
        "k_scale": scale,
        "v_scale": scale,
        "parts": aot.Tensor("f32", ("length",), align=128),
        "multiprocessors": aot.Multiprocessors(),
        "stream": aot.Stream(),
    }
    guards: tuple[str, ...] = (f"tokens <= {MAX_TOKENS}", "kv_heads > 0", "heads % kv_heads == 0")
    if paged:
        guards = (*guards, f"pages_each * page_size < {2**31}")  # the code counts tokens in 32 bits
    specs = []
    for wanted in NARROW_TILINGS if cache_dtype else TILINGS:
        width = dim // 2 if cache_dtype else dim
        tiling = wanted.fitting(target, dim, width)
        tiling.validate(target, dim, width)
        if TMA[target.written_for] and not cache_dtype and tiling.rows == MAX_ROWS:
            specs += wide_specs(target, arguments, guards, dim, paged)
        else:
            fits = tiling.rows < MAX_ROWS
            whole = (tiling,) if cache_dtype else (tiling, tiling.shortened())
            codes = tuple(WholeDecode(own, target, dim, cache_dtype, fits) for own in whole if own.row_warps == 1)
            decode = Decode(tiling, target, dim, cache_dtype, fits, codes)
            room = (f"tokens * heads <= {tiling.rows} * kv_heads",) if fits else ()
            specs.append(aot.Spec(decode, arguments, (*guards, *room), tiling.label))
    return specs


def wide_specs(target: aot.Target, arguments: dict, guards: tuple[str, ...], dim: int, paged: bool) -> list[aot.Spec]:
    """A tile of tokens comes from few large pages, or from many small ones."""
    room = f"tokens * heads <= {MAX_ROWS * MAX_BLOCKS} * kv_heads"  # for blocks side by side in the workspace
    copied = forward(arguments, "k_cache", "v_cache")
    specs = []
    for box in BOXES if paged else BOXES[:1]:
        fits = (f"page_size % {box} == 0",) if paged and box != PAGE else ()
        decode = WideDecode(target, dim, box)
        specs.append(aot.Spec(decode, arguments, (*guards, *copied, room, *fits), f"rows{MAX_ROWS}_box{box}"))
    return specs
