"""What the contracts of backward kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._layouts import ROWS, Layout, special_rows

# Rows of the sums that a kernel hands from its first stage to its second one: as many as four blocks on each
# multiprocessor of an H200, and fewer if rows are long, so that the sums are small beside what is added up.
MOST_GROUPS, LEAST_GROUPS, GROUP_SUMS = 528, 128, 1 << 22


def group_sums(terms: Any) -> Any:
    """Sums over rows in groups; row ``i`` belongs to group ``i % groups``."""
    rows, columns = terms.shape
    groups = min(rows, max(LEAST_GROUPS, min(MOST_GROUPS, GROUP_SUMS // (columns + 1))))
    if groups == 0 or columns == 0:
        return terms[:groups]
    padded = terms.new_zeros(-(-rows // groups) * groups, columns)
    padded[:rows] = terms
    return padded.view(-1, groups, columns).sum(0)


def norm_inputs(make: Any, dtype: str) -> Iterator[Any]:
    """Matrices to normalize, among them some with more rows than there are groups.

    None has a single column: its normalized elements are all 1 or -1, so the gradient is nothing but what rounding left.
    """
    wide = [layout for layout in ROWS if layout.shape[1] > 1]
    for layout in (*wide, Layout((130, 24)), Layout((1029, 129)), Layout((3000, 264))):
        yield layout.make(make, dtype)
    for columns in (24, 40_000):  # held in registers, and not
        x = make.tensor((6, columns), dtype)
        x[0, 3], x[1, 5] = float("inf"), float("-inf")
        yield x
        x = make.tensor((3, columns), dtype)
        x[1, 2] = float("nan")
        yield x
    yield special_rows(make, dtype, 25, 0)  # zeros and subnormal numbers alone


def norm_call(make: Any, x: Any, dtype: str) -> dict[str, Any]:
    """The arguments of the backward of a norm of ``x``."""
    return {"grad_out": make.tensor(tuple(x.shape), dtype), "x": x, "weight": make.tensor(x.shape[1:], dtype)}
