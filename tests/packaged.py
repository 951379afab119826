"""The sample project as a bundle and as wheels, and fresh environments to install them in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from places import EXAMPLE, TESTS

from aot.errors import ToolchainError
from aot.hosts import Host
from aot.link.nvidia import find_libraries
from aot.wheel.archive import write_wheels
from aot.wheel.identity import Identity
from aot.wheel.make import Project, wheels

SAMPLE = EXAMPLE

# Starts a program in an installed environment: the stand-in plays one device of capability 9.0.
STANDIN_PRELUDE = """
import os
from pathlib import Path
from standin import Standin
cuda = Standin.load(Path(os.environ["STANDIN"]))
cuda.reset(capabilities=[(9, 0)])
"""


@dataclass(frozen=True)
class Environment:
    """A fresh virtual environment: it has what was installed into it, and nothing of this checkout."""

    path: Path
    standin: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return next((self.path / "lib").glob("python*/site-packages"))

    def pip(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check"]
        return _run([*command, *map(str, arguments)], os.environ)

    def install(self, *wheels: object) -> None:
        done = self.pip("install", "-q", *wheels)
        assert done.returncode == 0, done.stderr

    def run(self, program: str, *, standin: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a program there. With ``standin`` it finds ``cuda``, a machine with one device."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        variables = {**clean, **self.variables}
        if standin:
            variables |= {"PYTHONPATH": str(TESTS), "STANDIN": str(self.standin)}
            program = STANDIN_PRELUDE + program
        return _run([str(self.python), "-c", program], variables)

    def output(self, program: str, *, standin: bool = False) -> str:
        done = self.run(program, standin=standin)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def _run(command: list[str], environment: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=environment)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="session")
def new_environment(standin_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    def make(*wheels: object) -> Environment:
        path = tmp_path_factory.mktemp("environment") / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
        made = Environment(path, standin_directory)
        if wheels:
            made.install(*wheels)
        return made

    return make


@pytest.fixture(scope="session")
def sample_bundle(shared_bundle: Callable[..., Path]) -> Path:
    """The sample project's kernels for this machine, with the CUDA runtime linked shared: the stand-in runs it."""
    return shared_bundle("sample", SAMPLE / "kernels", ("sm_80", "sm_90a"), name="sample_kernels", shared_cudart=True)


@pytest.fixture(scope="session")
def make_wheels(sample_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Path]]:
    def make(bundle: Path = sample_bundle, *, version: str = "1.0", split_arch: bool = False) -> list[Path]:
        project = Project(Identity.parse("sample_kernels", version))
        return write_wheels(wheels(bundle, project, split_arch=split_arch), tmp_path_factory.mktemp("wheels"))

    return make


@pytest.fixture(scope="session")
def sample_wheel(make_wheels: Callable[..., list[Path]]) -> Path:
    (wheel,) = make_wheels()
    return wheel


@pytest.fixture(scope="session")
def installed(new_environment: Callable[..., Environment], sample_wheel: Path) -> Environment:
    """A fresh environment with the sample's wheel, and what pip found that it needs."""
    return new_environment(sample_wheel)


@pytest.fixture(scope="session")
def native() -> Host:
    return Host.native()


@pytest.fixture(scope="session")
def foreign(cache: Path, native: Host) -> Host:
    """The host that this machine is not, after its NVIDIA wheels were fetched into the cache."""
    other = Host({"x86_64": "aarch64", "aarch64": "x86_64"}[native.cpu])
    try:
        find_libraries(other, 12, cache)
    except ToolchainError as error:
        pytest.skip(f"{other}'s wheels cannot be had: {error.message.splitlines()[0]}")
    return other
