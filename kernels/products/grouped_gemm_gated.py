"""``out = silu(a @ gate.T) * (a @ up.T)`` of rows that belong to experts: the first half of a layer of experts.

As ``gemm_gated``, with a matrix for each expert; as ``grouped_gemm``, blocks find their tiles on the device. A row may be
multiplied by its routing weight here: the second half is linear, so its output is then weighted too.
"""

from __future__ import annotations

from functools import partial

import aot

from .._device import forward
from ..contracts.products import grouped_gemm_gated as contract
from ..sm90.mainloop import Mainloop
from ..sm90.tiling import Tiling
from ._gated import GroupedGatedGemm, WeightedGated
from .gemm_fp8 import ALIGNMENT, rows_of

FAMILY = "experts"

_T = partial(Tiling, gated=True)
# By the rows that an expert has in the mean. The first whose condition holds computes a product.
TILINGS = (
    (_T(64, 128, cluster_n=2), "m <= 64 * experts"),
    (_T(128, 128, cluster_n=2), "m <= 128 * experts"),
    (_T(192, 128, cluster_n=2, buffers=1), "m <= 192 * experts"),
    (_T(128, 256, cooperative=True, buffers=1), "m > 0"),
)


@aot.kernel(
    parameters=(
        aot.In("a", "rows x k: the rows of the first expert, those of the second, and so on"),
        aot.In("b", "experts x 2 n x k: of each expert the n rows of the gate, then those of what it gates"),
        aot.In("offsets", "per expert: the row after its last one; the same as the previous one if it has none"),
        aot.Out("out", "rows x n", shape="(a.shape[0], b.shape[1] // 2)", dtype="a.dtype"),
        aot.In("weights", "per row, what multiplies it; or none", default=None),
    ),
    archs=("sm_90a",),
    axes={"dtype": ("bf16", "f16")},
    contract=contract,
)
def grouped_gemm_gated(target: aot.Target, dtype: str) -> list[aot.Spec]:
    """``out[i] = silu(b[expert of row i][:n] @ a[i]) * (b[expert of row i][n:] @ a[i]) * weights[i]``, summed in f32.

    Offsets are read on the device, so a captured CUDA graph may be replayed after they changed. They must not decrease.
    Rows after the last offset are not written.
    """
    m, n, k = aot.Dim("m"), aot.Dim("n", divisible_by=ALIGNMENT // 2), aot.Dim("k")
    arguments = {
        "a": rows_of("a", dtype, m, k),
        "b": rows_of("b", dtype, "experts", "both", k),
        "out": rows_of("out", dtype, m, n),
        "weights": aot.Tensor("f32", (m,), optional=True),
        "offsets": aot.Tensor("i32", ("experts",)),
        "clusters": aot.ActiveClusters(),
        "stream": aot.Stream(),
    }
    guards = ("k > 0", "both == 2 * n", *forward(arguments, "a", "b", "out"))
    specs = []
    for tiling, condition in TILINGS:
        function = GroupedGatedGemm(Mainloop(tiling), WeightedGated(tiling), target, grouped=True)
        specs.append(aot.Spec(function, arguments, guards, tiling.label, prefer=(condition,)))
    return specs
