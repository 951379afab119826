"""Marked tests run where torch is, the others where it is not; each result is reported under the test's own name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from places import TESTS

CONFTEST = """
import without_torch
pytest_plugins = ["with_torch"]
"""
MARKED = """
import pytest

def test_here():
    with pytest.raises(ImportError):
        import torch

@pytest.mark.torch
def test_passes():
    import torch
    assert torch.__version__ == "played"

@pytest.mark.torch
@pytest.mark.parametrize("number", [1, 2])
def test_fails(number):
    import torch
    assert number == 1, "two is too many"

@pytest.fixture
def nothing():
    pytest.skip("there is nothing")

@pytest.mark.gpu
def test_is_skipped(nothing):
    raise AssertionError
"""
CRASHES = """
import os
import pytest

@pytest.mark.torch
def test_ends_the_process():
    os._exit(3)
"""
SETTINGS = "[pytest]\nmarkers =\n    torch: x\n    gpu: x\naddopts = --import-mode=importlib\n"


def run(folder: Path, **files: str) -> str:
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "packages"), str(TESTS)])}
    command = [sys.executable, "-m", "pytest", "-v", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout


def install_torch(folder: Path) -> None:
    (folder / "packages").mkdir()
    (folder / "packages" / "torch.py").write_text('__version__ = "played"\n')


def test_marked_tests_have_torch_and_the_others_have_not(tmp_path: Path) -> None:
    install_torch(tmp_path)
    said = run(tmp_path, test_marked=MARKED)
    assert "test_marked.py::test_here PASSED" in said
    assert "test_marked.py::test_passes PASSED" in said
    assert "test_marked.py::test_fails[1] PASSED" in said
    assert "test_marked.py::test_fails[2] FAILED" in said
    assert "AssertionError: two is too many" in said
    assert "test_marked.py::test_is_skipped SKIPPED" in said
    assert "there is nothing" in said
    assert "1 failed, 3 passed, 1 skipped" in said


def test_a_process_that_is_lost_fails_its_tests(tmp_path: Path) -> None:
    install_torch(tmp_path)
    said = run(tmp_path, test_crashes=CRASHES)
    assert "test_crashes.py::test_ends_the_process FAILED" in said
    assert "the process with torch ended with 3" in said
