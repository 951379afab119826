"""``out = epilogue(a @ b.T + bias)``, one or a batch of them, in f16 or bf16, summed in f32.

The tensor cores are the limit if a tile of the output is large: a tile of ``m`` x ``n`` takes ``2 * m * n * k``
operations and reads ``(m + n) * k`` elements. With few rows, reading ``b`` is the limit, and tiles must be small enough
for all multiprocessors to read. So there are several tilings, chosen by the shape of the problem. The code of each
architecture is in its own file: ``_gemm_sm80``, ``_gemm_sm90``, ``_gemm_sm100``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import aot

from ..contracts import gemm as contract
from ..elementwise.activation import Relu, RoundedGelu, RoundedSilu
from . import _gemm_sm80, _gemm_sm90, _gemm_sm100
from ._gemm import Identity

ALIGNMENT = 16  # bytes; TMA and the widest copies need it for addresses and strides
CHUNK = ALIGNMENT // 2  # elements


EPILOGUES = {"identity": Identity, "relu": Relu, "gelu": RoundedGelu, "silu": RoundedSilu}

# A problem takes the first tiling whose condition holds.
SM80_TILINGS = (
    (_gemm_sm80.Tiling(64, 64, warps=(2, 2), stages=4), "m <= 64"),
    (_gemm_sm80.Tiling(128, 128, warps=(2, 4), stages=3), "m > 64"),
)
SM90_TILINGS = (
    (_gemm_sm90.Tiling(64, 64, rows=16), "m <= 16"),
    (_gemm_sm90.Tiling(64, 64), "m <= 64"),
    # With larger tiles, less than half of the multiprocessors would get one.
    (_gemm_sm90.Tiling(64, 128, cluster=2), "m <= 128 or m * n <= 1048576"),
    (_gemm_sm90.Tiling(128, 128, cluster=2), "m > 128"),
)
SM100_TILINGS = (
    (_gemm_sm100.Tiling(64), "m <= 128"),
    (_gemm_sm100.Tiling(256), "m * n >= 8388608"),  # two tiles for each multiprocessor, or more
    (_gemm_sm100.Tiling(128), "m > 128"),
)


def matrix(name: str, dtype: str, rows: Any, columns: Any, row_major: bool, batched: bool) -> aot.Tensor:
    """A matrix, or a batch of matrices, whose rows or columns are a multiple of 16 bytes apart."""
    leading = aot.Dim(f"{name}_stride", divisible_by=CHUNK, bits=64)
    shape, strides = (rows, columns), (leading, 1) if row_major else (1, leading)
    if batched:
        apart = aot.Dim(f"{name}_batch_stride", divisible_by=CHUNK, bits=64)
        shape, strides = ("batch", *shape), (apart, *strides)
    return aot.Tensor(dtype, shape, strides, align=ALIGNMENT)


class Code(NamedTuple):
    """The code for an architecture, what the device fills in, and whether threads or TMA copy."""

    gemm: type
    tilings: tuple[tuple[Any, str], ...]
    supplied: dict[str, Any]
    tma: bool


SM80 = Code(_gemm_sm80.Gemm, SM80_TILINGS, {}, tma=False)
SM90 = Code(_gemm_sm90.Gemm, SM90_TILINGS, {"clusters": aot.ActiveClusters()}, tma=True)
SM100 = Code(_gemm_sm100.Gemm, SM100_TILINGS, {"multiprocessors": aot.Multiprocessors()}, tma=True)
CODE = {"sm_80": SM80, "sm_90a": SM90, "sm_100f": SM100}


@aot.kernel(
    parameters=(
        aot.In("a", "m x k, or a batch of such"),
        aot.In("b", "n x k, or as many"),
        aot.Out("out", "m x n", shape="(*a.shape[:-1], b.shape[-2])", dtype="a.dtype"),
        aot.In("bias", "n, or none", default=None),
    ),
    archs=tuple(CODE),
    choices={"epilogue": {name: index for index, name in enumerate(EPILOGUES)}},
    choice_defaults={"epilogue": "identity"},
    axes={
        "dtype": ("f16", "bf16"),
        "batched": {"matrix": False, "batch": True},
        "bias": {"bias": True, "no_bias": False},
        "a": {"a_rows": True, "a_columns": False},
        "b": {"b_rows": True, "b_columns": False},
    },
    reference=contract.reference,
    inputs=contract.inputs,
    cost=contract.cost,
)
def gemm(target: aot.Target, epilogue: int, dtype: str, batched: bool, bias: bool, a: bool, b: bool) -> list[aot.Spec]:
    """``out = epilogue(a @ b.T + bias)``; ``a`` and ``b`` row- or column-major, ``out`` row-major, summed in f32."""
    code = CODE.get(str(target.arch), SM80)  # portable code is built for later architectures too
    # TMA fills in elements outside of a matrix. If threads copy, each chunk is completely inside or outside.
    m = aot.Dim("m", divisible_by=1 if code.tma or a else CHUNK)
    n = aot.Dim("n", divisible_by=1 if code.tma else CHUNK)
    k = aot.Dim("k", divisible_by=CHUNK if not code.tma and (a or b) else 1)
    arguments: dict[str, Any] = {
        "a": matrix("a", dtype, m, k, a, batched),
        "b": matrix("b", dtype, n, k, b, batched),
        "out": matrix("out", dtype, m, n, True, batched),
        "bias": aot.Tensor(dtype, (n,)) if bias else None,
        "which": aot.Constant(epilogue),  # the code has all epilogues, and dispatch passes this number
        **code.supplied,
        "stream": aot.Stream(),
    }
    # Layers of networks multiply rows with rows: this case gets every tiling, the others one that suits most shapes.
    tilings = code.tilings if a and b and not batched else ((code.tilings[-1][0], ""),)
    specs = []
    for tiling, condition in tilings:
        tiling.validate(target)
        guards = ("k > 0", condition) if condition else ("k > 0",)
        specs.append(aot.Spec(code.gemm(tiling, target, tuple(EPILOGUES.values())), arguments, guards, tiling.label))
    return specs
