"""Numbers and texts as people read them."""

from __future__ import annotations

import pytest

from aot.cli.report import first_line, human_time


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 0 s"), (61.4, "1 min 1 s"), (179.6, "3 min 0 s")],
)
def test_seconds_never_reach_sixty(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


def test_the_first_line_of_a_documentation_leaves_the_terminal_alone() -> None:
    assert first_line("Adds ``x``.\nMore.") == "Adds `x`."
    assert first_line("Adds\x1b[2K\x07 x.\x85More") == "Adds[2K x."
    assert first_line("") == ""
