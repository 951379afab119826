"""Shipped kernels of a step of training, in one dtype."""

import dataclasses

from kernels.products import gemm_accumulate as product
from kernels.training import adamw as shipped

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
