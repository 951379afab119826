"""``aot cache`` shows, checks, prunes and clears all that builds have kept."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from aot.cache.store import Store
from aot.cli.main import main
from aot.files import make_marked

KEY, OTHER = "ab" * 32, "cd" * 32
SOUND = b'{"name": "verified", "record": {"manifest": "00"}}'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache as builds leave it, in a home of its own."""
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("AOT_CACHE", str(tmp_path / "cache"))
    store = Store(tmp_path / "cache")
    store.put("recall", KEY, SOUND)
    store.put("variants", OTHER, b"sealed, and no variant")
    fill_tools(tmp_path / "cache")
    return tmp_path / "cache"


def fill_tools(cache: Path) -> None:
    for name in ("zig/global", "wheels/nvidia"):
        make_marked(cache / name)
        (cache / name / "file").write_bytes(bytes(1000))


@pytest.fixture
def home(folder: Path) -> Path:
    """The user's own cache, with a compiled variant and zig's cache."""
    user = folder.parent / "home" / ".cache" / "cute-aot"
    Store(user / "artifacts").put("variants", KEY, b"")
    fill_tools(user)
    return user


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["cache", "--json", *arguments])
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, data


def test_everything_that_was_put_there_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = output(capsys)
    assert code == 0
    assert {item["what"]: item["files"] for item in data["kept"]} == {"recall": 1, "variants": 1, "zig": 2, "wheels": 2}
    assert data["entries"] == {"recall": 1, "variants": 1}
    assert main(["cache"]) == 0
    printed = capsys.readouterr()
    assert str(folder) in printed.err
    assert "zig" in printed.out


def test_a_sealed_entry_with_bad_content_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = output(capsys, "--check")
    assert (code, data["damaged"], data["untrusted"]) == (1, [f"variants/{OTHER}"], [])
    assert output(capsys, "--check")[0] == 0


def test_an_entry_that_others_could_have_written_is_named_and_stays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = folder / "recall" / KEY[:2] / f"{KEY}.entry"
    entry.chmod(0o666)
    assert output(capsys, "--check")[1]["untrusted"] == [f"recall/{KEY}"]
    assert entry.exists()


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_clear_removes_what_builds_kept_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = {"notes.txt", "wheels/mine.whl", "zig/src/main.zig", "photos/ab/ab.entry"}
    for name in mine:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    code, data = output(capsys, "--clear")
    assert (code, data["kept"]) == (0, [])
    assert data["cleared"] > 2000
    assert files_in(folder) == mine


@pytest.mark.parametrize("by", ["option", "variable"])
def test_clear_leaves_every_cache_alone_that_was_not_named(
    folder: Path, home: Path, by: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_in(home)
    if by == "option":
        monkeypatch.delenv("AOT_CACHE")
    assert output(capsys, "--clear", *(["--cache", str(folder)] if by == "option" else []))[0] == 0
    assert files_in(folder) == set()
    assert files_in(home) == before


@pytest.mark.parametrize("named", ["missing", "none", "s3://bucket"])
def test_clearing_a_cache_that_is_not_there_clears_none(
    folder: Path, home: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    before = files_in(home)
    monkeypatch.setenv("AOT_CACHE", named)
    assert main(["cache", "--clear"]) == 2
    assert main(["cache", "--clear", "--cache", named]) == 2
    assert files_in(home) == before
    assert not (folder.parent / named).exists()


def test_without_a_name_the_users_cache_is_cleared(
    folder: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AOT_CACHE")
    before = files_in(folder)
    assert output(capsys, "--clear")[0] == 0
    assert files_in(home) == set()
    assert files_in(folder) == before


def test_prune_requires_a_limit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--prune"]) == 2
    assert "`--prune` requires `--max-size` or `--older-than`" in capsys.readouterr().err


def test_a_cache_that_is_no_folder_is_wrong_usage(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["cache", "--cache", "s3://bucket"]) == 2
    assert "`s3://bucket` is not a folder" in capsys.readouterr().err
    monkeypatch.setenv("AOT_CACHE", "none")
    assert main(["cache"]) == 2
    assert "the cache is turned off" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [("--clear", "--check"), ("--clear", "--prune", "--max-size", "1G"), ("--max-size", "0"), ("--older-than", "1d")],
)
def test_options_that_exclude_each_other_remove_nothing(
    folder: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    code, data = output(capsys, *arguments)
    assert code == 2
    assert data["error"]["hint"]
    assert sorted(folder.rglob("*")) == before
