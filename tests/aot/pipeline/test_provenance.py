"""What a bundle says of where it came from."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from aot.compile.messages import Options
from aot.pipeline.provenance import build_record, joined, source_record
from aot.pipeline.settings import Settings


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
    assert source_record(str(source)) == {"files": digests}
    assert source_record(str(source / "add.py")) == {"files": {"add.py": digests["add.py"]}}


def test_a_clean_source_names_its_commit(source: Path) -> None:
    head = commit(source)
    record = source_record(str(source))
    assert (record["commit"], record["clean"]) == (head, True)


@pytest.mark.parametrize("name", ["add.py", "rows/added.py"])
def test_a_source_that_differs_from_its_commit_is_not_clean(source: Path, name: str) -> None:
    head = commit(source)
    (source / name).write_text("# changed\n")
    record = source_record(str(source))
    assert (record["commit"], record["clean"]) == (head, False)


def test_an_installed_module_has_its_files_too() -> None:
    assert "decoder.py" in source_record("json")["files"]
    assert source_record("json.decoder") == source_record("json")
    assert source_record("no_such_module_anywhere") == {"files": {}}


def test_a_build_records_its_options(source: Path) -> None:
    record = build_record(Settings(str(source), ("sm_80",), options=Options(line_info=True, keep=("ptx",))))
    assert record["options"] == {
        "cuda": None, "line_info": True, "keep": ["ptx"], "shared_cudart": False, "archives": True,
        "source": "declarations",
    }  # fmt: skip
    assert record["source"] == source_record(str(source))
    assert set(record["versions"]) == {"python", "build_host"}


def test_records_of_several_bundles_are_joined_without_repetition() -> None:
    one, two, three = ({"source": {"commit": name}} for name in "123")
    assert joined([[one, two], [two, three], [one]]) == (one, two, three)
