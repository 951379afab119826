"""``out = (a @ b.T) * scales``: ``a`` in f8e4m3, ``b`` in f8e4m3 or f8e5m2, ``out`` in bf16 or f16.

The tensor cores of sm_90a multiply f8 twice as fast as f16, but add up with few bits. So sums of 128 products are added in
f32 registers: see ``sm90.mainloop``. Older architectures multiply f8 as f16: see ``_product_sm80``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import aot

from .._device import HOPPER_ARCHS, TMA, forward
from ..contracts._f8 import BLOCK
from ..contracts.products import gemm_fp8 as contract
from ..sm80 import operands as sm80
from ..sm90.epilogue import Epilogue
from ..sm90.mainloop import Mainloop, PromotedMainloop
from ..sm90.tiling import Tiling
from . import _product_sm80
from ._scales import BlockScales, RowScales, ScaledProduct

FAMILY = "fp8"

ALIGNMENT = 16  # bytes; TMA and the widest copies need it for addresses and strides

_T = partial(Tiling, operand_bytes=1, promoted=1, cooperative=True, tall_stores=False, own_partials=True)
# The tilings for sm_90a, for scales of rows and of blocks. What limits them is how fast tiles come into shared memory, so the
# wide ones are the fastest if there is enough to do for all multiprocessors. Split-K is for few tiles with a long k. The height
# of a tile is a multiple of 64, its width of 16: if there are few rows of ``a``, they become columns of the tile, so that few
# are computed in vain. A table for each kind of device chooses among them, as for `gemm`.
SM90_ROWS_CORE = (
    _T(128, 128),
    _T(128, 16, swapped=True),
    _T(128, 16, split_k=4, swapped=True),
    _T(128, 32, swapped=True),
    _T(128, 32, split_k=4, swapped=True),
    _T(128, 48, swapped=True),
    _T(128, 48, split_k=3, swapped=True),
    _T(64, 64),
    _T(64, 96),
    *(_T(64, 128, split_k=blocks) for blocks in (3, 4)),
    _T(64, 160, split_k=2),
    _T(128, 64, swapped=True),
    _T(128, 96, swapped=True),
    _T(128, 96, cluster_n=2, swapped=True),
    *(_T(128, 96, split_k=blocks, swapped=True) for blocks in (2, 3, 4)),
    _T(128, 112, swapped=True),
    *(_T(64, 128, split_k=blocks, swapped=True) for blocks in (2, 4)),
    _T(128, 80),
    _T(128, 128, split_k=2, swapped=True),
    _T(128, 160, buffers=1),
    _T(128, 192, buffers=1),
    *(_T(128, columns, cluster_m=2, buffers=1) for columns in (128, 160, 192)),
    _T(128, 256, side_by_side=True, cluster_m=2),
    _T(128, 144, swapped=True),
    _T(128, 144, split_k=3, swapped=True),
    _T(64, 160, swapped=True),
    _T(128, 160, swapped=True),
    _T(128, 176, swapped=True),
    _T(128, 192, cluster_m=2, buffers=1, swapped=True),
)
SM90_BLOCKS_CORE = (
    _T(128, 96),
    _T(128, 16, split_k=4, swapped=True),
    _T(128, 32, swapped=True),
    _T(128, 32, split_k=2, swapped=True),
    _T(64, 64),
    _T(64, 128),
    *(_T(64, 128, split_k=blocks) for blocks in (2, 3, 4)),
    _T(64, 192),
    _T(128, 128, split_k=2),
    _T(128, 144, swapped=True),
    _T(128, 160, swapped=True),
    _T(128, 160, buffers=1),
    _T(128, 192, buffers=1),
    _T(128, 256, side_by_side=True),
)

# Those that are built with `--tilings all`. Blocks of larger clusters share more of what the L2 cache delivers.
SM90_ROWS_TILINGS = (
    *SM90_ROWS_CORE,
    _T(128, 16, split_k=2, swapped=True),
    _T(128, 80, cluster_m=2, cluster_n=2, swapped=True),
    _T(128, 144, cluster_m=2, buffers=1, swapped=True),
    _T(128, 96, cluster_n=4),
    _T(128, 144, cluster_n=2, buffers=1),
    _T(256, 112, buffers=1, swapped=True),
    *(_T(64, columns, rows=16, cooperative=False) for columns in (48, 64, 96)),
    *(_T(64, columns, rows=16, cooperative=False, split_k=4) for columns in (48, 96)),
    *(_T(128, rows, split_k=2, swapped=True) for rows in (48, 64, 80)),
    _T(64, 96, split_k=2),
    _T(64, 32, swapped=True),
    _T(128, 80, swapped=True),
    *(_T(128, rows, cluster_n=2, swapped=True) for rows in (80, 112)),
    *(_T(128, rows, cluster_m=2, swapped=True) for rows in (160, 176)),
    *(_T(128, rows, cluster_m=4, swapped=True) for rows in (112, 128, 144)),
    _T(256, 128, buffers=1, swapped=True),
    _T(128, 96),
    _T(128, 128, cluster_m=2, swapped=True),
    _T(128, 64, cluster_n=2, swapped=True),
    _T(256, 128, cluster_m=2, buffers=1, swapped=True),
)
SM90_BLOCKS_TILINGS = (
    *SM90_BLOCKS_CORE,
    _T(128, 16, split_k=2, swapped=True),
    _T(64, 96, cluster_m=4, swapped=True),
    *(_T(64, columns, cluster_m=2) for columns in (192, 256)),
    _T(128, 256, side_by_side=True, cluster_m=2),
    _T(64, 64, rows=16),
    _T(64, 32, swapped=True),
    _T(64, 160),
    _T(128, 48, swapped=True),
    _T(128, 80, split_k=2, swapped=True),
    _T(128, 96, split_k=3, swapped=True),
    *(_T(128, columns, cluster_m=2) for columns in (128, 160)),
    _T(128, 192, cluster_m=2, buffers=1),
    _T(128, 160, split_k=2),
    _T(128, 192, split_k=4, buffers=1),
    _T(192, 192, side_by_side=True),
)


_P = sm80.Tiling
SM80_TILINGS = (
    (_P(64, 64, warps=(2, 2), stages=4), ("m <= 64",)),
    (_P(128, 128, warps=(2, 4), stages=3), ("m > 0",)),
)
SM80_BLOCK_TILINGS = ((_P(128, 64, warps=(4, 2), stages=4), ("m > 0",)),)


def rows_of(name: str, dtype: str, *shape: Any) -> aot.Tensor:
    """A matrix, or several, of rows that are a multiple of 16 bytes apart."""
    chunk = ALIGNMENT // aot.Tensor(dtype, ()).element_bytes
    strides = [aot.Dim(f"{name}_stride_{i}", divisible_by=chunk, bits=64) for i in range(len(shape) - 1)]
    return aot.Tensor(dtype, shape, (*strides, 1), align=ALIGNMENT)


def block_scales(name: str, rows: Any) -> aot.Tensor:
    """A scale per block, in any layout."""
    strides = [aot.Dim(f"{name}_stride_{i}", bits=64) for i in range(2)]
    return aot.Tensor("f32", (rows, "k_blocks"), tuple(strides))


def product(tiling: Any, target: aot.Target, scales: str, grouped: bool = False) -> Any:
    """The code for a tiling, which must suit the architecture, with scales of ``rows``, of ``blocks``, or none."""
    if not isinstance(tiling, Tiling):
        tiling.validate(target)
        return _product_sm80.Product(tiling, target, scales, grouped)
    if scales == "blocks":
        return ScaledProduct(BlockScales(tiling), Epilogue(tiling), target, grouped)
    mainloop = PromotedMainloop(tiling) if tiling.promoted else Mainloop(tiling)
    return ScaledProduct(mainloop, (RowScales if scales == "rows" else Epilogue)(tiling), target, grouped)


@aot.kernel(
    parameters=(
        aot.In("a", "m x k, in f8e4m3"),
        aot.In("b", "n x k, in f8e4m3 or f8e5m2"),
        aot.In("a_scale", "one, or m, or m x ceil(k / 128)"),
        aot.In("b_scale", "one, or n, or ceil(n / 128) x ceil(k / 128)"),
        aot.Out("out", "m x n, in bf16 or f16", shape="(a.shape[0], b.shape[0])", dtype="out.dtype"),
    ),
    archs=HOPPER_ARCHS,
    axes={"dtype": ("bf16", "f16"), "b": ("f8e4m3", "f8e5m2"), "scales": {"blocks": True, "rows": False}},
    contract=contract,
    tuned_by=("m", "n", "k"),
    variant_budget=390,  # 97 tilings that tables choose from, in several dtypes
)
def gemm_fp8(target: aot.Target, dtype: str, b: str, scales: bool) -> list[aot.Spec]:
    """``out[i, j] = sum over k of a[i, k] * a_scale * b[j, k] * b_scale``, in the dtype of ``out``.

    The shapes of the scales say what each is for. ``a_scale`` and ``b_scale`` of one dimension: one for the whole matrix,
    or one per row. Of two: one for 128 elements of a row of ``a``, and one for 128 x 128 elements of ``b``. The last ones along
    n and k may be for fewer elements.
    """
    tma = TMA[target.written_for]
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
        tuple(f"{extent}_blocks == ({extent} + {BLOCK - 1}) // {BLOCK}" for extent in "kn")
        if scales
        else ("a_scales == m or a_scales == 1", "b_scales == n or b_scales == 1")
    )
    copied = forward(arguments, "a", "b", "out") if tma else ()
    specs = []
    portable = SM80_BLOCK_TILINGS if scales else SM80_TILINGS
    tilings, core = (SM90_BLOCKS_TILINGS, SM90_BLOCKS_CORE) if scales else (SM90_ROWS_TILINGS, SM90_ROWS_CORE)
    for tiling, prefer in ((tiling, ()) for tiling in tilings) if tma else portable:
        function = product(tiling, target, "blocks" if scales else "rows")
        guards = ("k > 0", *copied, *fitting, *(tiling.guards if tma else ()))
        work = tiling.work() if tma else None
        built = not tma or tiling in core
        specs.append(aot.Spec(function, arguments, guards, tiling.label, prefer=prefer, work=work, core=built))
    return specs
