"""Products that gradients need, as far as they can be tested without a GPU: what is launched and what is refused."""

from __future__ import annotations

import aot_runtime
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
