"""Modules are compared by their text, and found without importing anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from aot_runtime.serving import sources


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "served_package"
    (folder / "inner").mkdir(parents=True)
    for name in ("__init__.py", "one.py", "inner/__init__.py", "inner/two.py"):
        (folder / name).write_text(f"raise RuntimeError('{name} was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sources, "_files", {})
    return folder


def test_modules_that_are_not_loaded_are_found_and_not_imported(package: Path) -> None:
    assert sources.locate_source("served_package.inner.two") == str(package / "inner" / "two.py")
    assert sources.locate_source("served_package.inner") == str(package / "inner" / "__init__.py")
    assert sources.source_digest("served_package.three") is None
    assert sources.source_digest("no_such_package.three") is None
    assert "served_package" not in sys.modules


def changed(expected: dict[str, str]) -> list[str]:
    return [name for name, digest in expected.items() if sources.source_digest(name) != digest]


def test_an_edit_and_a_missing_file_are_changes(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["served_package", "served_package.one", "served_package.inner.two"]
    expected = {name: str(sources.source_digest(name)) for name in names}
    assert changed(expected) == []
    (package / "one.py").write_text("# edited\n")
    (package / "inner" / "two.py").unlink()
    monkeypatch.setattr(sources, "_files", {})
    assert changed(expected) == ["served_package.one", "served_package.inner.two"]


def test_a_file_is_read_once_for_its_digest_and_its_classes(package: Path) -> None:
    (package / "one.py").write_text("class One:\n    pass\n\nclass Two(One): pass\n# class three\n")
    assert sources.source_digest("served_package.one") is not None
    (package / "one.py").unlink()
    assert sources.class_statements(str(package / "one.py")) == {b"One", b"Two"}
    assert sources.class_statements(str(package / "none.py")) == frozenset()
