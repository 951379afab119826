"""Shipped kernels that compute gradients, in one dtype."""

import dataclasses

from kernels.backward import column_sums as shipped_sums
from kernels.backward import rmsnorm_backward as shipped_rmsnorm
from kernels.backward import rmsnorm_residual_backward as shipped_residual
from kernels.backward import softmax_backward as shipped_softmax

ONE = {"dtype": {"bf16": "bf16"}, "access": {"scalar": "scalar"}}
CHUNKS = {"dtype": {"bf16": "bf16"}, "access": {"vector": "vector"}}
rmsnorm_backward = dataclasses.replace(shipped_rmsnorm.rmsnorm_backward, axes=ONE)
rmsnorm_residual_backward = dataclasses.replace(shipped_residual.rmsnorm_residual_backward, axes=CHUNKS)
softmax_backward = dataclasses.replace(shipped_softmax.softmax_backward, axes=ONE)
column_sums = dataclasses.replace(shipped_sums.column_sums, axes=ONE)
