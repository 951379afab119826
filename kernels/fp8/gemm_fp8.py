"""``out = (a @ b.T) * scales``: ``a`` in f8e4m3, ``b`` in f8e4m3 or f8e5m2, ``out`` in bf16 or f16.

The tensor cores of sm_90a multiply f8 twice as fast as f16, but add up with few bits. So sums of 128 products are added in
f32 registers: see ``_product_sm90``. Older architectures multiply f8 as f16: see ``_product_sm80``.
"""

from __future__ import annotations

from typing import Any

import aot

from .._device import ARCHS
from ..contracts import gemm_fp8 as contract
from ..gemm._choice import Model, fastest
from . import _product_sm80, _product_sm90
from ._order import BLOCK, Scaling

ALIGNMENT = 16  # bytes; TMA and the widest copies need it for addresses and strides

_T = _product_sm90.Tiling
# The tilings for sm_90a, with models of the time that each takes, for scales of rows and of blocks. What limits them is how
# fast tiles come into shared memory, so the wide ones are the fastest if there is enough to do for all multiprocessors.
# Fitted to measurements on an H200, except for 64 x 32 and for 128 x 192 with scales of rows: those follow from the bytes.
# If there are few rows, the others of a tile are not loaded. With a scale per row or one for all, three of these tiles were
# measured on an H200; 16 x 128 follows from 64 x 128.
SM90_ROWS = (
    (_T(64, 32, rows=16), Model(20000, 168, 0)),
    (_T(64, 64, rows=16), Model(140000, 164, 0)),
    (_T(64, 128, rows=16), Model(200000, 200, 60000)),
    (_T(64, 64, rows=32), Model(160000, 164, 0)),
    (_T(64, 32), Model(250000, 125, 50000)),
    (_T(64, 64), Model(260000, 168, 60000)),
    (_T(64, 128), Model(240000, 250, 80000)),
    (_T(128, 64), Model(220000, 262, 80000)),
    (_T(128, 128), Model(161651, 317, 150937)),
    (_T(128, 192, cluster=2, buffers=1), Model(161651, 415, 250000)),
)
SM90_BLOCKS = (
    (_T(64, 32), Model(270000, 165, 50000)),
    (_T(64, 64), Model(280000, 222, 60000)),
    (_T(64, 128), Model(215000, 325, 80000)),
    (_T(128, 64), Model(280000, 297, 80000)),
    (_T(128, 128), Model(179949, 430, 103359)),
    (_T(128, 192, cluster=2, buffers=1), Model(156287, 547, 203232)),
)


def modelled(tilings: tuple[tuple[_product_sm90.Tiling, Model], ...]) -> list[tuple[_product_sm90.Tiling, str]]:
    """Each tiling with the condition that none of the others is faster."""
    return [(tiling, condition) for (tiling, _), condition in zip(tilings, fastest(tilings), strict=True)]


_P = _product_sm80.Tiling
SM80_TILINGS = (
    (_P(64, 64, warps=(2, 2), stages=4), "m <= 64"),
    (_P(128, 128, warps=(2, 4), stages=3), "m > 0"),
)
SM80_BLOCK_TILINGS = ((_P(128, 64, warps=(4, 2), stages=4), "m > 0"),)


def rows_of(name: str, dtype: str, *shape: Any) -> aot.Tensor:
    """A matrix, or several, of rows that are a multiple of 16 bytes apart."""
    chunk = ALIGNMENT // aot.Tensor(dtype, ()).element_bytes
    strides = [aot.Dim(f"{name}_stride_{i}", divisible_by=chunk, bits=64) for i in range(len(shape) - 1)]
    return aot.Tensor(dtype, shape, (*strides, 1), align=ALIGNMENT)


def block_scales(name: str, rows: Any) -> aot.Tensor:
    """A scale per block, in any layout."""
    strides = [aot.Dim(f"{name}_stride_{i}", bits=64) for i in range(2)]
    return aot.Tensor("f32", (rows, "k_blocks"), tuple(strides))


def product(tiling: Any, target: aot.Target, scaling: Scaling, grouped: bool = False) -> Any:
    """The code for a tiling, which must suit the architecture."""
    if isinstance(tiling, _product_sm90.Tiling):
        tiling.validate(target, scaling)
        return _product_sm90.Product(tiling, target, scaling, grouped)
    tiling.validate(target)
    return _product_sm80.Product(tiling, target, scaling, grouped)


@aot.kernel(
    parameters=(
        aot.In("a", "m x k, in f8e4m3"),
        aot.In("b", "n x k, in f8e4m3 or f8e5m2"),
        aot.In("a_scale", "one, or m, or m x k / 128"),
        aot.In("b_scale", "one, or n, or n / 128 x k / 128"),
        aot.Out("out", "m x n, in bf16 or f16", shape="(a.shape[0], b.shape[0])", dtype="out.dtype"),
    ),
    archs=ARCHS,
    axes={"dtype": ("bf16", "f16"), "b": ("f8e4m3", "f8e5m2"), "scales": {"blocks": True, "rows": False}},
    reference=contract.reference,
    inputs=contract.inputs,
    cost=contract.cost,
)
def gemm_fp8(target: aot.Target, dtype: str, b: str, scales: bool) -> list[aot.Spec]:
    """``out[i, j] = sum over k of a[i, k] * a_scale * b[j, k] * b_scale``, in the dtype of ``out``.

    The shapes of the scales say what each is for. ``a_scale`` and ``b_scale`` of one dimension: one for the whole matrix,
    or one per row. Of two: one for 128 elements of a row of ``a``, and one for 128 x 128 elements of ``b``.
    """
    tma = str(target.arch) == "sm_90a"
    # TMA fills in elements outside of a matrix. If threads copy, each chunk is completely inside or outside.
    m, n = aot.Dim("m"), aot.Dim("n", divisible_by=1 if tma else ALIGNMENT // 2)
    k = aot.Dim("k", divisible_by=1 if tma else ALIGNMENT)
    arguments: dict[str, Any] = {
        "a": rows_of("a", "f8e4m3", m, k),
        "b": rows_of("b", b, n, k),
        "out": rows_of("out", dtype, m, n),
        "a_scale": block_scales("a_scale", m) if scales else aot.Tensor("f32", ("a_scales",)),
        "b_scale": block_scales("b_scale", "n_blocks") if scales else aot.Tensor("f32", ("b_scales",)),
        "offsets": aot.Constant(None),
        **({"clusters": aot.ActiveClusters()} if tma else {}),
        "stream": aot.Stream(),
    }
    fitting = (
        (f"k == {BLOCK} * k_blocks", f"n_blocks == (n + {BLOCK - 1}) // {BLOCK}")
        if scales
        else ("a_scales == m or a_scales == 1", "b_scales == n or b_scales == 1")
    )
    specs = []
    portable = SM80_BLOCK_TILINGS if scales else SM80_TILINGS
    for tiling, condition in modelled(SM90_BLOCKS if scales else SM90_ROWS) if tma else portable:
        function = product(tiling, target, Scaling("blocks" if scales else "rows", promoted=True))
        few = (f"m <= {tiling.rows}",) if tma and tiling.rows else ()
        specs.append(aot.Spec(function, arguments, ("k > 0", *few, *fitting), tiling.label, prefer=(condition,)))
    return specs
