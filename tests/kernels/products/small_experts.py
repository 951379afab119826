"""Shipped products that gradients need, in one dtype."""

import dataclasses

from kernels.products import grouped_gemm_accumulate as sums
from kernels.products import grouped_gemm_weights as weights

grouped_gemm_weights = dataclasses.replace(weights.grouped_gemm_weights, axes={"dtype": {"bf16": "bf16"}})
grouped_gemm_accumulate = dataclasses.replace(sums.grouped_gemm_accumulate, axes={"dtype": {"bf16": "bf16"}})
