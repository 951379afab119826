"""The shipped GEMM at a few points of its grid: every core tiling of every architecture, in one dtype."""

import dataclasses

from kernels.products import gemm as shipped

gemm = dataclasses.replace(
    shipped.gemm,
    backward=None,
    axes={
        "dtype": {"f16": "f16"},
        "batched": {"matrix": False, "batch": True},
        "a": {"a_rows": True},
        "b": {"b_rows": True},
    },
    choices={"epilogue": {"silu": list(shipped.EPILOGUES).index("silu")}},
    choice_defaults={"epilogue": "silu"},
)
