"""``out[expert] = a[rows].T @ b[rows]`` for the rows of each expert: the gradient of ``grouped_gemm`` by its matrices.

The code is portable: on Hopper it has neither TMA nor wgmma, and is slower than ``grouped_gemm``.
"""

from __future__ import annotations

import aot

from .._device import HOPPER_ARCHS
from ..contracts.products import grouped_gemm_weights as contract
from ..sm80.operands import Tiling
from ._grouped_weights import GroupedWeights
from .gemm_fp8 import ALIGNMENT, rows_of

FAMILY = "experts"

TILING = Tiling(128, 128, warps=(2, 4), stages=3)
OPERANDS = (
    aot.In("a", "rows x n: the rows of the first expert, those of the second, and so on"),
    aot.In("b", "rows x k, likewise"),
    aot.In("offsets", "per expert: the row after its last one; the same as the previous one if it has none"),
)
SHAPE = "(offsets.shape[0], a.shape[1], b.shape[1])"
N, K = (aot.Dim(name, divisible_by=ALIGNMENT // 2) for name in ("n", "k"))
OFFSETS = aot.Tensor("i32", ("experts",))


def rows_of_experts(dtype: str) -> dict[str, aot.Tensor]:
    return {"a": rows_of("a", dtype, "m", N), "b": rows_of("b", dtype, "m", K)}


@aot.kernel(
    parameters=(*OPERANDS, aot.Out("out", "experts x n x k", shape=SHAPE, dtype="a.dtype")),
    archs=dict.fromkeys(HOPPER_ARCHS, "sm_80"),
    axes={"dtype": ("bf16", "f16")},
    contract=contract,
)
def grouped_gemm_weights(target: aot.Target, dtype: str) -> aot.Spec:
    """``out[expert] = a[rows].T @ b[rows]``, summed in f32; zeros for experts without rows.

    Offsets are read on the device, so a captured CUDA graph may be replayed after they changed. They must not decrease.
    """
    out = rows_of("out", dtype, "experts", N, K)
    arguments = {**rows_of_experts(dtype), "out": out, "offsets": OFFSETS, "stream": aot.Stream()}
    return aot.Spec(GroupedWeights(TILING, target), arguments, label=TILING.label)
