"""``out[expert] = addend[expert] + a[rows].T @ b[rows]`` in f32: what a step of training adds to the matrices of experts.

As ``gemm_accumulate`` is to ``gemm``. The code is that of ``grouped_gemm_weights``.
"""

from __future__ import annotations

import aot

from .._device import HOPPER_ARCHS
from ..contracts.products import grouped_gemm_accumulate as contract
from ._grouped_weights import GroupedSums
from .grouped_gemm_weights import OFFSETS, OPERANDS, SHAPE, TILING, K, N, rows_of_experts

FAMILY = "training"


@aot.kernel(
    parameters=(
        *OPERANDS,
        aot.Out("out", "experts x n x k, in f32", shape=SHAPE, dtype="f32", may_be="addend"),
        aot.In("addend", "experts x n x k, in f32; or none", default=None),
    ),
    archs=dict.fromkeys(HOPPER_ARCHS, "sm_80"),
    axes={"dtype": ("bf16", "f16")},
    contract=contract,
)
def grouped_gemm_accumulate(target: aot.Target, dtype: str) -> aot.Spec:
    """``out[expert] = addend[expert] + a[rows].T @ b[rows]`` in f32; ``addend`` alone for experts without rows.

    Offsets are read on the device, so a captured CUDA graph may be replayed after they changed. They must not decrease.
    """
    sums = {
        "out": aot.Tensor("f32", ("experts", N, K)),
        "addend": aot.Tensor("f32", ("experts", N, K), optional=True),
    }
    arguments = {**rows_of_experts(dtype), **sums, "offsets": OFFSETS, "stream": aot.Stream()}
    return aot.Spec(GroupedSums(TILING, target), arguments, label=TILING.label)
