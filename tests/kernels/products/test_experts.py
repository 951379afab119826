"""Products of experts, as far as they can be tested without a GPU: which tiling is chosen and what is launched."""

from __future__ import annotations

from typing import Any

import aot_runtime
import pytest
from standin import Standin


def test_experts_have_a_block_for_each_tile_also_without_rows(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    for rows in (0, 500):
        cuda.clear()
        a, b = cuda.tensor((rows, 264), "bfloat16"), cuda.tensor((rows, 128), "bfloat16")
        out, offsets = cuda.tensor((5, 264, 128), "bfloat16"), cuda.tensor((5,), "int32")
        bundle["grouped_gemm_weights"](a, b, offsets, out)
        (launch,) = cuda.launches
        assert launch.grid[0] == 5 * 3


def test_products_of_experts_are_added_in_place(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    a, b = cuda.tensor((500, 264), "bfloat16"), cuda.tensor((500, 128), "bfloat16")
    total, offsets = cuda.tensor((5, 264, 128), "float32"), cuda.tensor((5,), "int32")
    bundle["grouped_gemm_accumulate"](a, b, offsets, total, total)
    bundle["grouped_gemm_accumulate"](a, b, offsets, total)
    assert [launch.grid[0] for launch in cuda.launches] == [5 * 3] * 2


def chosen(tilings: Any, m: int, experts: int, n: int, k: int) -> str:
    own = {"m": m, "experts": experts, "n": n, "k": k}
    return next(tiling.label for tiling, condition in tilings if eval(condition, {}, own))


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of CuTe DSL
def test_the_contract_has_a_product_for_every_tiling_of_experts() -> None:
    from kernels.contracts.products.grouped_gemm import CASES
    from kernels.products.grouped_gemm import SM90_NARROW_TILINGS, SM90_TILINGS

    for tilings in (SM90_TILINGS, SM90_NARROW_TILINGS):
        found = {chosen(tilings, sum(rows), len(rows), n, k) for rows, n, k in CASES if sum(rows)}
        assert found == {tiling.label for tiling, _ in tilings}


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of CuTe DSL
def test_tiles_of_experts_leave_little_of_the_last_round_idle() -> None:
    """Rows of every expert, n, and the tile with the fewest columns per multiprocessor: 132 of them share the tiles."""
    from kernels.products.grouped_gemm import SM90_NARROW_TILINGS, SM90_TILINGS

    for experts, rows, n, k, tile in (
        (32, 192, 5760, 2880, "tile192x128"),  # 11 rounds of 1440 tiles; 12 of 736 clusters
        (32, 192, 4096, 7168, "tile192x128_cluster1x2"),  # 8 rounds either way
        (8, 384, 5120, 8192, "tile128x192"),  # 5 rounds, against 4 of tiles that are 4/3 as wide
        (16, 188, 4096, 4096, "tile192x128_cluster1x2"),
        (4, 444, 4096, 14336, "tile128x256_cooperative"),  # 2 rounds, against 3
    ):
        assert chosen(SM90_TILINGS, experts * rows, experts, n, k) == tile
    assert chosen(SM90_NARROW_TILINGS, 8 * 384, 8, 5120, 8192) == "tile128x192_cooperative"
    assert chosen(SM90_NARROW_TILINGS, 4 * 444, 4, 4096, 14336) == "tile128x256_cooperative"
