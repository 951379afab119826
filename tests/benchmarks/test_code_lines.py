"""The benchmark that counts code lines."""

from __future__ import annotations

import importlib
import subprocess
from typing import Any

import pytest
from places import PROJECT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    return importlib.import_module("code_lines")


def test_comments_docstrings_and_empty_lines_do_not_count(script: Any) -> None:
    source = '"""What it\nis."""\n\nx = (  # why\n    1,\n)\n\n\nclass A:\n    """A."""\n\n    def f(self):\n        # how\n        return """two\nlines"""\n'
    assert script.code_lines(source) == 7


def test_files_that_a_commit_does_not_have_count_nothing(script: Any) -> None:
    if subprocess.run(["git", "rev-parse", "--verify", "-q", "HEAD"], cwd=PROJECT, capture_output=True).returncode:
        pytest.skip("the history is not here: this is no clone")
    declared = script.lines_at("HEAD", "elementwise/add.py")
    assert declared == script.code_lines((PROJECT / "kernels/elementwise/add.py").read_text())
    assert script.lines_at("HEAD", "elementwise/add.py elementwise/no_such_file.py") == declared
