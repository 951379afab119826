"""``out = x / scale`` as f8e4m3 with a scale that is known beforehand, as calibration gives it."""

from __future__ import annotations

import aot

from .._device import DTYPES, F8_ARCHS, chunk_elements
from ..contracts.fp8 import quantize_fp8_scaled as contract
from ._quantize import QuantizeScaled, arguments_of


@aot.kernel(
    parameters=(
        aot.In("x"),
        aot.In("scale", "one number on the device"),
        aot.Out("out", shape="x.shape", dtype="f8e4m3"),
    ),
    archs=F8_ARCHS,
    axes={"dtype": DTYPES, "access": {"vector": True, "scalar": False}},
    contract=contract,
)
def quantize_fp8_scaled(target: aot.Target, dtype: str, access: bool) -> aot.Spec:
    """``out = x / scale`` as f8e4m3. Magnitudes above 448 become 448."""
    chunk = chunk_elements(dtype, access)
    arguments = arguments_of(dtype, access, aot.Tensor("f32", (1,)), aot.Dim("n", divisible_by=chunk))
    return aot.Spec(QuantizeScaled(target, chunk), arguments)
