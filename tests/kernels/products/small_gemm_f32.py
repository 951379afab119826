"""The shipped GEMM of f32 at one point of its grid: exact products of two matrices.

Of the tilings for TMA it has the widest, which take most registers. Each of them takes seconds to compile.
"""

import dataclasses
from typing import Any

import aot
from kernels.products import gemm_f32 as shipped

NARROW = {tiling.label for tiling in shipped.SM90_EXACT_TILINGS if tiling.n < 160}


def make(target: aot.Target, **values: Any) -> list[aot.Spec]:
    return [spec for spec in shipped.gemm_f32.make(target, **values) if spec.label not in NARROW]


gemm_f32 = dataclasses.replace(
    shipped.gemm_f32,
    make=make,
    backward=None,
    axes={"batched": {"matrix": False}},
    choices={"epilogue": {"silu": list(shipped.EPILOGUES).index("silu")}, "precision": {"exact": False}},
    choice_defaults={"epilogue": "silu", "precision": "exact"},
)
