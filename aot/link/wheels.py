"""Wheels of another host: fetched once with pip or uv, checked against a pinned digest, unpacked into a cache.

The digests are in ``data/wheels.json``. A wheel with another digest, or of a version without one, is refused.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import ToolchainError
from ..files import make_marked, scratch_directory, sha256_of
from ..hosts import Host

__all__ = ["fetch_command", "files_of_wheel", "pinned_libraries"]

_PYTHON = "3.12"  # of another host, wheels for it or for every Python are pinned

Wanted = Callable[[str], bool]  # whether a file is, by its base name


def files_of_wheel(
    name: str, version: str, host: Host, wanted: Wanted, *, cache: Path, wheelhouse: Path | None
) -> dict[str, Path]:
    """The wanted files of a distribution's wheel for a host, by their base names."""
    folder = cache / "wheels" / f"{name}-{version}-{host.cpu}"
    if not folder.is_dir():
        digest = _pinned_digest(name, version, host)
        with tempfile.TemporaryDirectory(prefix="aot-wheels-") as scratch:
            place, unpacked = wheelhouse or Path(scratch), Path(scratch, "unpacked")
            if wheelhouse is None and importlib.util.find_spec("pip") is None:
                _fetch_with_uv(name, version, host, unpacked, digest)
            else:
                if wheelhouse is None:
                    _fetch_with_pip(name, version, host, place)
                wheel = _find_wheel(name, version, host, place, digest)
                _unpack(wheel, unpacked, wanted)
            _copy(unpacked, folder, wanted)
    return {path.name: path for path in folder.iterdir() if wanted(path.name)}


def pinned_libraries(name: str, version: str, host: Host) -> dict[str, set[str]]:
    """The digests of a distribution's libraries, by their base names; none for a version that was not looked at.

    A library has several: wheels for different versions of Python hold different builds of it.
    """
    pinned: dict[str, dict[str, dict[str, str]]] = _pinned()["libraries"]
    libraries = pinned.get(f"{name}-{version}-{host.cpu}", {})
    return {library: set(digests.values()) for library, digests in libraries.items()}


def fetch_command(name: str, version: str, host: Host, folder: Path) -> list[str]:
    """What pip is told to fetch another host's wheel."""
    platforms = [f"--platform=manylinux_2_{minor}_{host.cpu}" for minor in (28, 27, 17)]
    choice = ["--no-deps", "--only-binary=:all:", *platforms, f"--platform=manylinux2014_{host.cpu}"]
    python = f"--python-version={_PYTHON.replace('.', '')}"
    return ["download", *choice, python, "--dest", str(folder), f"{name}=={version}"]


def _pinned_digest(name: str, version: str, host: Host) -> str:
    pinned: dict[str, str] = _pinned()["sha256"]
    key = f"{name}-{version}-{host.cpu}"
    if key not in pinned:
        known = sorted(other for other in pinned if other.startswith(f"{name}-") and other.endswith(host.cpu))
        raise ToolchainError(
            f"no digest is recorded for {name} {version} on {host.cpu}, so its wheel cannot be checked",
            hint=f"install a version that was tested: {', '.join(known) or 'none for this host'}",
        )
    return pinned[key]


def _pinned() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(files("aot").joinpath("data/wheels.json").read_text())
    return data


def _fetch_with_pip(name: str, version: str, host: Host, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "-q", *fetch_command(name, version, host, folder)]
    _run(command, f"pip could not fetch {name} {version} for {host}", name, version, host)


def _fetch_with_uv(name: str, version: str, host: Host, target: Path, digest: str) -> None:
    """Let uv unpack the wheel into a folder. uv compares the digest itself, and keeps no wheel for us to look at."""
    uv = shutil.which("uv")
    if uv is None:
        raise ToolchainError(
            f"{name} {version} for {host} must be fetched, but this environment has no pip, and `uv` is not on PATH",
            hint=_without_network(name, version, host),
        )
    requirements = target.with_name("requirements.txt")
    requirements.write_text(f"{name}=={version} --hash=sha256:{digest}\n")
    platform = ["--python-platform", f"{host.cpu}-manylinux_2_28", "--python-version", _PYTHON]
    choice = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--python", sys.executable, *platform]
    command = [uv, "pip", "install", "-q", *choice, "--target", str(target), "-r", str(requirements)]
    _run(command, f"uv could not fetch {name} {version} for {host}", name, version, host)


def _run(command: Sequence[str], failure: str, name: str, version: str, host: Host) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise ToolchainError(f"{failure}: {result.stderr.strip()}", hint=_without_network(name, version, host))


def _without_network(name: str, version: str, host: Host) -> str:
    command = " ".join(fetch_command(name, version, host, Path("wheelhouse")))
    return f"on a machine with pip and a network run `pip {command}`, then build with `--wheelhouse wheelhouse`"


def _find_wheel(name: str, version: str, host: Host, folder: Path, digest: str) -> Path:
    """The wheel in a folder that has the digest. Wheels for other Python versions may lie beside it."""
    stem = f"{name.replace('-', '_')}-{version}"
    wheels = [wheel for tag in ("cp312", "py3") for wheel in sorted(folder.glob(f"{stem}-{tag}-*{host.cpu}.whl"))]
    command = f"pip {' '.join(fetch_command(name, version, host, folder))}"
    if not wheels:
        raise ToolchainError(f"`{folder}` holds no wheel of {name} {version} for {host}", hint=f"fetch it: `{command}`")
    seen = {wheel: sha256_of(wheel) for wheel in wheels}
    for wheel, found in seen.items():
        if found == digest:
            return wheel
    raise ToolchainError(
        f"`{wheels[0]}` has sha256 {seen[wheels[0]]}, expected {digest}: it is not the wheel that was tested",
        hint=f"delete it and fetch it again: `{command}`",
    )


def _unpack(wheel: Path, folder: Path, wanted: Wanted) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [member for member in archive.namelist() if wanted(PurePosixPath(member).name)])


def _copy(unpacked: Path, folder: Path, wanted: Wanted) -> None:
    with _appears_whole(folder) as staged:
        for path in unpacked.rglob("*"):
            if wanted(path.name) and path.is_file():
                shutil.copyfile(path, staged / path.name)


@contextmanager
def _appears_whole(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``folder`` at the end. Another process that does the same may be first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_directory(folder.parent, prefix=f".{folder.name}.") as place:
        staged = place / folder.name
        make_marked(staged)
        yield staged
        try:
            staged.rename(folder)
        except OSError:
            if not folder.is_dir():  # nobody else was first
                raise
