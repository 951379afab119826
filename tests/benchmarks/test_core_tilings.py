"""The choice of core tilings: few of them, none far behind all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def core_tilings(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]  # a module
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import core_tilings

    return core_tilings


def test_a_tiling_that_one_product_needs_goes_before_one_that_many_like_a_little(core_tilings) -> None:  # type: ignore[no-untyped-def]
    # By tiling and product. The second is a little faster on most, the third much faster on one.
    times = np.array([[10.0, 10.0, 10.0, 10.0], [9.6, 9.6, 9.6, 10.0], [11.0, 11.0, 11.0, 5.0]])
    assert core_tilings.choose(times, 2) == [0, 2]
    assert core_tilings.choose(times, 3) == [0, 1, 2]
    assert core_tilings.shortfall(times, [0, 1, 2]) == 0


def test_a_choice_is_exchanged_if_that_leaves_less_behind(core_tilings) -> None:  # type: ignore[no-untyped-def]
    """The one that helps most at first is not among the best two others."""
    times = np.array([[10.0, 10.0, 10.0, 10.0], [7.0, 7.0, 7.0, 7.0], [5.0, 5.0, 99.0, 99.0], [99.0, 99.0, 5.0, 5.0]])
    assert core_tilings.choose(times, 3) == [0, 2, 3]


def test_a_product_that_a_tiling_does_not_take_is_no_reason_for_it(core_tilings) -> None:  # type: ignore[no-untyped-def]
    never = core_tilings.NEVER
    times = np.array([[10.0, 10.0], [never, 5.0], [8.0, never]])
    assert core_tilings.choose(times, 2) == [0, 1]
