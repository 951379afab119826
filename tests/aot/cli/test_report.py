"""Numbers as people read them."""

from __future__ import annotations

import pytest

from aot.cli.report import human_time


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 0 s"), (61.4, "1 min 1 s"), (179.6, "3 min 0 s")],
)
def test_seconds_never_reach_sixty(seconds: float, text: str) -> None:
    assert human_time(seconds) == text
