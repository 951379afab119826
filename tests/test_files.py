"""Files that a run has left behind are in no commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from places import PROJECT

KINDS = {
    ".c", ".cmake", ".cpp", ".cu", ".h", ".hpp", ".in", ".js", ".json", ".md", ".pc", ".py", ".sh", ".svg", ".toml", ".txt",
    ".typed", ".yml",
}  # fmt: skip
NAMES = {".gitignore", "Dockerfile", "LICENSE", "readme-commands", "run"}


def test_every_file_is_of_a_kind_that_somebody_writes() -> None:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("the history is not here: this is no clone")
    files = [Path(name) for name in done.stdout.split("\0") if name]
    assert not [str(path) for path in files if path.suffix not in KINDS and path.name not in NAMES]
