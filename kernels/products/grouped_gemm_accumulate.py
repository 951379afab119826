"""``out[expert] = addend[expert] + a[rows].T @ b[rows]`` in f32: what a step of training adds to the matrices of experts.

As ``gemm_accumulate`` is to ``gemm``. The code is that of ``grouped_gemm_weights``.
"""

from __future__ import annotations

import aot

from .._device import HOPPER_ARCHS
from ..contracts.products import grouped_gemm_accumulate as contract
from ._grouped_weights import GroupedSums
from .gemm_fp8 import ALIGNMENT, rows_of
from .grouped_gemm_weights import TILING

FAMILY = "training"


@aot.kernel(
    parameters=(
        aot.In("a", "rows x n: the rows of the first expert, those of the second, and so on"),
        aot.In("b", "rows x k, likewise"),
        aot.In("offsets", "per expert: the row after its last one; the same as the previous one if it has none"),
        aot.Out(
            "out",
            "experts x n x k, in f32",
            shape="(offsets.shape[0], a.shape[1], b.shape[1])",
            dtype="f32",
            may_be="addend",
        ),
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
    n, k = aot.Dim("n", divisible_by=ALIGNMENT // 2), aot.Dim("k", divisible_by=ALIGNMENT // 2)
    arguments = {
        "a": rows_of("a", dtype, "m", n),
        "b": rows_of("b", dtype, "m", k),
        "out": aot.Tensor("f32", ("experts", n, k)),
        "addend": aot.Tensor("f32", ("experts", n, k), optional=True),
        "offsets": aot.Tensor("i32", ("experts",)),
        "stream": aot.Stream(),
    }
    return aot.Spec(GroupedSums(TILING, target), arguments, label=TILING.label)
