"""Workers from the parent's side: what a compile that fails is reported as."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot.compile.process import Worker, WorkerLost
from aot.errors import BuildError, Failure


class Lost(Worker):
    """Its process has ended, whatever it is asked."""

    def __init__(self) -> None:
        self._expanded = {"k"}

    def ask(self, do: str, *, log: Path | None = None, **request: Any) -> Any:
        raise WorkerLost("ended with exit code 1", "last words")


def test_a_worker_that_ends_fails_its_variant_and_on_a_full_disk_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for its log a worker ends without a word, and so would that of every other variant."""
    compiled = Lost().compile("k", "v", tmp_path / "v.ll", tmp_path / "v.log")
    assert isinstance(compiled, Failure)
    assert compiled.log == "last words"
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=32 << 10))
    with pytest.raises(BuildError) as error:
        Lost().compile("k", "v", tmp_path / "v.ll", tmp_path / "v.log")
    assert str(tmp_path) in str(error.value.hint)
