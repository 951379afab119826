"""Shipped kernels of a step of training, in one dtype."""

import dataclasses

from kernels.training import adamw as shipped

adamw = dataclasses.replace(
    shipped.adamw,
    axes={
        "dtype": {"bf16": "bf16"},
        "gradients": {"same": "", "f32": "f32"},
        "scaled": {"plain": False, "scaled": True},
    },
)
