"""``scale = max(|x|) / 448`` and ``out = x / scale`` as f8e4m3 for each 128 elements of a row: ``a`` of ``gemm_fp8``."""

from __future__ import annotations

import aot

from .._device import DTYPES, F8_ARCHS, chunk_elements
from ..contracts.fp8 import quantize_fp8_blocks as contract
from ._quantize import BLOCK, QuantizeBlocks, arguments_of


@aot.kernel(
    parameters=(
        aot.In("x", "m x n, n a multiple of 128"),
        aot.Out("out", shape="x.shape", dtype="f8e4m3"),
        aot.Out(
            "scale",
            "per block: `x` is about `out * scale`",
            shape=f"(x.shape[0], x.shape[1] // {BLOCK})",
            dtype="f32",
        ),
    ),
    archs=F8_ARCHS,
    axes={"dtype": DTYPES},
    contract=contract,
)
def quantize_fp8_blocks(target: aot.Target, dtype: str) -> aot.Spec:
    """``scale = max(|x|) / 448`` and ``out = x / scale`` as f8e4m3, for each block of 1 x 128 elements of ``x``."""
    scale = aot.Tensor("f32", ("m", "blocks"))
    arguments = arguments_of(dtype, True, scale, aot.Dim("n", divisible_by=BLOCK))
    return aot.Spec(QuantizeBlocks(target, chunk_elements(dtype, True)), arguments, (f"n == {BLOCK} * blocks",))
