"""Kernels over rows as far as they can be tested without a GPU: how rows are spread over threads and blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import aot_runtime
import pytest
from standin import Standin

from aot.pipeline.settings import BuildResult


@pytest.fixture(scope="module")
def path(build_bundle: Callable[..., BuildResult]) -> Path:
    result = build_bundle(Path(__file__).parent / "small_rows.py", ("sm_90a",), shared_cudart=True)
    assert not result.failures
    return result.path


@pytest.fixture
def rows(path: Path, cuda: Standin) -> aot_runtime.Bundle:
    cuda.reset(capabilities=[(9, 0)], sm_counts=[132])
    return aot_runtime.load(path)


@pytest.mark.parametrize(
    ("m", "n", "block", "cluster"),
    [
        (100, 64, 128, 1),  # sixteen rows to a block
        (100, 136, 128, 1),  # four
        (100, 1024, 128, 1),
        (4096, 1032, 128, 1),
        (4096, 4104, 160, 1),
        (4096, 16_384, 512, 1),
        (4096, 16_392, 544, 1),
        (4096, 32_776, 288, 4),  # a row that one block cannot hold
        (4096, 131_072, 512, 8),
        (16, 262_144, 1024, 8),
        (17, 262_144, 512, 8),  # two blocks on a multiprocessor
        (1, 262_152, 416, 8),  # nor can a cluster: it loops
        (1, 8192, 256, 1),
        (64, 16_384, 512, 1),
        (1, 16_392, 160, 4),
        (1, 65_536, 256, 8),  # a single row, of which one multiprocessor would read too much alone
    ],
)
def test_a_row_gets_as_many_threads_and_blocks_as_it_needs(
    m: int, n: int, block: int, cluster: int, cuda: Standin, rows: aot_runtime.Bundle
) -> None:
    rows["rmsnorm"](cuda.tensor((m, n), "bfloat16"), cuda.tensor((n,), "bfloat16"), cuda.tensor((m, n), "bfloat16"))
    (launch,) = cuda.launches
    per_block = {64: 16, 136: 4, 1024: 4}.get(n, 1)
    assert (launch.block, launch.cluster) == ((block, 1, 1), (cluster, 1, 1))
    assert launch.grid == (-(-m // per_block) * cluster, 1, 1)


@pytest.mark.parametrize("n", [136, 256, 129, 255])
def test_two_short_rows_share_a_warp_if_there_are_more_rows_than_warps(
    n: int, cuda: Standin, rows: aot_runtime.Bundle
) -> None:
    for m in (6144, 6145):
        rows["rmsnorm"](cuda.tensor((m, n), "bfloat16"), cuda.tensor((n,), "bfloat16"), cuda.tensor((m, n), "bfloat16"))
    few, many = cuda.launches
    assert (few.grid, few.block) == ((1536, 1, 1), (128, 1, 1))
    assert (many.grid, many.block) == ((769, 1, 1), (128, 1, 1))


@pytest.mark.parametrize(("n", "per_block"), [(127, 4), (129, 8), (256, 8), (257, 8), (512, 8)])
def test_many_short_rows_of_which_nothing_is_kept_get_blocks_of_256_threads(
    n: int, per_block: int, cuda: Standin, rows: aot_runtime.Bundle
) -> None:
    many = 1024 * per_block
    for m in (many - 1, many):
        x = cuda.tensor((m, n), "bfloat16", strides=(n + 1 - n % 2, 1))
        rows["argmax"](x, cuda.tensor((m,), "int64"))
    small, large = cuda.launches
    assert small.kernel == large.kernel
    assert (small.grid, small.block) == ((1024, 1, 1), (128, 1, 1))
    assert (large.grid, large.block) == ((512, 1, 1), (256, 1, 1))


@pytest.mark.parametrize(
    ("m", "n", "per_block", "block", "cluster"),
    [
        (100, 127, 4, 128, 1),  # element by element, four rows to a block
        (100, 129, 8, 128, 1),  # whole chunks, wherever they start
        (100, 511, 8, 128, 1),
        (100, 777, 4, 128, 1),
        (4096, 4097, 4, 128, 1),  # many rows: a warp loops over each
        (200, 4095, 1, 128, 1),
        (200, 8191, 1, 256, 1),
        (255, 8201, 1, 160, 2),  # so few rows are cut
        (256, 8201, 1, 160, 1),
        (4096, 66_875, 1, 256, 1),
        (1, 66_875, 1, 288, 8),  # few long rows: several blocks for each, which read it in one step
        (15, 262_143, 1, 1024, 8),
        (16, 262_143, 1, 256, 8),
    ],
)
def test_rows_of_any_width_are_read_in_chunks_unless_they_are_short(
    m: int, n: int, per_block: int, block: int, cluster: int, cuda: Standin, rows: aot_runtime.Bundle
) -> None:
    rows["argmax"](cuda.tensor((m, n), "bfloat16"), cuda.tensor((m,), "int64"))
    (launch,) = cuda.launches
    assert (launch.block, launch.cluster) == ((block, 1, 1), (cluster, 1, 1))
    assert launch.grid == (-(-m // per_block) * cluster, 1, 1)


@pytest.mark.parametrize(
    ("m", "n", "block"),
    [
        (1023, 1025, 128),
        (1023, 2047, 128),
        (1024, 1025, 64),  # many rows: each has as many threads as it needs
        (1023, 2057, 96),
    ],
)
def test_few_rows_of_odd_widths_have_128_threads_each(
    m: int, n: int, block: int, cuda: Standin, rows: aot_runtime.Bundle
) -> None:
    rows["rmsnorm"](cuda.tensor((m, n), "bfloat16"), cuda.tensor((n,), "bfloat16"), cuda.tensor((m, n), "bfloat16"))
    (launch,) = cuda.launches
    assert (launch.grid, launch.block, launch.cluster) == ((m, 1, 1), (block, 1, 1), (1, 1, 1))


@pytest.mark.parametrize(
    ("m", "n", "block"),
    [(256, 257, 128), (256, 511, 128), (295, 525, 256), (1023, 1023, 256), (1024, 1023, 64), (295, 1029, 96)],
)
def test_few_rows_of_f32_with_a_residual_are_read_element_by_element(
    m: int, n: int, block: int, cuda: Standin, rows: aot_runtime.Bundle
) -> None:
    x, residual, weight, out, residual_out = (
        cuda.tensor(shape, "float32") for shape in ((m, n), (m, n), (n,), (m, n), (m, n))
    )
    rows["rmsnorm_residual"](x, residual, weight, out, residual_out)
    (launch,) = cuda.launches
    assert (launch.grid, launch.block, launch.cluster) == ((m, 1, 1), (block, 1, 1), (1, 1, 1))


def test_more_rows_of_f32_with_a_residual_are_read_in_chunks(cuda: Standin, rows: aot_runtime.Bundle) -> None:
    matrix, row = (257, 511), (511,)
    rows["rmsnorm_residual"](*(cuda.tensor(shape, "float32") for shape in (matrix, matrix, row, matrix, matrix)))
    (launch,) = cuda.launches
    assert (launch.grid, launch.block) == ((65, 1, 1), (128, 1, 1))


def test_halves_of_rows_are_read_in_the_widest_chunks_unless_they_are_short(
    cuda: Standin, rows: aot_runtime.Bundle
) -> None:
    for n in (1004, 1002, 1001, 513, 191, 9, 7):
        rows["silu_and_mul"](cuda.tensor((64, 2 * n), "bfloat16"), cuda.tensor((64, n), "bfloat16"))
    apart = cuda.tensor((64, 382), "bfloat16", strides=(385, 1)), cuda.tensor((64, 191), "bfloat16")
    rows["silu_and_mul"](*apart)
    assert [launch.grid[0] for launch in cuda.launches] == [32, 32, 32, 16, 6, 1, 1, 8]
    eight_bytes, four_bytes, chunks, few_chunks, flat, short_flat, elements, with_gaps = (
        launch.kernel for launch in cuda.launches
    )
    assert chunks == few_chunks == with_gaps
    assert flat == short_flat
    assert len({eight_bytes, four_bytes, chunks, flat, elements}) == 5


def test_no_rows_launch_nothing(cuda: Standin, rows: aot_runtime.Bundle) -> None:
    empty = cuda.tensor((0, 512), "bfloat16")
    rows["rmsnorm"](empty, cuda.tensor((512,), "bfloat16"), cuda.tensor((0, 512), "bfloat16"))
    taken = cuda.tensor((0, 8), "bfloat16"), cuda.tensor((0, 8), "int64")
    rows["top_k"](empty, *taken, 8)
    rows["argmax"](cuda.tensor((0, 777), "bfloat16"), cuda.tensor((0,), "int64"))
    rows["silu_and_mul"](cuda.tensor((0, 1002), "bfloat16"), cuda.tensor((0, 501), "bfloat16"))
    angles = cuda.tensor((0, 64), "float32"), cuda.tensor((0, 64), "float32")
    rows["rope"](cuda.tensor((0, 4, 128), "bfloat16"), *angles, cuda.tensor((0, 4, 128), "bfloat16"))
    assert cuda.launches == []


@pytest.mark.parametrize(("k", "taken"), [(0, 0), (8, 7), (33, 33)])
def test_more_elements_than_a_warp_keeps_are_refused(
    k: int, taken: int, cuda: Standin, rows: aot_runtime.Bundle
) -> None:
    results = cuda.tensor((4, taken), "bfloat16"), cuda.tensor((4, taken), "int64")
    with pytest.raises(aot_runtime.ArgumentError, match="k"):
        rows["top_k"](cuda.tensor((4, 512), "bfloat16"), *results, k)
