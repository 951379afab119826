"""``out = silu(a @ gate.T) * (a @ up.T)`` as ``gemm_gated``, and the product itself, which the gradients need.

Two kernels, ``gemm`` and ``silu_and_mul``, would read the product again, which is twice as wide as the output. See ``_gated``.
"""

from __future__ import annotations

import aot

from .._device import forward
from ..contracts.products import gemm_gated_product as contract
from ..sm90.mainloop import Mainloop
from ._gated import GatedProduct, GatedProductGemm
from .gemm import CHUNK, matrix
from .gemm_gated import NARROW, WIDE, waves

FAMILY = "training"

# Gradients are asked of many rows. As for `gemm_gated`, a wave of the wide tiles takes 7/6 of the time of the narrow ones.
CHOICES = (
    (NARROW, (f"6 * {waves(NARROW)} <= 7 * {waves(WIDE)}",)),
    (WIDE, ()),
)

_PRODUCT_GRADIENT = "silu_and_mul_backward(grad_out, product)"


@aot.kernel(
    parameters=(
        aot.In("a", "m x k"),
        aot.In("b", "2 n x k: the n rows of the gate, then those of what it gates"),
        aot.Out("out", "m x n", shape="(a.shape[0], b.shape[0] // 2)", dtype="a.dtype"),
        aot.Out("product", "m x 2 n", shape="(a.shape[0], b.shape[0])", dtype="a.dtype"),
    ),
    archs=("sm_90a",),
    axes={"dtype": ("bf16", "f16")},
    contract=contract,
    backward=aot.Composed(
        a=f"gemm({_PRODUCT_GRADIENT}, b.mT)",
        b=f"gemm({_PRODUCT_GRADIENT}.mT, a.mT)",
        adds={"b": f"gemm_accumulate({_PRODUCT_GRADIENT}.mT, a.mT, main_grad)"},
    ),
)
def gemm_gated_product(target: aot.Target, dtype: str) -> list[aot.Spec]:
    """``out = silu(product[:, :n]) * product[:, n:]`` with ``product = a @ b.T``, summed in f32. Rows are row-major.

    ``out`` is computed from the sums before ``product`` is rounded. Its gradients are those of ``gemm_gated``.
    """
    n = aot.Dim("n", divisible_by=CHUNK)
    arguments = {
        "a": matrix("a", dtype, "m", "k", True, False),
        "b": matrix("b", dtype, "both", "k", True, False),
        "out": matrix("out", dtype, "m", n, True, False),
        "product": matrix("product", dtype, "m", "both", True, False),
        "clusters": aot.ActiveClusters(),
        "stream": aot.Stream(),
    }
    copied = forward(arguments, "a", "b", "out", "product")
    specs = []
    for tiling, prefer in CHOICES:
        guards = ("k > 0", "both == 2 * n", *copied, *tiling.guards)
        function = GatedProductGemm(Mainloop(tiling), GatedProduct(tiling), target)
        specs.append(aot.Spec(function, arguments, guards, tiling.label, prefer=prefer))
    return specs
