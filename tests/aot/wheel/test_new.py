"""A new project: it builds as it is written, and its own tests pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from aot.binary.elf import read_shared_library
from aot.bundle.signature import new_key, public_path
from aot.cli.main import main
from aot.errors import UsageError
from aot.wheel.new import new_project
from aot.wheel.pyproject import read_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, artifacts_of_run: Path) -> Path:
    """A project with all that can be asked for, built with the one command that its README names."""
    folder = tmp_path_factory.mktemp("new") / "fast-kernels"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        assert main(["new", "fast-kernels", "--cpp", "--torch", "-q"]) == 0
        patch.chdir(folder)
        patch.setenv("AOT_CACHE", str(artifacts_of_run))
        assert main(["build", "--jobs", "2", "-q"]) == 0
    return folder


def run(*command: object, cwd: Path) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # `python` is this one
    }
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_tests_pass(project: Path) -> None:
    said = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=project)
    assert "11 passed" in said or "10 passed, 1 skipped" in said  # one of them needs a GPU


def test_its_program_is_built_installed_and_run_as_its_readme_says(project: Path) -> None:
    """Without a GPU, the program says so."""
    section = (project / "README.md").read_text().partition("## C++")[2].partition("\n## ")[0]
    *commands, program = re.findall(r"^    (.*)$", section, re.MULTILINE)
    assert program == "installed/bin/fast_kernels_app"
    for command in commands:
        run("sh", "-ec", command, cwd=project)
    installed = read_shared_library(project / program)
    assert installed.runpath == ("$ORIGIN/../lib",) and "libtvm_ffi.so" in installed.needed
    (project / "installed").rename(project / "moved")
    moved = project / program.replace("installed", "moved")
    done = subprocess.run([str(moved)], env={"PATH": os.defpath}, capture_output=True, text=True)
    ran = (done.returncode, done.stdout) == (0, "3 6 9 12\n")
    assert ran or (done.returncode, done.stdout, done.stderr[:20]) == (1, "", "no GPU can be used: "), done


def test_its_module_is_traced_by_torch(project: Path) -> None:
    if PathFinder.find_spec("torch") is None:  # this process may not import it: see `without_frameworks`
        pytest.skip("needs torch")
    program = (
        "import torch\n"
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "from model import Scale\n"
        "with FakeTensorMode():\n"
        "    y = Scale(3.0)(torch.empty(1000, device='cuda'))\n"
        "print(tuple(y.shape), y.dtype)\n"
    )
    assert run(sys.executable, "-c", f"import sys; sys.path.insert(0, '.')\n{program}", cwd=project) == (
        "(1000,) torch.float32\n"
    )


def test_without_options_there_is_python_alone(tmp_path: Path) -> None:
    written = new_project(tmp_path / "mine")
    assert {path.relative_to(tmp_path / "mine").as_posix() for path in written} == {
        ".gitignore", "README.md", "pyproject.toml", "kernels/__init__.py", "kernels/scale.py", "kernels/contracts/__init__.py",
        "kernels/contracts/scale.py", "tests/test_kernels.py",
    }  # fmt: skip
    assert not any(re.search("@[A-Z]+@", path.read_text()) for path in written)
    found = read_project(tmp_path / "mine")
    assert (found.project.identity.package, found.project.identity.distribution) == ("mine", "mine")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_takes_neither_bundles_nor_private_keys(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    folder = tmp_path / "mine"
    new_project(folder)
    for key in ("signing.pem", "release.key"):
        new_key(folder / key)
    (folder / "dist" / "mine").mkdir(parents=True)
    (folder / "dist" / "mine" / "manifest.json").touch()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.split()
    assert {str(public_path(Path(key))) for key in ("signing.pem", "release.key")} <= set(listed)
    assert not {"signing.pem", "release.key", "dist/mine/manifest.json"} & set(listed)


@pytest.mark.parametrize("name", ["json", "test", "a b", "1st", "class", "numpy", "cuda", "größe"])
def test_a_name_that_cannot_be_imported_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        new_project(tmp_path / name)
    assert "my_kernels" in (caught.value.hint or "") and "--package" not in (caught.value.hint or "")
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_no_project_takes_the_place_of_a_folder_that_somebody_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"`{name}` is a folder that is there"):
        new_project(Path(name))
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_nothing_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").symlink_to("nowhere")
    with pytest.raises(UsageError, match=f"`{tmp_path}/mine` exists already"):
        new_project(tmp_path / "mine")


def test_a_place_where_no_wheel_can_be_put_is_refused_before_the_project_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new_project(tmp_path / "mine")
    (tmp_path / "taken").touch()
    monkeypatch.setattr("aot.wheel.project.build", None)
    assert main(["wheel", str(tmp_path / "mine"), "--out", str(tmp_path / "taken")]) == 2
    assert f"`{tmp_path}/taken` is not a directory" in capsys.readouterr().err


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    with pytest.raises(UsageError, match="exists already"):
        new_project(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    shutil.rmtree(tmp_path / "mine")
    (tmp_path / "mine").mkdir()  # an empty folder will do
    assert new_project(tmp_path / "mine")
