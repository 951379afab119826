"""A file with its own reference is checked while a bundle is served, and the check can fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot.errors import UsageError
from aot.gpu.exercise import check_exercise
from aot.gpu.running import Gpu

pytestmark = pytest.mark.torch
CPU = Gpu("a CPU", (9, 0), "cpu")
FILE = """
import sys, torch
assert sys.modules["__main__"].__file__ == __file__
def get_inputs():
    return [torch.arange(5, dtype=torch.float32), torch.ones(5)]
def reference_fn(x, y):
    return x.double() + y.double()
def kernel_fn(x, y):
    return RESULT
"""


@pytest.fixture(autouse=True)
def _torch() -> None:
    pytest.importorskip("torch", reason="checking needs torch")


@contextmanager
def serving_nothing(bundle: Path) -> Iterator[Any]:
    yield SimpleNamespace(kernels=())


@contextmanager
def serving(bundle: Path) -> Iterator[Any]:
    yield SimpleNamespace(kernels=("add_1",))


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("x + y", ""),
        ("(x + y) * 1.01", "result 0: the error is"),
        ("x[:3]", "the shape is (3,), the reference's (5,)"),
        ("[x, y]", "kernel_fn gives 2 tensors, reference_fn 1"),
        ("torch.ones(2) @ torch.ones(3)", "RuntimeError"),
    ],
)
def test_results_are_compared_with_the_files_own_reference(tmp_path: Path, result: str, problem: str) -> None:
    (tmp_path / "file.py").write_text(FILE.replace("RESULT", result))
    before = sys.modules["__main__"]
    report = check_exercise(tmp_path / "file.py", tmp_path, ("add_1", "other"), CPU, serving)
    assert report.passed == (not problem) and problem in report.outcomes[0].problem
    assert report.unchecked == ("other",) and sys.modules["__main__"] is before


def test_a_check_that_reaches_no_kernel_of_the_bundle_fails(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(FILE.replace("RESULT", "x + y"))
    report = check_exercise(tmp_path / "file.py", tmp_path, ("add_1",), CPU, serving_nothing)
    assert not report.passed and report.outcomes[0].problem == "it ran without a kernel of the bundle"


def test_a_file_without_these_functions_or_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("kernel_fn = print\n")
    with pytest.raises(UsageError, match="defines no reference_fn and no get_inputs"):
        check_exercise(tmp_path / "file.py", tmp_path, (), CPU, serving)
    (tmp_path / "file.py").write_text(FILE.replace("RESULT", "None"))
    with pytest.raises(UsageError, match="must return their results"):
        check_exercise(tmp_path / "file.py", tmp_path, (), CPU, serving)
    with pytest.raises(UsageError, match="does not exist"):
        check_exercise(tmp_path / "nothing.py", tmp_path, (), CPU, serving)
