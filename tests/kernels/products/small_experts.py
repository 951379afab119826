"""Shipped products of experts and those that their gradients need, in one dtype and, of each, with one tiling."""

import dataclasses
from typing import Any

from kernels.products import grouped_gemm as rows
from kernels.products import grouped_gemm_accumulate as sums
from kernels.products import grouped_gemm_gated as gated
from kernels.products import grouped_gemm_weights as weights

ONE = {"dtype": {"bf16": "bf16"}}


def general(kernel: Any) -> Any:
    """The tiling that takes what no other takes."""
    return lambda target, **values: kernel.make(target, **values)[-1:]


grouped_gemm = dataclasses.replace(
    rows.grouped_gemm,
    make=general(rows.grouped_gemm),
    axes={**ONE, "operands": {"same": False, "f8e4m3": True}, "b": {"b_rows": True}},
    backward=None,
)
grouped_gemm_gated = dataclasses.replace(gated.grouped_gemm_gated, make=general(gated.grouped_gemm_gated), axes=ONE)
grouped_gemm_weights = dataclasses.replace(weights.grouped_gemm_weights, axes=ONE)
grouped_gemm_accumulate = dataclasses.replace(sums.grouped_gemm_accumulate, axes=ONE)
