"""``out = addend + a @ b.T``: a product that is added to the residual stream of a network.

The sum would read the product again, and so would a norm that adds it. Here the addend is read while the tensor cores multiply.
"""

from __future__ import annotations

import cutlass

import aot

from .._device import forward
from ..contracts.products import gemm_add as contract
from ..sm90.mainloop import Mainloop
from ..sm90.tiling import Tiling
from ._add import Add, AddingGemm
from .gemm import LARGE, LONG, matrix

FAMILY = "training"

# The general tiling, and one for large outputs with long sums: see ``gemm.general_and``.
TILING, LONG_TILING = Tiling(128, 128, cluster_m=2), Tiling(128, 256, cooperative=True, cluster_m=2)
TYPES = {"bf16": cutlass.BFloat16, "f16": cutlass.Float16}


@aot.kernel(
    parameters=(
        aot.In("a", "m x k"),
        aot.In("b", "n x k"),
        aot.In("addend", "m x n"),
        aot.Out("out", "m x n", shape="addend.shape", dtype="addend.dtype", may_be="addend"),
    ),
    archs=("sm_90a",),
    axes={"dtype": ("bf16", "f16")},
    contract=contract,
    backward=aot.Composed(
        a="gemm(grad_out, b.mT)",
        b="gemm(grad_out.mT, a.mT)",
        addend="grad_out",
        adds={"b": "gemm_accumulate(grad_out.mT, a.mT, main_grad)"},
    ),
)
def gemm_add(target: aot.Target, dtype: str) -> list[aot.Spec]:
    """``out = addend + a @ b.T``, summed in f32 and rounded once. Rows are row-major. The tilings are made for many rows."""
    n = aot.Dim("n", divisible_by=8)
    arguments = {
        "a": matrix("a", dtype, "m", "k", True, False),
        "b": matrix("b", dtype, n, "k", True, False),
        "addend": matrix("addend", dtype, "m", n, True, False),
        "out": matrix("out", dtype, "m", n, True, False),
        "clusters": aot.ActiveClusters(),
        "stream": aot.Stream(),
    }
    copied = forward(arguments, "a", "b", "addend", "out")
    specs = []
    for tiling, prefer in ((LONG_TILING, (f"m * n >= {LARGE}", f"k >= {LONG}")), (TILING, ())):
        function = AddingGemm(Mainloop(tiling), Add(tiling, TYPES[dtype]), target)
        specs.append(aot.Spec(function, arguments, ("k > 0", *copied), tiling.label, prefer=prefer))
    return specs
