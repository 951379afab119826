"""What the contracts of rounding to f8e4m3 in blocks share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._f8 import BLOCK, LARGEST, SMALLEST

# Rows, columns, distance of rows.
SHAPES = (
    (0, 128, 128),
    (1, 128, 128),
    (2, 128, 128),
    (3, 384, 384),
    (5, 256, 384),
    (64, 128, 128),
    (127, 256, 256),
    (128, 128, 128),
    (129, 640, 640),
    (255, 128, 128),
    (257, 256, 256),
    (300, 1152, 1280),
    (1000, 4096, 4096),
    (4100, 1024, 1024),
)
BENCH = ((1024, 1024), (32_768, 4096), (8192, 16_384))


def matrices(make: Any, dtype: str) -> Iterator[Any]:
    for rows, columns, stride in SHAPES:
        yield make.tensor((rows, columns), dtype, stride=stride)
    x = make.tensor((260, 512), dtype)
    x[0, 3], x[1, 130], x[2, 300], x[200, 511] = float("nan"), float("inf"), float("-inf"), float("nan")
    x[3], x[4], x[128:, :128] = 0.0, -0.0, 0.0
    yield x
    y = make.tensor((130, 256), dtype)
    y *= make.torch.finfo(y.dtype).smallest_normal / 8
    y[:, 200] = 1000.0
    yield y


def in_blocks(x: Any, rows: int) -> tuple[Any, Any]:
    """Elements over the scale of their block of ``rows`` x 128, and those scales, in f64."""
    import torch

    x = x.double()
    high, wide = -(-x.shape[0] // rows), x.shape[1] // BLOCK
    padded = torch.zeros(high * rows, x.shape[1], dtype=x.dtype, device=x.device)
    padded[: x.shape[0]] = x
    blocks = padded.view(high, rows, wide, BLOCK)
    largest = blocks.abs().amax((1, 3)).clamp_min(SMALLEST)
    scaled = (blocks * (LARGEST / largest)[:, None, :, None]).clamp(-LARGEST, LARGEST)
    return scaled.view(padded.shape)[: x.shape[0]], largest / LARGEST


def in_blocks_by_torch(x: Any, rows: int) -> tuple[Any, Any]:
    import torch

    scaled, scale = in_blocks(x.float(), rows)
    return scaled.to(torch.float8_e4m3fn), scale.float()
