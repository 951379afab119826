"""Shipped kernels of a step of training, in one dtype."""

import dataclasses

from kernels.products import gemm_accumulate as product
from kernels.products import gemm_add as adding
from kernels.products import gemm_gated_product as gated
from kernels.products import gemm_rope as rotating
from kernels.products import gemm_silu_and_mul_backward as gradient
from kernels.training import adamw as shipped
from kernels.training import linear_cross_entropy as loss
from kernels.training import linear_cross_entropy_backward as loss_backward

adamw = dataclasses.replace(
    shipped.adamw,
    axes={
        "dtype": {"bf16": "bf16"},
        "gradients": {"same": "", "f32": "f32"},
        "scaled": {"plain": False, "scaled": True},
    },
)
gemm_accumulate = dataclasses.replace(
    product.gemm_accumulate, axes={"dtype": {"bf16": "bf16"}, "layout": {"columns": False}}
)
BF16 = {"dtype": {"bf16": "bf16"}}
gemm_add = dataclasses.replace(adding.gemm_add, axes=BF16, backward=None)
gemm_rope = dataclasses.replace(rotating.gemm_rope, axes={**BF16, "dim": {"dim64": 64}})
gemm_gated_product = dataclasses.replace(gated.gemm_gated_product, axes=BF16, backward=None)
gemm_silu_and_mul_backward = dataclasses.replace(
    gradient.gemm_silu_and_mul_backward, axes={**BF16, "b": {"b_columns": False}}
)
linear_cross_entropy = dataclasses.replace(
    loss.linear_cross_entropy,
    axes={"dtype": {"bf16": "bf16"}, "gradients": {"gradients": True}},
    choices={"reduction": {"mean": 1}},
    backward=None,
)
linear_cross_entropy_backward = loss_backward.linear_cross_entropy_backward
