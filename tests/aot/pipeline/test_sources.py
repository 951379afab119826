"""The files of a source are named and counted, wherever it lies."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from aot.pipeline.settings import Settings
from aot.pipeline.sources import kernel_sources, source_record


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    for name in ("add.py", "rows/norm.py", ".venv/lib/foreign.py", "__pycache__/add.py", "notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name}\n")
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=author", "-c", "user.email=author@example.com"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path) -> str:
    git(folder, "init", "-q")
    git(folder, "add", "add.py", "rows", "notes.txt")
    git(folder, "commit", "-qm", "kernels")
    (folder / ".gitignore").write_text(".*\n__pycache__\n")
    return git(folder, "rev-parse", "HEAD").strip()


def test_every_python_file_of_a_folder_has_its_digest(source: Path) -> None:
    digests = {name: hashlib.sha256(f"# {name}\n".encode()).hexdigest() for name in ("add.py", "rows/norm.py")}
    assert source_record(source) == {"name": "kernels", "files": digests}
    alone = {"name": "add.py", "files": {"add.py": digests["add.py"]}}
    assert source_record(source / "add.py") == alone


def test_a_clean_source_names_its_commit(source: Path) -> None:
    head = commit(source)
    record = source_record(source)
    assert (record["commit"], record["clean"]) == (head, True)


@pytest.mark.parametrize("name", ["add.py", "rows/added.py"])
def test_a_source_that_differs_from_its_commit_is_not_clean(source: Path, name: str) -> None:
    head = commit(source)
    (source / name).write_text("# changed\n")
    record = source_record(source)
    assert (record["commit"], record["clean"]) == (head, False)


def test_a_source_without_any_commit_names_none(source: Path) -> None:
    git(source, "init", "-q")
    assert set(source_record(source)) == {"name", "files"}


def test_an_installed_module_has_its_files_too() -> None:
    root = Settings("json", ()).root
    assert "decoder.py" in source_record(root)["files"]
    assert Settings("json.decoder", ()).root == root
    assert Settings("no_such_module_anywhere", ()).root is None
    assert source_record(None) == {"files": {}}


def test_a_kernel_names_the_files_that_it_came_from_by_names_that_hold_elsewhere(source: Path, tmp_path: Path) -> None:
    places = {"k.add": source / "add.py", "k.rows": source / "rows/norm.py", "lib.tile": tmp_path / "lib/tile.py"}
    places |= {"file table.json": source / "table.json", "file other.json": tmp_path / "other.json"}
    digests = {name: name.encode().hex() for name in places}
    found = kernel_sources(source, "declarations", {name: str(path) for name, path in places.items()}, digests)
    named = {"add.py": "k.add", "rows/norm.py": "k.rows", "table.json": "file table.json"}
    assert found.files == {path: digests[name] for path, name in named.items()}
    assert found.modules == {"lib.tile": digests["lib.tile"]}
    alone = kernel_sources(source / "add.py", "exercise", {}, {})  # the library is named by what was captured
    assert alone.files == source_record(source / "add.py")["files"]
