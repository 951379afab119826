"""``out = softmax(scale * q @ chosen.T) @ chosen[:, :512]``: attention of queries against chosen tokens of a latent cache.

Models of the kind of DeepSeek-V3.2 choose up to 2048 tokens for each query. The code is in ``_latent_sparse_sm90``, that of
up to 16 heads and packed tokens in ``_latent_few_sparse_sm90``.
"""

from __future__ import annotations

from typing import Any

import aot

from .._device import forward
from ..contracts.attention import mla_decode_sparse as contract
from .decoding._cache_sm90 import MAX_BLOCKS
from .latent._latent_few_sm90 import BLOCKS
from .latent._latent_few_sparse_sm90 import FewSparseDecode
from .latent._latent_packed_sm90 import PACKED, PackedSparseLatentDecode
from .latent._latent_sm90 import KEY, ROWS, VALUE
from .latent._latent_sparse_sm90 import SparseLatentDecode
from .mla_decode import ALIGNMENT, FEW

_ROWS = f"max({BLOCKS * FEW}, min({ROWS}, (q.shape[1] + 15) // 16 * 16))"


@aot.kernel(
    parameters=(
        aot.In("q", "queries x heads x 576"),
        aot.In("cache", "pages x page_size x 576, or packed: pages x page_size x 656 bytes"),
        aot.In("indices", "queries x chosen: tokens of the cache, counted over all pages; below 0: none"),
        aot.In("lengths", "how many indices of each query count"),
        aot.Out("out", shape=f"(q.shape[0], q.shape[1], {VALUE})", dtype="q.dtype"),
        aot.In("scale", "of the scores"),
        aot.Workspace("parts", bytes=f"{8 * MAX_BLOCKS} * ({_ROWS} * {VALUE + 4} + 8)"),
    ),
    archs={"sm_90a": "sm_90a"},
    axes={"dtype": ("bf16", "f16"), "cache_dtype": {"same": False, "packed": True}},
    contract=contract,
)
def mla_decode_sparse(target: aot.Target, dtype: str, cache_dtype: bool) -> list[aot.Spec]:
    """Latent attention of each query against the tokens that its ``indices`` name.

    Index ``page * page_size + place`` is a token of the cache. Indices below 0, or past the end of the cache, name no token, and
    neither do those from the query's length on. A token that is named twice counts twice. A query without a token gives
    zeros. Indices and lengths are read on the device, so a captured CUDA graph may be replayed after they changed.

    A packed token is 656 bytes, as inference engines keep it for DeepSeek-V3.2: 512 elements of f8e4m3, four scales of f32, each
    of 128 elements, and 64 elements of bf16. With more than 16 heads, elements times their scale are rounded to ``q.dtype``.
    """
    if cache_dtype and dtype != "bf16":
        return []
    stored, width = ("u8", PACKED) if cache_dtype else (dtype, KEY)
    chunk = ALIGNMENT // aot.Tensor(stored, ()).element_bytes
    strides = [aot.Dim(f"stride_{i}", divisible_by=chunk, bits=64) for i in range(2)]
    q_strides = [aot.Dim(f"q_stride_{i}", divisible_by=ALIGNMENT // 2, bits=64) for i in range(2)]
    arguments: dict[str, Any] = {
        "q": aot.Tensor(dtype, ("queries", "heads", KEY), (*q_strides, 1), align=ALIGNMENT),
        "cache": aot.Tensor(stored, ("page_count", "page_size", width), (*strides, 1), align=ALIGNMENT),
        "indices": aot.Tensor("i32", ("queries", "chosen"), (aot.Dim("index_stride", bits=64), 1)),
        "lengths": aot.Tensor("i32", ("queries",)),
        "out": aot.Tensor(dtype, ("queries", "heads", VALUE), align=ALIGNMENT),
        "scale": aot.Scalar("f32"),
        "parts": aot.Tensor("f32", ("length",), align=128),
        "multiprocessors": aot.Multiprocessors(),
        "stream": aot.Stream(),
    }
    # Indices have 32 bits, and blocks side by side need room in the workspace.
    guards = (f"page_count * page_size < {2**31}", "page_count * page_size > 0", f"heads <= {ROWS * MAX_BLOCKS}")
    guards = (*guards, *forward(arguments, "q"))
    if not cache_dtype:
        return [aot.Spec(SparseLatentDecode(target), arguments, guards)]
    return [
        aot.Spec(FewSparseDecode(target), arguments, (*guards, f"heads <= {FEW}"), f"rows{FEW}"),
        aot.Spec(PackedSparseLatentDecode(target), arguments, guards, f"rows{ROWS}"),
    ]
