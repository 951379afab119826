"""``aot cache`` shows, checks, prunes and clears all that builds have kept."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from aot.cache.store import Store
from aot.cli.main import main

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
    for name in ("zig/global/o", "wheels/nvidia"):
        (tmp_path / "cache" / name).mkdir(parents=True)
        (tmp_path / "cache" / name / "file").write_bytes(bytes(1000))
    return tmp_path / "cache"


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["cache", "--json", *arguments])
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, data


def test_everything_that_was_put_there_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = output(capsys)
    assert code == 0
    assert {item["what"]: item["files"] for item in data["kept"]} == {"recall": 1, "variants": 1, "zig": 1, "wheels": 1}
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


def test_clear_removes_it_all_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "notes.txt").write_text("mine")
    home = folder.parent / "home" / ".cache" / "cute-aot"
    (home / "zig" / "global").mkdir(parents=True)
    (home / "zig" / "global" / "file").write_bytes(bytes(1000))
    code, data = output(capsys, "--clear")
    assert (code, data["kept"]) == (0, [])
    assert data["cleared"] > 3000
    assert [path.name for path in folder.rglob("*")] == ["notes.txt"]
    assert not (home / "zig").exists()


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
