"""Kernels over rows as far as they can be tested without a GPU: how rows are spread over threads and blocks."""

from __future__ import annotations

from itertools import product
from typing import Any

import aot_runtime
import pytest
from standin import Standin

HEIGHTS = (1, 15, 17, 100, 256, 1024, 6145)
WIDTHS = (1, 7, 64, 127, 136, 511, 1024, 4104, 16_384, 32_776, 66_875, 262_144)
LARGEST_BLOCK, PORTABLE_CLUSTER, WARP = 1024, 8, 32


def launched(cuda: Standin, bundle: aot_runtime.Bundle, kernel: str, m: int, n: int) -> Any:
    """How a matrix of ``m`` rows is launched. Tilings are measured and may change; what follows here may not."""
    cuda.clear()
    x = cuda.tensor((m, n), "bfloat16")
    if kernel == "argmax":
        bundle["argmax"](x, cuda.tensor((m,), "int64"))
    else:
        bundle["rmsnorm"](x, cuda.tensor((n,), "bfloat16"), cuda.tensor((m, n), "bfloat16"))
    (launch,) = cuda.launches
    return launch


@pytest.mark.parametrize("kernel", ["rmsnorm", "argmax"])
def test_every_matrix_has_a_launch_that_the_hardware_takes(
    kernel: str, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    for m, n in product(HEIGHTS, WIDTHS):
        launch = launched(cuda, bundle, kernel, m, n)
        (blocks, *one), (threads, *flat), (cluster, *_) = launch.grid, launch.block, launch.cluster
        assert one == flat == [1, 1], (m, n)
        assert threads % WARP == 0 and WARP <= threads <= LARGEST_BLOCK, (m, n)
        assert cluster <= PORTABLE_CLUSTER and blocks % cluster == 0, (m, n)
        groups = blocks // cluster  # of blocks, each with one row or several
        assert -(-m // threads) <= groups <= m, (m, n)
        assert cluster == 1 or groups == m, "only a row of its own is shared by blocks"


@pytest.mark.parametrize("kernel", ["rmsnorm", "argmax"])
def test_short_rows_share_a_block_and_a_long_one_is_shared_by_blocks(
    kernel: str, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    for n in (1, 64, 127):
        assert launched(cuda, bundle, kernel, 6144, n).grid[0] < 6144
    for n in (65_536, 262_143, 262_144):
        assert launched(cuda, bundle, kernel, 1, n).cluster[0] > 1


def test_no_rows_launch_nothing(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    empty = cuda.tensor((0, 512), "bfloat16")
    bundle["rmsnorm"](empty, cuda.tensor((512,), "bfloat16"), cuda.tensor((0, 512), "bfloat16"))
    taken = cuda.tensor((0, 8), "bfloat16"), cuda.tensor((0, 8), "int64")
    bundle["top_k"](empty, *taken, 8)
    bundle["argmax"](cuda.tensor((0, 777), "bfloat16"), cuda.tensor((0,), "int64"))
    assert cuda.launches == []


@pytest.mark.parametrize(("k", "taken"), [(0, 0), (8, 7), (33, 33)])
def test_more_elements_than_a_warp_keeps_are_refused(
    k: int, taken: int, cuda: Standin, bundle: aot_runtime.Bundle
) -> None:
    results = cuda.tensor((4, taken), "bfloat16"), cuda.tensor((4, taken), "int64")
    with pytest.raises(aot_runtime.ArgumentError, match="k"):
        bundle["top_k"](cuda.tensor((4, 512), "bfloat16"), *results, k)
