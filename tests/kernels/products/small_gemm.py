"""The shipped GEMM at a few points of its grid, in one dtype: of core tilings that differ in their width alone, the widest.

A narrower one is the same code with fewer registers.
"""

import dataclasses
from typing import Any

import aot
from kernels.products import gemm as shipped


def _schedule(tiling: Any) -> Any:
    return dataclasses.replace(tiling, n=0, buffers=0)


CORE = [choice.tiling for choice in shipped.SM90_CHOICES if choice.core]
WIDEST = {_schedule(tiling): tiling.label for tiling in sorted(CORE, key=lambda tiling: tiling.n)}
NARROW = {tiling.label for tiling in CORE} - set(WIDEST.values())


def make(target: aot.Target, **values: Any) -> list[aot.Spec]:
    return [spec for spec in shipped.gemm.make(target, **values) if spec.label not in NARROW]


gemm = dataclasses.replace(
    shipped.gemm,
    make=make,
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
