"""``out = softmax(scale * q @ cache.T) @ cache[:, :512]``: attention of new tokens against a cache of latent vectors.

Models of the DeepSeek kind keep one vector of 576 elements per token, for all heads. The code for Hopper is in
``_latent_sm90``, that for other architectures in ``_latent_sm80``.
"""

from __future__ import annotations

from typing import Any

import aot

from .._device import HOPPER_ARCHS, TMA, forward
from ..contracts.attention import mla_decode as contract
from .decoding._cache_sm90 import MAX_BLOCKS
from .latent import _latent_sm80
from .latent._latent_f8_sm90 import NarrowLatentDecode
from .latent._latent_few_packed_sm90 import FewPackedDecode
from .latent._latent_few_sm90 import BLOCKS, FewLatentDecode
from .latent._latent_packed_sm90 import PACKED, PackedLatentDecode
from .latent._latent_sm90 import KEY, ROWS, TOKENS, VALUE, LatentDecode

ALIGNMENT = 16
MAX_TOKENS = 16
PAGE = 16  # tokens: the size of a page is a multiple of this
FEW = 16  # rows
_ROWS = f"max({BLOCKS * FEW}, min({ROWS}, (q.shape[1] * q.shape[2] + 15) // 16 * 16))"


@aot.kernel(
    parameters=(
        aot.In("q", "batch x tokens x heads x 576: the new tokens, at most 16, which the cache has already"),
        aot.In(
            "cache", "batch x capacity x 576, or pages x page_size x 576; packed: 656 bytes instead of 576 elements"
        ),
        aot.In("lengths", "tokens of each sequence in the cache, the new ones included"),
        aot.Out("out", shape=f"(q.shape[0], q.shape[1], q.shape[2], {VALUE})", dtype="q.dtype"),
        aot.In("scale", "of the scores"),
        aot.In("pages", "batch x pages of a sequence: which pages of the cache it has; or none", default=None),
        aot.In(
            "cache_scale", "of one element: tokens are about `cache * cache_scale`; none unless f8e4m3", default=None
        ),
        aot.Workspace("parts", bytes=f"{8 * MAX_BLOCKS} * ({_ROWS} * {VALUE + 4} + 8)"),
    ),
    archs=HOPPER_ARCHS,
    axes={
        "dtype": ("bf16", "f16"),
        "cache_dtype": ("same", "f8e4m3", "packed"),
        "paged": {"pages": True, "contiguous": False},
    },
    contract=contract,
)
def mla_decode(target: aot.Target, dtype: str, cache_dtype: str, paged: bool) -> list[aot.Spec]:
    """Latent attention of the last ``tokens`` tokens of each sequence; each sees the tokens up to itself.

    A sequence of length 0 gives zeros. Lengths and pages are read on the device, so a captured CUDA graph may be replayed
    after they changed. What the cache contains past the end of a sequence has no influence. ``page_size`` is a multiple of 16.
    A length above what the cache, or a row of ``pages``, has room for counts as that. Pages up to the length must exist:
    nothing checks their numbers, and a wrong one reads outside the cache. Entries of ``pages`` past the end may be anything.
    Packed tokens are those of ``mla_decode_sparse``. Only sm_90a takes them, with queries of bf16.
    """
    packed, narrow = cache_dtype == "packed", cache_dtype == "f8e4m3"
    if packed and (dtype != "bf16" or not TMA[target.written_for]):
        return []
    stored, width = {"same": (dtype, KEY), "f8e4m3": ("f8e4m3", KEY), "packed": ("u8", PACKED)}[cache_dtype]
    chunk = ALIGNMENT // aot.Tensor(stored, ()).element_bytes
    strides = [aot.Dim(f"stride_{i}", divisible_by=chunk, bits=64) for i in range(2)]
    q_strides = [aot.Dim(f"q_stride_{i}", divisible_by=ALIGNMENT // 2, bits=64) for i in range(2)]
    shape = ("page_count", aot.Dim("page_size", divisible_by=PAGE)) if paged else ("batch", "capacity")
    arguments: dict[str, Any] = {
        "q": aot.Tensor(dtype, ("batch", "tokens", "heads", KEY), (*q_strides, KEY, 1), align=ALIGNMENT),
        "cache": aot.Tensor(stored, (*shape, width), (*strides, 1), align=ALIGNMENT),
        "lengths": aot.Tensor("i32", ("batch",)),
        "out": aot.Tensor(dtype, ("batch", "tokens", "heads", VALUE), align=ALIGNMENT),
        "scale": aot.Scalar("f32"),
        "pages": aot.Tensor("i32", ("batch", "pages_each")) if paged else None,
        "cache_scale": aot.Tensor("f32", (1,)) if narrow else None,
        "parts": aot.Tensor("f32", ("length",), align=128),
        "multiprocessors": aot.Multiprocessors(),
        "stream": aot.Stream(),
    }
    # The code counts tokens in 32 bits.
    room = ("page_count > 0", f"pages_each * page_size < {2**31}") if paged else ("capacity > 0",)
    present = (f"tokens <= {MAX_TOKENS}", *room)
    if not TMA[target.written_for]:
        return specs_sm80(target, arguments, present, narrow)
    in_line = f"(tokens - 1) * (q_stride_1 - heads * {KEY}) == 0"  # of several tokens, all heads follow each other
    fewer = f"tokens * heads <= {ROWS * MAX_BLOCKS}"  # room for blocks side by side in the workspace
    guards = (*present, *forward(arguments, "q", "cache"), in_line, fewer)
    specs = []
    if narrow or packed:
        few = (*guards, f"tokens * heads <= {FEW}")
        decode = (FewPackedDecode if packed else FewLatentDecode)(target)
        specs.append(aot.Spec(decode, arguments, few, f"rows{FEW}"))
    if packed:
        return [*specs, aot.Spec(PackedLatentDecode(target), arguments, guards, f"rows{ROWS}")]
    for box in (TOKENS, PAGE) if paged else (TOKENS,):
        fits = (f"page_size % {box} == 0",) if paged and box != PAGE else ()
        decode = (NarrowLatentDecode if narrow else LatentDecode)(target, box)
        specs.append(aot.Spec(decode, arguments, (*guards, *fits), f"box{box}"))
    return specs


def specs_sm80(target: aot.Target, arguments: dict[str, Any], guards: tuple[str, ...], narrow: bool) -> list[aot.Spec]:
    """By the rows that a block has room for."""
    if narrow and target.capability < (8, 9):  # no conversion from f8
        return []
    specs = []
    for bands in (1, 2):
        decode = _latent_sm80.LatentDecode(bands, target, narrow)
        room = (f"tokens * heads <= {decode.rows}",) if bands == 1 else ()
        specs.append(aot.Spec(decode, arguments, (*guards, *room), f"rows{decode.rows}"))
    return specs
