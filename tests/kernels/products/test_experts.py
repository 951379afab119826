"""Products of experts, as far as they can be tested without a GPU: which tiling is chosen and what is launched."""

from __future__ import annotations

import random
from typing import Any

import aot_runtime
import pytest
from aot_runtime import ArgumentError
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


def rows(cuda: Standin, count: int, dtype: str = "bfloat16", n: int = 256, outputs: int = 256) -> list[Any]:
    """Rows of five experts, their matrices of ``n`` rows, where rows end, and an output."""
    operands = cuda.tensor((count, 128), dtype), cuda.tensor((5, n, 128), dtype)
    return [*operands, cuda.tensor((5,), "int32"), cuda.tensor((count, outputs), "bfloat16")]


def test_rows_of_experts_are_multiplied_by_one_launch_however_they_are_shared(
    cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    """Offsets are on the device: the host must expect that each expert has a tile that is not full."""
    for count in (1, 500, 100_000):
        cuda.clear()
        bundle["grouped_gemm"](*rows(cuda, count))
        (launch,) = cuda.launches
        assert launch.grid[0] // launch.cluster[0] >= min(5, 132 // launch.cluster[0])
    cuda.clear()
    bundle["grouped_gemm"](*rows(cuda, 0))
    assert cuda.launches == []


def test_rows_in_f8_need_scales_and_others_have_none(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    scales = cuda.tensor((500,), "float32"), cuda.tensor((5, 256), "float32")
    bundle["grouped_gemm"](*rows(cuda, 500, "float8_e4m3fn"), *scales)
    assert len(cuda.launches) == 1
    for dtype, given in (("float8_e4m3fn", ()), ("bfloat16", scales)):
        with pytest.raises(ArgumentError, match="scale"):
            bundle["grouped_gemm"](*rows(cuda, 500, dtype), *given)
    with pytest.raises(ArgumentError, match=r"b_scale\.shape"):
        bundle["grouped_gemm"](*rows(cuda, 500, "float8_e4m3fn"), scales[0], cuda.tensor((4, 256), "float32"))
    assert len(cuda.launches) == 1


def test_rows_of_gated_experts_may_be_weighted(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    gated = rows(cuda, 500, n=512)
    bundle["grouped_gemm_gated"](*gated)
    bundle["grouped_gemm_gated"](*gated, cuda.tensor((500,), "float32"))
    plain, weighted = cuda.launches
    assert (plain.kernel, plain.grid) == (weighted.kernel, weighted.grid)
    with pytest.raises(ArgumentError, match="weights"):
        bundle["grouped_gemm_gated"](*gated, cuda.tensor((499,), "float32"))
    with pytest.raises(ArgumentError, match=r"b|both"):
        bundle["grouped_gemm_gated"](*rows(cuda, 500, n=256))


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


def work(tiling: Any, rows: int, experts: int, n: int) -> int:
    """Elements that the busiest of 132 multiprocessors computes, if each expert has as many rows."""
    tiles = experts * -(-rows // tiling.m) * -(-n // (tiling.n * tiling.cluster_n))
    return -(-tiles // (132 // tiling.cluster_n)) * tiling.m * tiling.n


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of CuTe DSL
def test_no_other_tile_for_as_many_rows_leaves_less_of_the_last_round_idle() -> None:
    from kernels.products.grouped_gemm import SM90_NARROW_TILINGS, SM90_TILINGS

    chance, seen = random.Random(0), set[Any]()
    for _ in range(1000):
        experts, rows = chance.choice((4, 8, 16, 32, 64)), chance.randint(129, 512)
        n, k = (chance.choice((1024, 2880, 4096, 5120, 5760, 8192, 14336)) for _ in range(2))
        for tilings in (SM90_TILINGS, SM90_NARROW_TILINGS):
            label = chosen(tilings, experts * rows, experts, n, k)
            (own,) = [tiling for tiling, _ in tilings if tiling.label == label]
            others = [tiling for tiling, _ in tilings if tiling.m == own.m and tiling.m * tiling.n > 128 * 128]
            assert work(own, rows, experts, n) == min(work(one, rows, experts, n) for one in others), (rows, n, label)
            seen.add(own)
    assert len(seen) == 6, "each of the tiles for many rows has products of its own"
