"""The shipped GEMM of f32 at one point of its grid: every tiling of an exact product of two matrices."""

import dataclasses

from kernels.products import gemm_f32 as shipped

gemm_f32 = dataclasses.replace(
    shipped.gemm_f32,
    backward=None,
    axes={"batched": {"matrix": False}},
    choices={"epilogue": {"silu": list(shipped.EPILOGUES).index("silu")}, "precision": {"exact": False}},
    choice_defaults={"epilogue": "silu", "precision": "exact"},
)
