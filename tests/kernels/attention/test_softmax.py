"""The order of accumulators in registers, on which the softmax and its masks rely."""

from __future__ import annotations

from one_lane import run_as_python

COVERED = """
from kernels.attention._softmax import elements
for rows, tokens in ((2, 8), (2, 128), (2, 112), (4, 16)):
    count = rows * tokens // 4
    found = [elements(count, row, rows) for row in range(rows)]
    assert sorted(i for row in found for i, _ in row) == list(range(count)), (rows, tokens)
    for row in found:
        columns = sorted(column + 2 * lane for _, column in row for lane in range(4))
        assert columns == list(range(tokens)), (rows, tokens)
"""


def test_rows_share_out_all_accumulators_and_four_threads_all_columns() -> None:
    run_as_python(COVERED)
