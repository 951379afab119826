"""A package index that has a cute-aot 99.0 of somebody else: no documented command takes it. Loopback only."""

from __future__ import annotations

import ensurepip
import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from email.parser import Parser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pip
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import EXAMPLE, PROJECT

from tests.docs.pages import blocks

if TYPE_CHECKING:
    from packaged import Environment

INSTALL = PROJECT / "docs" / "guides" / "install.md"
SECONDS = 120
BACKEND = "def build_wheel(*arguments, **settings):\n    raise SystemExit('the backend of cute-aot {version}')\n"


def write_wheel(folder: Path, name: str, version: str, files: Mapping[str, str], requires: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    wheel = folder / f"{stem}-py3-none-any.whl"
    information = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nProvides-Extra: build\n{requires}",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, **{f"{stem}.dist-info/{key}": text for key, text in information.items()}}.items():
            archive.writestr(path, text)
    return wheel


def with_backend(folder: Path, version: str) -> Path:
    """A cute-aot whose build backend says its version and builds nothing."""
    return write_wheel(folder, "cute-aot", version, {"aot/build_backend.py": BACKEND.format(version=version)})


def stub_dependencies(index: Path, wheel: Path) -> None:
    """What the wheel's extra ``build`` needs, empty, in the lowest version that will do."""
    (metadata,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    listed = Parser().parsestr(zipfile.ZipFile(wheel).read(metadata).decode()).get_all("Requires-Dist", [])
    for need in map(Requirement, listed):
        lowest = next((part.version for part in need.specifier if part.operator == ">="), None)
        if lowest is not None and canonicalize_name(need.name) != "cute-aot":
            write_wheel(index / canonicalize_name(need.name), canonicalize_name(need.name), lowest, {})


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path, project_wheel: Path) -> Iterator[str]:
    """The address of an index with the dependencies, and a cute-aot 99.0."""
    folder = tmp_path / "simple"
    with_backend(folder / "cute-aot", "99.0")
    stub_dependencies(folder, project_wheel)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple/"
        server.shutdown()


@pytest.fixture
def environment(index: str) -> dict[str, str]:
    """pip with this index and no other, whatever the machine is set to."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    settings = {"INDEX_URL": index, "CONFIG_FILE": os.devnull, "NO_CACHE_DIR": "1", "DISABLE_PIP_VERSION_CHECK": "1"}
    return {**kept, "NO_PROXY": "127.0.0.1", **{f"PIP_{name}": value for name, value in settings.items()}}


def documented() -> list[str]:
    """The commands of the guide."""
    return [line for block in blocks(INSTALL) if block.language == "bash" for line in block.code.splitlines()]


def chosen(command: list[str], folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What ``pip install`` would install, and from where."""
    words = [sys.executable, "-m", *command, "--dry-run", "--ignore-installed", "-q", "--report", "-"]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    packages = json.loads(done.stdout)["install"]
    return {canonicalize_name(item["metadata"]["name"]): item["download_info"]["url"] for item in packages}


def test_the_documented_command_takes_our_wheel_and_the_dependencies_of_the_index(
    project_wheel: Path, index: str, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "wheels").symlink_to(project_wheel.parent)
    (command,) = (line for line in documented() if re.match(r"pip install '\./wheels/.*\[build\]'", line))
    taken = chosen(shlex.split(command), tmp_path, environment)
    assert taken.pop("cute-aot").startswith("file:")
    assert {"apache-tvm-ffi", "nvidia-cutlass-dsl", "pyelftools"} <= set(taken)  # of the base, of `build`, of `tools`
    assert all(url.startswith(index) for url in taken.values())


def test_the_bare_name_would_take_the_package_of_somebody_else(
    project_wheel: Path, index: str, environment: dict[str, str], tmp_path: Path
) -> None:
    command = ["pip", "install", "--find-links", str(project_wheel.parent), "cute-aot[build]"]
    assert chosen(command, tmp_path, environment)["cute-aot"] == f"{index}cute-aot/cute_aot-99.0-py3-none-any.whl"


BUNDLED_PIP = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"), None)
INSTALLED_PIP = Path(pip.__file__).parent
FRONTENDS = {
    "pip": ["python", str(INSTALLED_PIP), "wheel", ".", "--no-deps"],
    "the pip that Python brings": ["python", f"{BUNDLED_PIP}/pip", "wheel", ".", "--no-deps"],
    "build": [sys.executable, "-m", "build", "--wheel"],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A kernel project, and in ``wheels`` a cute-aot 0.1.0 whose backend can be told from that of the index."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text((EXAMPLE / "pyproject.toml").read_text())
    with_backend(folder / "wheels", "0.1.0")
    return folder


@pytest.fixture
def bare_environment(environment: dict[str, str], new_environment: Callable[..., Environment]) -> dict[str, str]:
    """Without cute-aot: the import hook of an editable install is seen even by isolated builds."""
    return {**environment, "PATH": f"{new_environment().path / 'bin'}{os.pathsep}{environment['PATH']}"}


def backend_of(frontend: str, project: Path, environment: Mapping[str, str], before: str = "true") -> str:
    """The version of the backend that an isolated build of the project runs."""
    command = f"{before}\n{shlex.join(FRONTENDS[frontend])}"
    done = subprocess.run(
        ["bash", "-euc", command], cwd=project, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    (version,) = set(re.findall(r"the backend of cute-aot ([\d.]+)", done.stdout + done.stderr)) or {
        done.stdout + done.stderr
    }
    return version


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_isolated_builds_take_the_wheel_that_the_constraint_names(
    project: Path, bare_environment: dict[str, str], frontend: str
) -> None:
    if frontend == "the pip that Python brings" and BUNDLED_PIP is None:
        pytest.skip("this Python brings no pip")
    before = "\n".join(line for line in documented() if "constraint" in line.lower())
    assert backend_of(frontend, project, bare_environment, before) == "0.1.0"


def test_without_the_constraint_an_isolated_build_takes_the_package_of_somebody_else(
    project: Path, bare_environment: dict[str, str]
) -> None:
    assert backend_of("pip", project, bare_environment | {"PIP_FIND_LINKS": str(project / "wheels")}) == "99.0"
