"""``out = silu(a @ gate.T) * (a @ up.T)``, the first half of a feed-forward layer, with ``gate`` above ``up`` in ``b``.

Two kernels, ``gemm`` and ``silu_and_mul``, would write the product to memory and read it again, which is twice as wide as
the output. See ``_gated`` for the code, and ``gemm`` for why there are several tilings.
"""

from __future__ import annotations

from functools import partial

import aot

from .._device import forward
from ..contracts.products import gemm_gated as contract
from ..sm90.mainloop import Mainloop
from ..sm90.tiling import Tiling
from ._gated import Gated, GatedGemm
from .gemm import matrix

FAMILY = "gemm"

_T = partial(Tiling, gated=True)
NARROW, WIDE = _T(128, 160, cluster_m=2), _T(128, 192, cluster_m=2, buffers=1)


def waves(tiling: Tiling) -> str:
    """How many tiles a cluster of two blocks computes one after the other on an H200, where 66 of them run at once."""
    rows, columns = tiling.m * tiling.cluster_m, tiling.columns
    return f"((((m + {rows - 1}) // {rows}) * ((n + {columns - 1}) // {columns}) + 65) // 66)"


# A product takes the first tiling whose conditions hold. On an H200, a wave of the wide tiles takes 7/6 of the time that one
# of the narrow tiles takes.
CHOICES = (
    (_T(64, 128, rows=16), ("m <= 16",)),
    (_T(64, 128, cluster_n=4), ("m <= 64",)),
    (_T(128, 128, cluster_n=4), ("m <= 128",)),
    (NARROW, (f"6 * {waves(NARROW)} <= 7 * {waves(WIDE)}",)),
    (WIDE, ()),
)


@aot.kernel(
    parameters=(
        aot.In("a", "m x k"),
        aot.In("b", "2 n x k: the n rows of the gate, then those of what it gates"),
        aot.Out("out", "m x n", shape="(a.shape[0], b.shape[0] // 2)", dtype="a.dtype"),
    ),
    archs=("sm_90a",),
    axes={"dtype": ("bf16", "f16")},
    contract=contract,
    backward=aot.Composed(split="gemm_gated_product(a, b)[0]"),
)
def gemm_gated(target: aot.Target, dtype: str) -> list[aot.Spec]:
    """``out = silu(a @ b[:n].T) * (a @ b[n:].T)``, both products summed in f32, rows of ``a`` and ``b`` row-major."""
    arguments = {
        "a": matrix("a", dtype, "m", "k", True, False),
        "b": matrix("b", dtype, "both", "k", True, False),
        "out": matrix("out", dtype, "m", "n", True, False),
        "clusters": aot.ActiveClusters(),
        "stream": aot.Stream(),
    }
    copied = forward(arguments, "a", "b", "out")
    specs = []
    for tiling, prefer in CHOICES:
        guards = ("k > 0", "both == 2 * n", *copied, *tiling.guards)
        function = GatedGemm(Mainloop(tiling), Gated(tiling), target)
        specs.append(aot.Spec(function, arguments, guards, tiling.label, prefer=prefer))
    return specs
