"""zig's caches lie where we put them, unless the user chose a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.link.zig import Zig

VARIABLES = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")


def test_caches_follow_the_folder_of_the_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    seen = Zig.find(tmp_path)._environment()
    assert [seen[name] for name in VARIABLES] == [str(tmp_path / "global"), str(tmp_path / "local")]


def test_a_place_that_the_user_chose_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLES[0], "/chosen")
    monkeypatch.setenv(VARIABLES[1], "")
    seen = Zig.find(tmp_path)._environment()
    assert [seen[name] for name in VARIABLES] == ["/chosen", str(tmp_path / "local")]
