"""``out = a @ b[expert].T`` for rows that belong to experts, in bf16, f16 or f8e4m3.

Only the device knows how many rows each expert has, so blocks find their tiles there: see ``_scheduler``. A tile never
has rows of two experts. What an expert's last tile has below its rows is computed and not written.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import aot

from .._device import HOPPER_ARCHS, TMA, forward
from ..contracts.products import grouped_gemm as contract
from ..sm80 import operands as sm80
from ..sm90.tiling import Tiling
from .gemm_fp8 import ALIGNMENT, product, rows_of

FAMILY = "experts"

_T = Tiling
_F8 = partial(Tiling, operand_bytes=1, promoted=1)
MULTIPROCESSORS = 132  # of most Hopper GPUs


def rounds(rows: int, columns: int, blocks: int = 1) -> str:
    """How many tiles each multiprocessor computes at most, if all experts have equally many rows.

    ``blocks`` side by side form a cluster, whose tiles all exist, some of them outside of the output.
    """
    tiles = f"experts * ((m - 1) // ({rows} * experts) + 1) * ((n - 1) // {blocks * columns} + 1)"
    return f"(({tiles} - 1) // {MULTIPROCESSORS // blocks} + 1)"


# By the rows that an expert has in the mean. The first whose condition holds computes a product. A tile of 256 columns is 4/3 of
# one of 192: which of them leaves less of the last round idle? If they are even, short sums leave much to store, and a pingpong tile
# is stored while the next one is multiplied.
WIDE, NARROW = f"4 * {rounds(128, 256)}", f"3 * {rounds(128, 192)}"
SM90_TILINGS = (
    (_T(64, 128, cluster_n=2), "m <= 64 * experts"),
    (_T(128, 128, cluster_n=2), "m <= 128 * experts"),
    (_T(192, 128, cluster_n=2, buffers=1), f"m <= 192 * experts and {rounds(192, 128, 2)} <= {rounds(192, 128)}"),
    (_T(192, 128, buffers=1), "m <= 192 * experts"),
    (
        _T(128, 256, cooperative=True, buffers=1),
        f"m <= 512 * experts and ({WIDE} < {NARROW} or {WIDE} == {NARROW} and k > 2048)",
    ),
    (_T(128, 192, buffers=1), "m > 0"),
)
SM90_NARROW_TILINGS = (
    (_F8(64, 64, cooperative=True), "m <= 4 * experts and n * experts <= 32768"),
    (_F8(64, 128), "m <= 64 * experts"),
    (_F8(128, 192, cooperative=True, buffers=1), f"m <= 128 * experts or {NARROW} < {WIDE}"),
    (_F8(128, 256, cooperative=True, side_by_side=True, buffers=1), "m > 0"),
)
_P = sm80.Tiling
SM80_TILINGS = (
    (_P(64, 64, warps=(2, 2), stages=4), "m <= 64 * experts"),
    (_P(128, 128, warps=(2, 4), stages=3), "m > 0"),
)


def columns_of(name: str, dtype: str, count: Any, rows: Any, columns: Any) -> aot.Tensor:
    """Several matrices whose columns are a multiple of 16 bytes apart."""
    chunk = ALIGNMENT // aot.Tensor(dtype, ()).element_bytes
    apart, stride = (aot.Dim(f"{name}_stride_{i}", divisible_by=chunk, bits=64) for i in range(2))
    return aot.Tensor(dtype, (count, rows, columns), (apart, 1, stride), align=ALIGNMENT)


@aot.kernel(
    parameters=(
        aot.In("a", "rows x k: the rows of the first expert, those of the second, and so on"),
        aot.In("b", "experts x n x k, row-major; column-major too unless it is f8e4m3"),
        aot.In("offsets", "per expert: the row after its last one; the same as the previous one if it has none"),
        aot.Out("out", "rows x n", shape="(a.shape[0], b.shape[1])", dtype="out.dtype"),
        aot.In("a_scale", "per row; none unless `a` is f8e4m3", default=None),
        aot.In("b_scale", "experts x n; none unless `b` is f8e4m3", default=None),
    ),
    archs=HOPPER_ARCHS,
    axes={
        "dtype": ("bf16", "f16"),
        "operands": {"same": False, "f8e4m3": True},
        "b": {"b_rows": True, "b_columns": False},
    },
    contract=contract,
    backward=aot.Composed(
        a="grouped_gemm(grad_out, b.mT, offsets)",
        b="grouped_gemm_weights(grad_out, a, offsets)",
        adds={"b": "grouped_gemm_accumulate(grad_out, a, offsets, main_grad)"},
    ),
)
def grouped_gemm(target: aot.Target, dtype: str, operands: bool, b: bool) -> list[aot.Spec]:
    """``out[i] = b[expert of row i] @ a[i]``, summed in f32; with scales if ``a`` and ``b`` are f8e4m3.

    Offsets are read on the device, so a captured CUDA graph may be replayed after they changed. They must not decrease.
    Rows after the last offset are not written.
    """
    if operands and not b:
        return []  # gradients are not f8
    tma = TMA[target.written_for]
    stored = "f8e4m3" if operands else dtype
    chunk = ALIGNMENT // aot.Tensor(stored, ()).element_bytes
    m, n = aot.Dim("m"), aot.Dim("n", divisible_by=ALIGNMENT // 2)
    k = aot.Dim("k", divisible_by=1 if tma else chunk)
    arguments: dict[str, Any] = {
        "a": rows_of("a", stored, m, k),
        "b": rows_of("b", stored, "experts", n, k) if b else columns_of("b", stored, "experts", n, k),
        "out": rows_of("out", dtype, m, n),
        "a_scale": aot.Tensor("f32", (m,)) if operands else None,
        "b_scale": aot.Tensor("f32", ("experts", n)) if operands else None,
        "offsets": aot.Tensor("i32", ("experts",)),
        **({"clusters": aot.ActiveClusters()} if tma else {}),
        "stream": aot.Stream(),
    }
    scales = "rows" if operands else ""
    tilings = (SM90_NARROW_TILINGS if operands else SM90_TILINGS) if tma else SM80_TILINGS
    copied = forward(arguments, "a", "b", "out") if tma else ()
    specs = []
    for tiling, condition in tilings:
        function = product(tiling, target, scales, grouped=True)
        specs.append(aot.Spec(function, arguments, ("k > 0", *copied), tiling.label, prefer=(condition,)))
    return specs
