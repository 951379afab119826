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
from ..products import _product_sm80, _product_sm90
from ..products._order import BLOCK, Scaling

ALIGNMENT = 16  # bytes; TMA and the widest copies need it for addresses and strides

_T = _product_sm90.Tiling
# The tilings for sm_90a, with models of the time that each takes, for scales of rows and of blocks, fitted to measurements
# on an H200. What limits them is how fast tiles come into shared memory, so the wide ones are the fastest if there is enough
# to do for all multiprocessors. If there are few tiles and k is long, blocks cut the sum. The height of a tile is a multiple
# of 64, its width of 16: if there are few rows of ``a``, they become columns of the tile, so that few are computed in vain.
SM90_ROWS = (
    (_T(128, 16, swapped=True), Model(201808, 56, 21220, 64, 84)),
    (_T(128, 16, split=4, swapped=True), Model(157269, 20, 124596, 50, 30)),
    (_T(128, 32, swapped=True), Model(206116, 67, 20550, 63, 85)),
    (_T(128, 32, split=4, swapped=True), Model(140474, 22, 164615, 45, 32)),
    (_T(128, 48, swapped=True), Model(238670, 68, 21521, 60, 107)),
    (_T(64, 64), Model(240737, 73, 4069, 50, 61)),
    (_T(128, 64, swapped=True), Model(230850, 79, 35873, 58, 112)),
    (_T(64, 128, split=3), Model(156185, 24, 213167, 35, 65)),
    (_T(64, 128, split=4), Model(93401, 24, 223561, 41, 40)),
    (_T(128, 96, swapped=True), Model(226626, 133, 48511, 49, 110)),
    (_T(128, 96, split=2, swapped=True), Model(138246, 57, 288400, 47, 73)),
    (_T(128, 112, swapped=True), Model(237529, 121, 102326, 45, 134)),
    (_T(64, 128, split=2, swapped=True), Model(0, 59, 408761, 15, 44)),
    (_T(64, 128, split=4, swapped=True), Model(39203, 25, 338095, 0, 42)),
    (_T(128, 128), Model(221071, 151, 98052, 39, 136)),
    (_T(128, 128, split=2), Model(18721, 117, 439220, 38, 27)),
    (_T(128, 144, swapped=True), Model(258594, 167, 113105, 31, 158)),
    (_T(128, 144, split=3, swapped=True), Model(36367, 54, 509587, 26, 56)),
    (_T(64, 160, swapped=True), Model(282507, 98, 56175, 16, 150)),
    (_T(128, 160, swapped=True), Model(245718, 195, 107866, 28, 151)),
    (_T(128, 160, buffers=1), Model(224449, 171, 134377, 42, 176)),
    (_T(128, 176, swapped=True), Model(238204, 228, 166866, 21, 150)),
    (_T(128, 192, buffers=1), Model(202843, 238, 157294, 40, 162)),
    (_T(128, 192, cluster=2, buffers=1, swapped=True), Model(271477, 274, 139062, 21, 126)),
    (_T(128, 256, beside=True, cluster=2), Model(220500, 423, 166809, 5, 154)),
)
SM90_BLOCKS = (
    (_T(128, 16, split=4, swapped=True), Model(116592, 30, 165745, 30, 38)),
    (_T(128, 32, swapped=True), Model(233390, 140, 55855, 50, 52)),
    (_T(128, 32, split=2, swapped=True), Model(114573, 56, 203635, 49, 56)),
    (_T(64, 64), Model(250809, 145, 32604, 25, 38)),
    (_T(64, 128), Model(311531, 140, 18088, 45, 95)),
    (_T(64, 128, split=2), Model(82331, 76, 289660, 36, 53)),
    (_T(64, 128, split=3), Model(179463, 49, 186170, 23, 56)),
    (_T(64, 128, split=4), Model(160603, 41, 159282, 20, 45)),
    (_T(64, 192), Model(303577, 157, 18408, 45, 153)),
    (_T(128, 96), Model(298816, 200, 27888, 20, 108)),
    (_T(128, 128, split=2), Model(116197, 124, 377485, 25, 63)),
    (_T(128, 144, swapped=True), Model(260326, 379, 129636, 5, 89)),
    (_T(128, 160, swapped=True), Model(293131, 392, 95125, 0, 125)),
    (_T(128, 160, buffers=1), Model(222172, 161, 143577, 30, 236)),
    (_T(128, 192, buffers=1), Model(284534, 352, 73719, 31, 140)),
    (_T(128, 256, beside=True), Model(185203, 292, 151322, 29, 322)),
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
        guards = ["k > 0", *fitting]
        if tma and tiling.split > 1:
            guards.append(f"k >= {tiling.least_k}")
        specs.append(aot.Spec(function, arguments, tuple(guards), tiling.label, prefer=(condition,)))
    return specs
