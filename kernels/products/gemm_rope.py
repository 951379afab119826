"""``out = rope(a @ b.T)`` for the first heads, and ``a @ b.T`` for the others: queries, keys and values of a layer of attention.

Two kernels, ``gemm`` and ``rope``, would read and write queries and keys once more. See ``_rope`` for the code.
"""

from __future__ import annotations

import aot

from .._device import forward
from ..contracts.products import gemm_rope as contract
from ..sm90.mainloop import Mainloop
from ..sm90.tiling import Tiling
from ._rope import Rotated, RotatedGemm
from .gemm import matrix

FAMILY = "training"

TILING = Tiling(128, 128, cluster_m=2)


@aot.kernel(
    parameters=(
        aot.In("a", "m x k"),
        aot.In("b", "n x k: the rows of each head, one head after the other"),
        aot.In("cos", "of each row of `a`, for each element of half a head, in f32"),
        aot.In("sin", "likewise"),
        aot.Out("out", "m x n", shape="(a.shape[0], b.shape[0])", dtype="a.dtype"),
        aot.In("heads", "how many heads are turned, from the first on"),
    ),
    archs=("sm_90a",),
    axes={"dtype": ("bf16", "f16"), "dim": {"dim64": 64, "dim128": 128}},
    contract=contract,
)
def gemm_rope(target: aot.Target, dtype: str, dim: int) -> aot.Spec:
    """``a @ b.T``, of which the first ``heads`` are turned as by ``rope``. Summed and turned in f32, rounded once."""
    half = dim // 2
    angles = aot.Tensor("f32", ("m", half), align=16)
    arguments = {
        "a": matrix("a", dtype, "m", "k", True, False),
        "b": matrix("b", dtype, "n", "k", True, False),
        "cos": angles,
        "sin": angles,
        "out": matrix("out", dtype, "m", "n", True, False),
        "heads": aot.Scalar("i32"),
        "clusters": aot.ActiveClusters(),
        "stream": aot.Stream(),
    }
    copied = forward(arguments, "a", "b", "out")
    function = RotatedGemm(Mainloop(TILING), Rotated(TILING, half), target)
    return aot.Spec(function, arguments, ("k > 0", f"n % {dim} == 0", "heads >= 0", *copied), TILING.label)
