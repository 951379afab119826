"""Marked tests run in a process with their framework, the others in one without; each result has the test's own name."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import PROJECT, TESTS
from standin import search_path

FRAMEWORKS = ("torch", "jax", "cupy")
CONFTEST = """
import without_frameworks
pytest_plugins = ["with_frameworks"]
"""
MARKED = """
import importlib
import pytest

@pytest.mark.parametrize("name", ["torch", "jax", "cupy"])
def test_here(name):
    with pytest.raises(ImportError):
        importlib.import_module(name)

@pytest.mark.torch
def test_passes():
    import torch
    assert torch.__version__ == "played"

@pytest.mark.torch
@pytest.mark.parametrize("number", [1, 2])
def test_fails(number):
    import torch
    assert number == 1, "two is too many"

@pytest.mark.jax
def test_of_jax():
    import cupy, jax
    assert (cupy.__version__, jax.__version__) == ("played", "played")

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
SETTINGS = "[pytest]\nmarkers =\n    torch: x\n    jax: x\n    gpu: x\naddopts = --import-mode=importlib\n"


def environment(packages: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(TESTS)]), **more}


def run(folder: Path, *options: str, **files: str) -> str:
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-v", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist", *options]
    variables = environment(folder / "packages", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")  # a second less in each process
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True).stdout


def install(packages: Path, *frameworks: str, text: str = '__version__ = "played"\n') -> Path:
    """Packages with these names, and nothing in them but ``text``."""
    packages.mkdir()
    for name in frameworks:
        (packages / f"{name}.py").write_text(text)
    return packages


def test_marked_tests_have_their_framework_and_the_others_have_none(tmp_path: Path) -> None:
    install(tmp_path / "packages", *FRAMEWORKS)
    said = run(tmp_path, test_marked=MARKED)
    assert all(f"test_marked.py::test_here[{name}] PASSED" in said for name in FRAMEWORKS)
    assert "test_marked.py::test_passes PASSED" in said
    assert "test_marked.py::test_fails[1] PASSED" in said
    assert "test_marked.py::test_fails[2] FAILED" in said
    assert "AssertionError: two is too many" in said
    assert "test_marked.py::test_of_jax PASSED" in said
    assert "test_marked.py::test_is_skipped SKIPPED" in said
    assert "there is nothing" in said
    assert "1 failed, 6 passed, 1 skipped" in said


def test_marks_select_tests_that_run_elsewhere(tmp_path: Path) -> None:
    """Without torch a test marked ``jax`` runs in the process that has JAX all the same."""
    install(tmp_path / "packages", "jax", "cupy")
    said = run(tmp_path, "-m", "jax", test_marked=MARKED)
    assert "test_marked.py::test_of_jax PASSED" in said
    assert "1 passed, 7 deselected" in said


def test_a_process_that_is_lost_fails_its_tests(tmp_path: Path) -> None:
    install(tmp_path / "packages", "torch")
    said = run(tmp_path, test_crashes=CRASHES)
    assert "test_crashes.py::test_ends_the_process FAILED" in said
    assert "the process with frameworks ended with 3" in said


def test_collecting_the_tests_imports_no_framework_and_opens_no_cuda_library(tmp_path: Path, traps: Path) -> None:
    """All files are collected beside packages that leave a trace when they are imported, and CUDA libraries that abort.

    CuTe DSL opens the driver as soon as it is imported.
    """
    trace = tmp_path / "trace"
    text = f"with open({str(trace)!r}, 'a') as trace:\n    trace.write(__name__ + '\\n')\n"
    variables = environment(install(tmp_path / "packages", *FRAMEWORKS, text=text), **search_path(traps))
    for name in FRAMEWORKS:
        subprocess.run([sys.executable, "-c", f"import {name}"], env=variables, check=True)
    assert trace.read_text().split() == list(FRAMEWORKS)
    trace.unlink()
    # Plain assertions: rewriting them all would take half of the time.
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--assert=plain", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=PROJECT, env=variables, capture_output=True, text=True)
    assert not trace.exists(), trace.read_text()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    for file in (
        "tests/runtime/frameworks/test_jax.py",
        "tests/runtime/frameworks/test_torch.py",
        "tests/aot/compile/dsl/test_v4_7.py",
    ):
        assert f"{file}::" in done.stdout


def test_the_compiler_is_found_and_not_imported() -> None:
    assert importlib.util.find_spec("cutlass") is not None
    with pytest.raises(ImportError, match="marked `compiler`"):
        import cutlass  # noqa: F401
