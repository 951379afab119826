"""The numbers of Hopper that kernels share: named barriers and the order of accumulators."""

from __future__ import annotations

from one_lane import run_as_python

BARRIERS = """
from kernels.sm90 import hardware as hw
hw.NamedBarrier = lambda barrier_id, num_threads: barrier_id
for groups in (1, 2, 3):
    barriers = hw.Barriers(groups)
    taken = [kind(group) for kind in (barriers.together, barriers.turn) for group in range(groups)]
    assert len({0, *taken}) == 1 + len(taken), "identifier 0 is that of sync_threads"
    assert set(range(barriers.free, hw.NAMED_BARRIERS)).isdisjoint(taken) and barriers.free < hw.NAMED_BARRIERS
"""


def test_warp_groups_share_no_named_barrier_by_mistake() -> None:
    run_as_python(BARRIERS)


ACCUMULATORS = """
from kernels.sm90 import hardware as hw
for columns in (8, 16, 24, 256):
    count = hw.WGMMA_ROWS * columns // hw.WARP_GROUP
    found = {
        (hw.accumulator_row(thread) + hw.row_offset(v), hw.accumulator_column(thread) + hw.column_offset(v))
        for thread in range(hw.WARP_GROUP) for v in range(count)
    }
    assert found == {(row, column) for row in range(hw.WGMMA_ROWS) for column in range(columns)}, columns
for thread in range(hw.WARP_GROUP):  # rows of a warp lie together: those that do not exist are skipped by whole warps
    assert hw.accumulator_row(thread) // hw.WARP_ROWS == thread // hw.WARP
"""


def test_the_accumulators_of_a_warp_group_are_each_place_of_64_rows_once() -> None:
    run_as_python(ACCUMULATORS)
