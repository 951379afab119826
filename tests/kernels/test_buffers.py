from __future__ import annotations

from itertools import product

import pytest

from kernels._buffers import stores_in_flight


@pytest.mark.parametrize(
    ("stores", "buffers"), [pair for pair in product(range(1, 9), (1, 2, 3)) if pair[1] <= pair[0]]
)
def test_a_buffer_is_filled_only_after_the_store_that_reads_it(stores: int, buffers: int) -> None:
    running: list[int] = []  # the buffers of stores, as late as they may end
    for _ in range(3):
        for index in range(stores):
            allowed = stores_in_flight(index, stores, buffers)
            running = running[len(running) - allowed :] if allowed < len(running) else running
            assert index % buffers not in running
            running.append(index % buffers)


def test_the_other_buffers_may_still_be_read() -> None:
    assert [stores_in_flight(index, 4, 2) for index in range(4)] == [1, 1, 1, 1]
    assert [stores_in_flight(index, 3, 2) for index in range(3)] == [0, 2, 1]
