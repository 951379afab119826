"""``grad_product = silu_and_mul_backward(a @ b.T, product)``: the gradient of a feed-forward layer before its last product.

Two kernels, ``gemm`` and ``silu_and_mul_backward``, would write the gradient to memory and read it again. Here the gate and
what it gates are read, and their gradients written, while the tensor cores multiply. See ``_gated_gradient`` for the code.
"""

from __future__ import annotations

import cutlass

import aot

from .._device import forward
from ..contracts.products import gemm_silu_and_mul_backward as contract
from ..sm90.mainloop import Mainloop
from ..sm90.tiling import Tiling
from ._gated_gradient import GatedGradient, GatedGradientGemm
from .gemm import matrix

FAMILY = "training"

TILING = Tiling(128, 128, cluster_m=2)
TYPES = {"bf16": cutlass.BFloat16, "f16": cutlass.Float16}


@aot.kernel(
    parameters=(
        aot.In("a", "m x k: the gradient of the last product"),
        aot.In("b", "n x k: its matrix; row- or column-major"),
        aot.In("product", "m x 2 n: the gate, then what it gates, as `gemm_gated_product` gave it"),
        aot.Out("grad_product", "m x 2 n", shape="product.shape", dtype="product.dtype", may_be="product"),
    ),
    archs=("sm_90a",),
    axes={"dtype": ("bf16", "f16"), "b": {"b_rows": True, "b_columns": False}},
    contract=contract,
)
def gemm_silu_and_mul_backward(target: aot.Target, dtype: str, b: bool) -> aot.Spec:
    """The gradient of ``silu_and_mul`` by ``product``, with ``a @ b.T``, summed in f32, as the gradient of its result."""
    both = aot.Dim("both", divisible_by=16)
    arguments = {
        "a": matrix("a", dtype, "m", "k", True, False),
        "b": matrix("b", dtype, "n", "k", b, False),
        "product": matrix("product", dtype, "m", both, True, False),
        "grad_product": matrix("grad_product", dtype, "m", both, True, False),
        "clusters": aot.ActiveClusters(),
        "stream": aot.Stream(),
    }
    copied = forward(arguments, "a", "b", "product", "grad_product")
    function = GatedGradientGemm(Mainloop(TILING), GatedGradient(TILING, TYPES[dtype]), target)
    return aot.Spec(function, arguments, ("k > 0", "both == 2 * n", *copied), TILING.label)
