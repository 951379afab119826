"""``out = addend + a @ b.T`` in f32, of f16 or bf16: what a step of training adds to the gradient of a weight.

The gradient of a weight is a sum over all tokens of a step, and often over several steps. In f32 nothing of it is lost.
``out`` may be ``addend``. Both operands are row-major, or both are column-major: tokens are rows of both activations and
gradients, so ``gemm_accumulate(grad_out.mT, x.mT, weight_grad)`` needs no transposed copies. The tensor cores are the limit,
as in ``gemm``.
"""

from __future__ import annotations

from typing import Any

import aot

from .._device import VECTOR_BYTES, forward
from ..contracts.products import gemm_accumulate as contract
from ..sm90.accumulate import Accumulate
from ..sm90.mainloop import Mainloop
from ..sm90.tiling import Tiling
from ._accumulate import AccumulatingGemm
from .gemm import CHUNK, matrix

FAMILY = "training"

TILINGS = (
    (Tiling(128, 128, cluster_m=2, out_bytes=4), "m * n <= 4194304"),  # two tiles for each multiprocessor, or fewer
    (Tiling(128, 256, cooperative=True, cluster_m=2, buffers=1, out_bytes=4), "m > 0"),
)


@aot.kernel(
    parameters=(
        aot.In("a", "m x k"),
        aot.In("b", "n x k"),
        aot.Out("out", "m x n, in f32", shape="(a.shape[0], b.shape[0])", dtype="f32", may_be="addend"),
        aot.In("addend", "m x n, in f32; or none", default=None),
    ),
    archs=("sm_90a",),
    axes={"dtype": ("bf16", "f16"), "layout": {"rows": True, "columns": False}},
    contract=contract,
)
def gemm_accumulate(target: aot.Target, dtype: str, layout: bool) -> list[aot.Spec]:
    """``out = addend + a @ b.T`` in f32; ``a`` and ``b`` are both row-major or both column-major, ``out`` is row-major."""
    m, n, k = aot.Dim("m"), aot.Dim("n", divisible_by=CHUNK), aot.Dim("k")
    stride = aot.Dim("out_stride", divisible_by=VECTOR_BYTES // 4, bits=64)
    arguments: dict[str, Any] = {
        "a": matrix("a", dtype, m, k, layout, False),
        "b": matrix("b", dtype, n, k, layout, False),
        "out": aot.Tensor("f32", (m, n), (stride, 1), align=VECTOR_BYTES),
        "addend": aot.Tensor("f32", (m, n), optional=True),
        "clusters": aot.ActiveClusters(),
        "stream": aot.Stream(),
    }
    guards = ("k > 0", *forward(arguments, "a", "b", "out"))
    return [
        aot.Spec(
            AccumulatingGemm(Mainloop(tiling), Accumulate(tiling), target),
            arguments,
            guards,
            tiling.label,
            prefer=(condition,),
        )
        for tiling, condition in TILINGS
    ]
