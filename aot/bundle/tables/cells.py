"""Cells of tables of measured choices, as an entry library has them."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

__all__ = ["packed"]


def packed(bins: Sequence[Sequence[int]], cells: Sequence[int]) -> tuple[bytes, bytes]:
    """The numbers of rows, two bytes each, and the rows. A row has the cells of all bins of the last extent; equal rows are
    there once. There is a number for each combination of bins of the other extents.
    """
    width, content = math.prod(len(own) + 1 for own in bins[-1:]), bytes(cells)
    rows: dict[bytes, int] = {}
    numbers = [rows.setdefault(content[start : start + width], len(rows)) for start in range(0, len(content), width)]
    return struct.pack(f"<{len(numbers)}H", *numbers), b"".join(rows)
