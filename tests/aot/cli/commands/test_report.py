"""``report`` writes a whole page, or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import room_for

from aot.cli.main import main


def test_a_page_that_cannot_be_written_leaves_nothing(
    small_bundle_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", str(small_bundle_path), "--out", str(tmp_path / "page.html")]
    with room_for(1000):
        assert main(words) == 1
    assert str(tmp_path / "page.html") in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(words) == 0


def test_a_page_is_not_put_into_a_bundle(
    small_bundle_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bundle would not be sound any more."""
    (tmp_path / "link").symlink_to(small_bundle_path / "details")
    for place in (small_bundle_path / "page.html", tmp_path / "link" / "page.html"):
        assert main(["report", str(small_bundle_path), "--out", str(place)]) == 2
        assert "lies in the bundle" in capsys.readouterr().err
    assert not (small_bundle_path / "page.html").exists()


def test_a_page_in_a_folder_that_is_not_there_names_both(
    small_bundle_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "nowhere" / "page.html"
    assert main(["report", str(small_bundle_path), "--out", str(page)]) == 1
    error, _, hint = capsys.readouterr().err.partition("\nhint: ")
    assert f"`{page}`" in error
    assert f"`{page.parent}`" in hint
