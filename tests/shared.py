"""Bundles and libraries that many test files use. The first process of a run that asks for one makes it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from once import folder_of_run, once
from places import PROJECT, SAMPLES, TESTS
from standin import build as build_standin
from standin import build_traps

from aot.compile.messages import EXERCISE, Options
from aot.pipeline.settings import BuildResult

# Between them these meet every rule of selection: portable, exact, family, and two that share a device.
STANDIN_ARCHS = ("sm_80", "sm_86", "sm_90a", "sm_100f", "sm_103a", "sm_120f")


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of this run share."""
    return folder_of_run(tmp_path_factory)


@pytest.fixture(scope="session")
def artifacts_of_run(run_folder: Path) -> Path:
    """The artifact cache of this run, which begins empty: the same kernel is compiled once."""
    return run_folder / "artifacts"


@pytest.fixture
def commands_share_artifacts(artifacts_of_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that a test starts find what this run has compiled. For tests of something else than compiling."""
    monkeypatch.setenv("AOT_CACHE", str(artifacts_of_run))


@pytest.fixture(scope="session")
def shared_bundle(builder: Callable[..., BuildResult], run_folder: Path) -> Callable[..., Path]:
    """A bundle that many test files use. Tests that alter it take a copy. Each label stands for one bundle."""

    def get(label: str, kernels: Path, archs: tuple[str, ...], **settings: object) -> Path:
        asked = repr((archs, settings.get("select")))

        def make(folder: Path) -> None:
            assert not builder(kernels, archs, out=folder / "bundle", **settings).failures
            (folder / "asked").write_text(asked)

        folder = once(run_folder / label, make)
        assert (folder / "asked").read_text() == asked, f"another bundle has the label {label}"
        return folder / "bundle"

    return get


@pytest.fixture(scope="session")
def small_bundle_path(shared_bundle: Callable[..., Path]) -> Path:
    """Two kernels for two architectures, as a user has them. Tests that alter it take a copy."""
    kernels = ("fill_epilogue", "fill_stream_zero")
    return shared_bundle("small", SAMPLES / "fill.py", ("sm_80", "sm_90a"), name="small", select=kernels)


@pytest.fixture(scope="session")
def rows_bundle(shared_bundle: Callable[..., Path]) -> Path:
    """What ``tests/foreign/exercise.py`` compiles: a captured bundle, with the CUDA runtime linked shared."""
    settings = {"name": "rows", "shared_cudart": True, "archives": False, "options": Options(source=EXERCISE)}
    return shared_bundle("rows", TESTS / "foreign" / "exercise.py", ("sm_90a",), **settings)


@pytest.fixture(scope="session")
def standin_bundle_path(shared_bundle: Callable[..., Path]) -> Path:
    """The test kernels for all of ``STANDIN_ARCHS``, with the CUDA runtime linked shared. Many tests take a copy."""
    return shared_bundle("samples", SAMPLES, STANDIN_ARCHS, shared_cudart=True, archives=False, jobs=2)


@pytest.fixture(scope="session")
def cpp_bundle(shared_bundle: Callable[..., Path]) -> Path:
    """What programs in C and C++ call: some of the test kernels, with the CUDA runtime linked shared."""
    kernels = ("fill", "fill_pair", "fill_pointer", "fill_optional", "fill_epilogue", "fill_everywhere", "fill_parts")
    return shared_bundle("cpp", SAMPLES, ("sm_80", "sm_90a"), select=kernels, shared_cudart=True)


@pytest.fixture(scope="session")
def demo_bundle_path(shared_bundle: Callable[..., Path]) -> Path:
    """The kernels of the C++ demos: unlike the test kernels, these are operators of torch."""
    settings = {"name": "demo", "shared_cudart": True, "archives": False}
    return shared_bundle("demo", PROJECT / "cpp_demo" / "kernels", ("sm_90a",), **settings)


@pytest.fixture(scope="session")
def plain_demo_path(shared_bundle: Callable[..., Path]) -> Path:
    """The same kernels as a user has them, for processes without the stand-in."""
    settings = {"name": "plain_demo", "archives": False}
    return shared_bundle("plain_demo", PROJECT / "cpp_demo" / "kernels", ("sm_90a",), **settings)


@pytest.fixture(scope="session")
def standin_directory(run_folder: Path) -> Path:
    """Where the stand-in's libraries lie, for tests that start processes of their own."""
    return once(run_folder / "standin", build_standin)


@pytest.fixture(scope="session")
def project_wheel(run_folder: Path) -> Path:
    """The wheel of this project, alone in its folder."""
    # What is installed for building is used; else pip fetches it.
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("scikit_build_core") else []
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]

    def make(folder: Path) -> None:
        command = [*pip, "wheel", str(PROJECT), "--no-deps", *isolation, "--wheel-dir", str(folder)]
        subprocess.run(command, check=True)

    (wheel,) = once(run_folder / "project_wheel", make).glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def traps(run_folder: Path) -> Path:
    """A folder with CUDA libraries that end a process that opens them."""
    return once(run_folder / "traps", build_traps)
