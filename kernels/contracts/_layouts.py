"""Shapes and layouts that the kernels are checked with: corner cases first, then larger sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Layout:
    """A tensor: rows ``stride`` elements apart, the first ``offset`` elements from an aligned address."""

    shape: tuple[int, ...]
    stride: int | None = None
    offset: int = 0

    def make(self, make: Any, dtype: str) -> Any:
        return make.tensor(self.shape, dtype, stride=self.stride, offset=self.offset)


def special_rows(make: Any, dtype: str, columns: int, positions: int = 24) -> Any:
    """Rows with special values.

    NaN and both infinities, one per row, at each of the first and the last ``positions``. Then rows of zeros of both
    signs, of subnormal numbers, and of subnormal numbers among others.
    """
    places = sorted({*range(min(positions, columns)), *range(max(columns - positions, 0), columns)})
    count = len(places)
    x = make.tensor((3 * count + 4, columns), dtype)
    for row, column in enumerate(places):
        x[row, column], x[count + row, column] = float("nan"), float("inf")
        x[2 * count + row, column] = float("-inf")
    smallest = make.torch.finfo(x.dtype).smallest_normal
    x[-4], x[-3] = 0.0, -0.0
    x[-2] *= smallest / 8
    x[-1, ::2] *= smallest / 8
    return x


def tied_rows(make: Any, dtype: str, columns: int) -> Any:
    """Rows with equal elements: few different values, all the same, and -inf, alone and before the largest."""
    x = make.tensor((8, columns), dtype)
    x[:2] = x[:2].round()
    x[2], x[3], x[4] = 3.0, -0.0, float("-inf")
    x[3, columns // 2 :] = 0.0
    x[5, : columns - 1] = float("-inf")
    x[6, columns // 3 :] = float("nan")
    x[7, ::2] = 1000.0
    return x


def every_value(make: Any, dtype: str, columns: int) -> Any:
    """Every finite number of a dtype of 16 bits, in rows; zeros stand in for the others."""
    torch, device = make.torch, make.tensor((1,), dtype).device
    values = torch.arange(1 << 16, dtype=torch.int32, device=device).to(torch.int16)
    values = values.view(torch.float16 if dtype == "f16" else torch.bfloat16)
    return torch.where(values.isfinite(), values, torch.zeros_like(values)).view(-1, columns)


# Widths of special rows, and how many elements at either end are special: read in chunks, read element by element, read in
# chunks that do not start where rows do, and too long for registers.
SPECIAL = ((24, 24), (25, 24), (200, 24), (201, 24), (601, 24), (40_000, 2), (40_001, 2))

BENCH = (Layout((1024, 1024)), Layout((32_768, 4096)), Layout((8192, 16_384)))

ELEMENTWISE = (
    Layout((0,)),
    Layout((1,)),
    Layout((7,)),
    Layout((8,)),
    Layout((4099,)),
    Layout((4099,), offset=1),
    Layout(((1 << 22) + 5,)),
    Layout((0, 8)),
    Layout((3, 0)),
    Layout((1, 1)),
    Layout((1000, 1)),
    Layout((5, 3)),
    Layout((37, 129)),
    Layout((70_000, 8)),
    Layout((513, 40)),
    Layout((33, 256), stride=512),
    Layout((33, 256), stride=259),
    Layout((33, 256), offset=3),
    Layout((3, 65_537)),
    Layout((2048, 5120)),
)

ROWS = (
    Layout((0, 512)),
    Layout((1, 1)),
    Layout((3, 1)),
    Layout((5, 7)),
    Layout((1, 8)),
    Layout((37, 129)),
    Layout((17, 128)),
    Layout((33, 264)),
    Layout((9, 512)),
    Layout((9, 512), offset=1),
    Layout((9, 512), stride=1024),
    Layout((9, 512), stride=515),
    Layout((11, 777)),
    Layout((13, 1004)),
    Layout((13, 1014), stride=1018, offset=2),
    Layout((7, 1024)),
    Layout((65, 1032)),
    Layout((4096, 4096)),
    Layout((3, 4104)),
    Layout((6, 5120)),
    Layout((5, 8192)),
    Layout((3, 16_384)),
    Layout((3, 16_384), stride=20_000),
    Layout((2, 16_392)),
    Layout((70, 1501)),
    Layout((5, 3001)),
    Layout((1, 50_257)),
    Layout((2, 65_537)),
    Layout((2, 262_136)),
    Layout((2, 262_144)),
    Layout((2, 300_000)),
    Layout((2, 300_001)),
    Layout((4099, 1027)),
    Layout((19, 200)),
    Layout((260, 8208)),
    Layout((259, 8201)),
    Layout((17, 100_000)),
    Layout((2, 131_072)),
    Layout((17, 160_000)),
)

# More short rows than there are warps: several of them share one, and blocks are larger.
SHORT_ROWS = (
    Layout((23, 155), stride=157, offset=1),
    Layout((4111, 77)),
    Layout((8219, 157)),
    Layout((8219, 250), stride=253, offset=3),
    Layout((8203, 301)),
    Layout((16_411, 72)),
    Layout((16_411, 200)),
)
