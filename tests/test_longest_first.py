"""The order of the files of a run."""

from __future__ import annotations

import pytest
from longest_first import LONGEST, place_of
from places import PROJECT


@pytest.mark.parametrize("name", LONGEST)
def test_what_goes_first_is_there(name: str) -> None:
    path = PROJECT / name
    assert path.is_dir() if name.endswith("/") else path.is_file()


def test_the_tests_of_a_file_stay_together(request: pytest.FixtureRequest) -> None:
    files = [item.nodeid.partition("::")[0] for item in request.session.items]
    entered = [file for before, file in zip(["", *files], files, strict=False) if file != before]
    assert len(entered) == len(set(entered))
    assert sorted(entered, key=place_of) == entered
