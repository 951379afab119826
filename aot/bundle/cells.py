"""Cells of tables of measured choices, as an entry library has them."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

__all__ = ["packed"]


def packed(bins: Sequence[Sequence[int]], cells: Sequence[int]) -> tuple[bytes, bytes]:
    """A set as an entry library has it: for each combination of bins of all extents but the last, the number of a row of cells, in two
    bytes, and the rows, of which equal ones are there once.
    """
    width, content = math.prod(len(own) + 1 for own in bins[-1:]), bytes(cells)
    rows: dict[bytes, int] = {}
    numbers = [rows.setdefault(content[start : start + width], len(rows)) for start in range(0, len(content), width)]
    return struct.pack(f"<{len(numbers)}H", *numbers), b"".join(rows)
