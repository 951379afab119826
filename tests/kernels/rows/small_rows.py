"""Shipped kernels over rows at a few points of their grids, in one dtype."""

import dataclasses

from kernels.rows import argmax as shipped_argmax
from kernels.rows import rmsnorm as shipped_rmsnorm
from kernels.rows import rmsnorm_residual as shipped_rmsnorm_residual
from kernels.rows import top_k as shipped_top_k

ONE = {"dtype": {"bf16": "bf16"}, "access": {"vector": "vector"}}
SCALAR = {"access": {"scalar": "scalar"}}
rmsnorm = dataclasses.replace(
    shipped_rmsnorm.rmsnorm, axes={**ONE, "access": {**ONE["access"], **SCALAR["access"]}}, backward=None
)
rmsnorm_residual = dataclasses.replace(
    shipped_rmsnorm_residual.rmsnorm_residual, axes={"dtype": {"f32": "f32"}, **SCALAR}, backward=None
)
argmax = dataclasses.replace(shipped_argmax.argmax, axes={**ONE, **SCALAR})
top_k = dataclasses.replace(shipped_top_k.top_k, axes={"dtype": {"bf16": "bf16"}, "rows": {"short": "short"}})
