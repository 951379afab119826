"""``docs/guides/first-kernel.md``, followed to the letter in an environment that does not have cute-aot."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import aot_runtime
import pytest
from places import EXAMPLE, PROJECT

from tools import follow_guide

if TYPE_CHECKING:
    from packaged import Environment


@pytest.fixture
def without_cute_aot(new_environment: Callable[..., Environment], tmp_path: Path) -> Environment:
    """A fresh environment with everything that this one has, except cute-aot: pip need not fetch hundreds of megabytes."""
    dependencies = tmp_path / "dependencies"
    dependencies.mkdir()
    # Distributions may lie in several folders: of this environment, of the system's, of one that PYTHONPATH names.
    folders = [path for path in map(Path, sys.path) if path.is_dir() and any(path.glob("*.dist-info"))]
    for entry in (entry for folder in folders for entry in folder.iterdir()):
        link = dependencies / entry.name
        if entry.name not in ("aot", "aot_runtime") and "cute_aot" not in entry.name and not link.is_symlink():
            link.symlink_to(entry)
    made = new_environment()
    (made.site_packages / "dependencies.pth").write_text(f"import site; site.addsitedir({str(dependencies)!r})\n")
    pip = made.path / "bin" / "pip"
    pip.write_text('#!/bin/sh\nexec python -m pip "$@"\n')
    pip.chmod(0o755)
    return made


@pytest.mark.usefixtures("commands_share_artifacts")
def test_the_guide_works_as_it_is_written(without_cute_aot: Environment, project_wheel: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "wheels").symlink_to(project_wheel.parent)
    nothing_fetched = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment = {**follow_guide.inside(without_cute_aot.path), **nothing_fetched}
    with pytest.raises(RuntimeError, match="No module named 'aot"):
        follow_guide.run("python -c 'import aot'", project, environment)
    done = follow_guide.follow(project, environment, gpu=False, wanted=lambda command: "host=" not in command)
    assert [" ".join(command.split()[:4]) for command in done] == [
        f"pip install './wheels/{project_wheel.name}[build]'",
        "python -m aot list",
        "python -m aot build",
        "python -m aot inspect",
        'echo "Kernels, compiled ahead',
        "pip wheel . --no-deps",
    ]
    for name in ("kernels/scale.py", "kernels/contracts/scale.py"):
        assert (project / name).read_text() == (EXAMPLE / name).read_text()
    assert aot_runtime.load(project / "dist" / "sample_kernels").kernels == ("scale",)
    (wheel,) = project.glob("*.whl")
    assert "sample_kernels/__init__.py" in zipfile.ZipFile(wheel).namelist()


@pytest.mark.usefixtures("commands_share_artifacts")
@pytest.mark.parametrize(
    ("guide", "kernel", "bundle"),
    [(follow_guide.SHARED_MEMORY, "transpose", "transposing"), (follow_guide.TENSOR_CORES, "matmul", "multiplying")],
    ids=["shared memory", "tensor cores"],
)
def test_a_guide_to_a_kernel_works_as_it_is_written(
    guide: follow_guide.Guide, kernel: str, bundle: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = follow_guide.follow(tmp_path, environment, gpu=False, guide=guide)
    assert [" ".join(command.split()[:4]) for command in done] == ["python -m aot build", "python -m aot inspect"]
    for name in (f"kernels/{kernel}.py", f"kernels/contracts/{kernel}.py"):
        assert (tmp_path / name).read_text() == (PROJECT / guide.example / name).read_text()
    assert aot_runtime.load(tmp_path / "dist" / bundle).kernels == (kernel,)


def test_a_step_that_fails_ends_the_guide_with_its_command(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)`python -c 'print\(7\); exit\(3\)'` ended with exit code 3:\n7"):
        follow_guide.run("python -c 'print(7); exit(3)'", tmp_path, {"PATH": os.path.dirname(sys.executable) + ":/bin"})
