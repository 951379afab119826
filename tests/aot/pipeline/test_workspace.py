"""What the stages of a build share follows from its settings."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from aot.cache.entries import LARGEST
from aot.errors import BuildError, UsageError
from aot.pipeline.events import Progress
from aot.pipeline.settings import Settings
from aot.pipeline.workspace import make_workspace, open_workspace, scratch_folder


@pytest.mark.parametrize(("memory", "largest"), [(None, LARGEST), (1 << 30, 128 << 20)])
def test_what_an_entry_of_the_cache_may_expand_to_follows_the_memory_of_the_build(
    memory: int | None, largest: int, tmp_path: Path
) -> None:
    settings = Settings("kernels", ("sm_90a",), memory=memory, artifacts=tmp_path / "cache", cache=tmp_path)
    store = make_workspace(settings, Progress(), tmp_path).store
    assert store is not None
    assert store.limit == largest


def test_a_cache_that_cannot_be_used_is_said_where_the_build_reports(tmp_path: Path) -> None:
    class Told(Progress):
        def __init__(self) -> None:
            self.warnings: list[str] = []

        def warn(self, text: str) -> None:
            self.warnings.append(text)

    (tmp_path / "file").touch()
    told = Told()
    settings = Settings("kernels", ("sm_90a",), artifacts=tmp_path / "file", cache=tmp_path)
    store = make_workspace(settings, told, tmp_path).store
    assert store is not None
    store.put("variants", "ab" * 32, b"")
    assert len(told.warnings) == 1


def test_a_wheelhouse_that_is_missing_is_named_whether_or_not_a_wheel_is_needed(tmp_path: Path) -> None:
    settings = Settings("kernels", ("sm_90a",), cache=tmp_path, wheelhouse=tmp_path / "missing")
    with pytest.raises(UsageError, match="missing` is not a folder"):
        open_workspace(settings, Progress(), tmp_path)


def test_a_build_without_room_for_temporary_files_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder() as scratch:
        assert scratch.parent == tmp_path
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=32 << 10))
    with pytest.raises(BuildError) as error, scratch_folder():
        pass
    assert str(tmp_path) in str(error.value.hint)
    assert list(tmp_path.iterdir()) == []
