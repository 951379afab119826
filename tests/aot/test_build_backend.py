"""``build-backend = "aot.build_backend"``: the sample project through pip and build, as a stranger would."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from places import EXAMPLE, TESTS

from aot import build_backend
from aot.hosts import Host
from aot.wheel.pyproject import ConfigSettings, read_project

if TYPE_CHECKING:
    from packaged import Environment

ROOT = TESTS.parent
FOREIGN = {"x86_64": "aarch64", "aarch64": "x86_64"}[Host.native().cpu]
EXPECTED_FILES = {
    "PKG-INFO",
    "README.md",
    "kernels/clip.py",
    "kernels/contracts/scale.py",
    "kernels/scale.py",
    "pyproject.toml",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the sample, with the CUDA runtime shared so that the stand-in can run it."""
    copy = tmp_path / "project"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__", "dist", "build"))
    pyproject = copy / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + 'cudart = "shared"\n')
    return copy


def in_project(project: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """Run a frontend where this checkout is importable: nothing is fetched, so nothing is isolated."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'runtime'}"}
    arguments = [sys.executable, "-m", *map(str, command)]
    return subprocess.run(arguments, cwd=project, env=environment, capture_output=True, text=True)


def pip_wheel(project: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-w", "dist"]
    return in_project(project, "pip", "wheel", ".", *options, *(f"--config-settings={text}" for text in settings))


@pytest.mark.usefixtures("commands_share_artifacts")
def test_pip_wheel_makes_a_package_that_runs(project: Path, new_environment: Callable[..., Environment]) -> None:
    done = pip_wheel(project, "arch=sm90")
    assert done.returncode == 0, done.stderr + done.stdout
    (wheel,) = (project / "dist").glob("*.whl")
    assert wheel.name == f"sample_kernels-1.0-py3-none-manylinux_2_28_{Host.native().cpu}.whl"
    environment = new_environment(wheel)
    launched = environment.output(
        """
import sample_kernels
x, out = cuda.tensor((300,), "float32"), cuda.tensor((300,), "float32")
sample_kernels.scale(x, out)
print(cuda.launches[0].grid, sample_kernels.explain("scale", "8.0", x, out).chosen)
""",
        standin=True,
    )
    assert launched == "(3, 1, 1) None"  # sm90 was all that was asked for
    metadata = environment.output(
        "import importlib.metadata as m; print(m.distribution('sample-kernels').read_text('METADATA'))"
    )
    assert "Summary: Two kernels, compiled ahead of time" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert "# A kernel project, from declaration to wheel" in metadata


@pytest.mark.usefixtures("commands_share_artifacts")
def test_build_makes_an_sdist_that_makes_a_wheel_for_another_host(project: Path, foreign: Host) -> None:
    settings = [f"--config-setting=host={foreign.cpu}", "--config-setting=arch=sm80"]
    done = in_project(project, "build", "--no-isolation", "--skip-dependency-check", *settings)
    assert done.returncode == 0, done.stderr + done.stdout
    (sdist,) = (project / "dist").glob("*.tar.gz")
    (wheel,) = (project / "dist").glob("*.whl")
    assert sdist.name == "sample_kernels-1.0.tar.gz"
    assert wheel.name == f"sample_kernels-1.0-py3-none-manylinux_2_28_{foreign.cpu}.whl"
    with tarfile.open(sdist) as archive:
        assert {name.partition("/")[2] for name in archive.getnames()} == EXPECTED_FILES
    with zipfile.ZipFile(wheel) as made:
        libraries = [name for name in made.namelist() if name.endswith(".so")]
    assert libraries
    assert all(f"/lib/{foreign}/" in name for name in libraries)


@pytest.mark.usefixtures("commands_share_artifacts")
def test_editable_install_points_into_the_project(project: Path, new_environment: Callable[..., Environment]) -> None:
    environment = new_environment()
    name = build_in(project, "build_editable", {"arch": "sm90", "jobs": "1"})
    environment.install(project / "dist" / name)
    program = "import sample_kernels; print(sample_kernels.__file__); print(sample_kernels.scale.__name__)"
    where, function = environment.output(program).splitlines()
    assert Path(where) == project / "build" / "aot" / "sample_kernels" / "__init__.py"
    assert function == "scale"


def build_in(project: Path, hook: str, config: Mapping[str, str]) -> str:
    before = Path.cwd()
    os.chdir(project)
    try:
        return str(getattr(build_backend, hook)(str(project / "dist"), config))
    finally:
        os.chdir(before)


def test_what_one_build_compiled_the_next_takes_from_the_cache(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`python -m build` unpacks the sources anew each time: the cache does not go by their place."""
    monkeypatch.setenv("AOT_CACHE", str(tmp_path / "cache"))
    settings = {"arch": "sm90", "jobs": "1"}
    first = (project / "dist" / build_in(project, "build_wheel", settings)).read_bytes()
    said = capfd.readouterr().err
    assert "] sm_90a clip" in said
    assert "in the cache" not in said
    copy = shutil.copytree(project, tmp_path / "elsewhere" / "project")
    second = (copy / "dist" / build_in(copy, "build_wheel", settings)).read_bytes()
    said = capfd.readouterr().err
    assert re.search(r"(\d+) of \1 variants are in the cache", said), said
    assert "] sm_90a clip" not in said
    assert first == second


def test_project_makes_the_same_bytes_from_any_directory(project: Path, tmp_path: Path) -> None:
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + 'select = ["clip"]\n')
    other = tmp_path / "elsewhere" / "of another length"
    shutil.copytree(project, other)
    first, second = (
        folder / "dist" / build_in(folder, "build_wheel", {"arch": "sm90", "jobs": "1"}) for folder in (project, other)
    )
    assert first.read_bytes() == second.read_bytes()


def test_prepared_metadata_is_the_wheels_own(project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(project)
    folder = build_backend.prepare_metadata_for_build_wheel(str(tmp_path / "metadata"), {})
    prepared = tmp_path / "metadata" / folder
    metadata = email.message_from_bytes((prepared / "METADATA").read_bytes())
    assert folder == "sample_kernels-1.0.dist-info"
    assert metadata["Name"] == "sample-kernels"
    assert f"manylinux_2_28_{Host.native().cpu}" in (prepared / "WHEEL").read_text()
    assert not (project / "build").exists()  # nothing was compiled


def test_sdist_is_the_same_bytes_when_made_twice(project: Path) -> None:
    first = (project / "dist" / build_in(project, "build_sdist", {})).read_bytes()
    assert (project / "dist" / build_in(project, "build_sdist", {})).read_bytes() == first


def test_version_comes_from_the_file_that_the_project_names(project: Path) -> None:
    pyproject = project / "pyproject.toml"
    text = pyproject.read_text().replace('version = "1.0"', 'dynamic = ["version"]')
    pyproject.write_text(text + 'version-file = "VERSION"\n')
    (project / "VERSION").write_text("2.5rc1\n")
    assert str(read_project(project).project.identity.version) == "2.5rc1"
    sdist = project / "dist" / build_in(project, "build_sdist", {})
    assert sdist.name == "sample_kernels-2.5rc1.tar.gz"
    with tarfile.open(sdist) as archive:
        assert "sample_kernels-2.5rc1/VERSION" in archive.getnames()


# What is refused: a sentence, from the hook that the frontend calls first.


def refusal(project: Path, capsys: pytest.CaptureFixture[str], config: Mapping[str, object] | None = None) -> str:
    before = Path.cwd()
    os.chdir(project)
    try:
        with pytest.raises(SystemExit) as ended:
            build_backend.prepare_metadata_for_build_wheel(str(project / "metadata"), config)
    finally:
        os.chdir(before)
    assert ended.value.code == 2
    assert not (project / "metadata").exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('arch = ["sm90"]', "[tool.cute-aot]: unknown key `arch`\n\nhint: did you mean `archs`?"),
        (
            'sdist_include = ["x"]',
            "[tool.cute-aot]: unknown key `sdist_include`\n\nhint: did you mean `sdist-include`?",
        ),
        ("archs = 90", "[tool.cute-aot]: `archs` is 90, must be a list of strings"),
        ('archs = "sm90"', "[tool.cute-aot]: `archs` is 'sm90', must be a list of strings"),
        ("archs = []", "[tool.cute-aot]: `archs` is empty"),
        ("archs = [90]", "[tool.cute-aot]: `archs` is [90], must be a list of strings"),
        (
            'archs = ["sm9O"]',
            "[tool.cute-aot] archs`: unknown architecture: 'sm9O'\n\nhint: did you mean `sm90`?",
        ),
        ('hosts = ["x86-64"]', "[tool.cute-aot] hosts`: unknown host: 'x86-64'\n\nhint: did you mean `x86_64`?"),
        ('package = "json"', "[tool.cute-aot] package`: a package called json would hide Python's own module"),
        ('package = "1st"', "[tool.cute-aot] package`: '1st' cannot name a package"),
        ("kernels = 1", "[tool.cute-aot]: `kernels` is 1, must be a string"),
        ("timeout = true", "[tool.cute-aot]: `timeout` is True, must be a number"),
        ("timeout = -1", "[tool.cute-aot]: `timeout` is -1, must be positive"),
        ("cuda = 11", "[tool.cute-aot]: `cuda` is 11\n\nhint: known: 12, 13"),
        ('cudart = "dynamic"', "[tool.cute-aot]: `cudart` is 'dynamic'\n\nhint: known: static, shared"),
        ('glibc = "2"', "[tool.cute-aot] glibc`: not a glibc version: '2'"),
        ('glibc = "2.5"', "[tool.cute-aot] glibc`: glibc 2.5 is too old"),
    ],
)
def test_wrong_table_is_answered_with_a_sentence(
    project: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    pyproject = project / "pyproject.toml"
    key = line.split(" =")[0]
    kept = [kept for kept in pyproject.read_text().splitlines() if not kept.startswith(f"{key} ")]
    pyproject.write_text("\n".join([*kept, line]) + "\n")
    said = refusal(project, capsys)
    assert said.startswith((f"error: {message}", f"error: pyproject.toml, `{message}"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool]\ncute-aot = 3\n", "[tool.cute-aot] is 3, must be a table"),
        ("[tool.other]\n", "has no [tool.cute-aot] table"),
        ("[tool.cute-aot]\n", "[tool.cute-aot]: `archs` is missing"),
        ("[tool.cute-aot\n", "cannot be read"),
        ('[tool.cute-aot]\narchs = ["sm90"]\n', 'Section "project" missing in pyproject.toml'),
        ('[project]\nname = "x"\nversion = "one"\n[tool.cute-aot]\narchs = ["sm90"]\n', "invalid PEP 440 version"),
        (
            '[project]\nname = "x"\ndynamic = ["version"]\n[tool.cute-aot]\narchs = ["sm90"]\n',
            "nothing fills in version",
        ),
        (
            '[tool.aot]\narchs = ["sm90"]\n',
            "/pyproject.toml` has a [tool.aot] table\n\nhint: rename it to [tool.cute-aot]",
        ),
        (
            '[project]\nname = "x"\nversion = "1"\n[tool.cute-aot]\narchs = ["sm90"]\nversion-file = "VERSION"\n',
            "`version-file` is set, but the version in [project] is not dynamic",
        ),
        (
            '[project]\nname = "x"\ndynamic = ["version"]\n[tool.cute-aot]\narchs = ["sm90"]\nversion-file = "NO"\n',
            "`version-file` cannot be read",
        ),
    ],
)
def test_wrong_project_is_answered_with_a_sentence(
    project: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (project / "pyproject.toml").write_text(text)
    assert message in refusal(project, capsys)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hosts": "x86_64"}, "--config-settings: unknown key `hosts`\n\nhint: did you mean `host`?"),
        ({"host": ["x86_64", "aarch64"]}, "a wheel is for one host, not for x86_64, aarch64"),
        ({"host": "all"}, "a wheel is for one host, not for all"),
        ({"host": "sparc"}, "unknown host: 'sparc'"),
        ({"host": {"x": "y"}}, "--config-settings: `host` is {'x': 'y'}, must be a list of strings"),
    ],
)
def test_wrong_config_settings_are_answered_with_a_sentence(
    project: Path, capsys: pytest.CaptureFixture[str], config: Mapping[str, object], message: str
) -> None:
    assert f"error: {message}" in refusal(project, capsys, config)


def test_host_outside_the_projects_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('["x86_64", "aarch64"]', f'["{FOREIGN}"]'))
    assert f"the project is not for {Host.native()}" in refusal(project, capsys)
    assert read_project(project).host(ConfigSettings(host=(FOREIGN,))).cpu == FOREIGN


def test_kernel_that_fails_ends_the_build_with_its_own_words(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "kernels" / "scale.py").write_text("raise RuntimeError('not today')\n")
    (project / "kernels" / "clip.py").unlink()
    with pytest.raises(SystemExit) as ended:
        build_in(project, "build_wheel", {"arch": "sm90", "jobs": "1"})
    assert ended.value.code == 1
    assert "not today" in capsys.readouterr().err
    assert not (project / "dist").exists()


@pytest.mark.usefixtures("commands_share_artifacts")
def test_command_makes_the_wheels_of_a_project_for_all_its_hosts(project: Path, foreign: Host) -> None:
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + 'select = ["clip"]\n')
    done = in_project(project, "aot", "wheel", ".", "--out", "dist")
    assert done.returncode == 0, done.stderr
    assert sorted(Path(line).name for line in done.stdout.split()) == [
        f"sample_kernels-1.0-py3-none-manylinux_2_28_{cpu}.whl" for cpu in ("aarch64", "x86_64")
    ]
    refused = in_project(project, "aot", "wheel", ".", "--version", "2.0")
    assert refused.returncode == 2
    assert "its pyproject.toml states package, version and keys" in refused.stderr
