"""Shipped products in f8, and gated ones, in one dtype: a few tilings of each."""

import dataclasses
from typing import Any

import aot
from kernels.products import gemm_fp8 as narrow
from kernels.products import gemm_gated as gated

ONE = {"dtype": {"bf16": "bf16"}}


def make(target: aot.Target, **values: Any) -> list[aot.Spec]:
    """The first tiling, which takes every product, and the first one whose operands are swapped."""
    first, *others = narrow.gemm_fp8.make(target, **values)
    return [first, next(one for one in others if "swapped" in one.label)]


gemm_fp8 = dataclasses.replace(
    narrow.gemm_fp8, make=make, axes={**ONE, "b": {"f8e4m3": "f8e4m3"}, "scales": {"blocks": True, "rows": False}}
)
gemm_gated = dataclasses.replace(
    gated.gemm_gated,
    make=lambda target, **values: gated.gemm_gated.make(target, **values)[-2:],
    axes=ONE,
    backward=None,
)
