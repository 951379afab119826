"""NVIDIA's static libraries for a host: found where pip installed them, never shipped by us.

The native host's come from the installed distributions. Another host's come from that host's wheels,
which pip fetches once into a cache; each is checked against a digest recorded in ``data/wheels.json``.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from ..digests import sha256_of
from ..errors import ToolchainError
from ..hosts import Host

__all__ = ["NvidiaLibraries", "find_libraries"]


@dataclass(frozen=True)
class NvidiaLibraries:
    """Paths of what the support library links. ``culibos`` is part of cudart_static from CUDA 13 on."""

    launch_support: Path
    cudart_static: Path
    cudart_shared: Path
    culibos: Path | None


_DISTRIBUTIONS = {
    12: ("nvidia-cutlass-dsl-libs-cu12", "nvidia-cuda-runtime-cu12"),
    13: ("nvidia-cutlass-dsl-libs-cu13", "nvidia-cuda-runtime"),
}
_LAUNCH_SUPPORT = "libcuda_dialect_runtime_static.a"
_CUDART_STATIC = "libcudart_static.a"
_CULIBOS = "libculibos.a"


def find_libraries(host: Host, cuda: int, cache: Path, wheelhouse: Path | None = None) -> NvidiaLibraries:
    """The libraries for a host and CUDA major version; :class:`ToolchainError` names what is missing."""
    launch, runtime = _DISTRIBUTIONS[cuda]
    if host.cpu == Host.native().cpu:
        found = {**_installed(launch), **_installed(runtime)}
    else:
        versions = {name: _installed_version(name) for name in (launch, runtime)}
        found = {}
        for name, version in versions.items():
            found.update(_from_wheel(name, version, host, cache, wheelhouse))
    shared = f"libcudart.so.{cuda}"
    for name in (_LAUNCH_SUPPORT, _CUDART_STATIC, shared):
        if name not in found:
            raise ToolchainError(f"{name} for {host} is not in {launch} or {runtime}")
    return NvidiaLibraries(found[_LAUNCH_SUPPORT], found[_CUDART_STATIC], found[shared], found.get(_CULIBOS))


def _installed_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainError(f"{name} is not installed", hint=f"`pip install {name}`") from None


def _installed(name: str) -> dict[str, Path]:
    _installed_version(name)
    records = importlib.metadata.distribution(name).files or []
    return {path.name: Path(str(path.locate())) for path in records if _is_wanted(path.name)}


def _is_wanted(name: str) -> bool:
    return name in (_LAUNCH_SUPPORT, _CUDART_STATIC, _CULIBOS) or name.startswith("libcudart.so.")


def _from_wheel(name: str, version: str, host: Host, cache: Path, wheelhouse: Path | None) -> dict[str, Path]:
    folder = cache / "wheels" / f"{name}-{version}-{host.cpu}"
    if not folder.is_dir():
        wheel = _find_wheel(name, version, host, wheelhouse) if wheelhouse else _fetch_wheel(name, version, host, cache)
        _check_wheel(wheel, name, version, host)
        _unpack(wheel, folder)
    return {path.name: path for path in folder.iterdir()}


def _fetch_command(name: str, version: str, host: Host, folder: Path) -> list[str]:
    platforms = [f"--platform=manylinux_2_{minor}_{host.cpu}" for minor in (28, 27, 17)] + [
        f"--platform=manylinux2014_{host.cpu}"
    ]
    requirement = f"{name}=={version}"
    return [
        "download",
        "--no-deps",
        "--only-binary=:all:",
        *platforms,
        "--python-version=312",
        "--dest",
        str(folder),
        requirement,
    ]


def _fetch_wheel(name: str, version: str, host: Host, cache: Path) -> Path:
    folder = cache / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    command = _fetch_command(name, version, host, folder)
    result = subprocess.run([sys.executable, "-m", "pip", "-q", *command], capture_output=True, text=True)
    if result.returncode != 0:
        raise ToolchainError(
            f"pip could not fetch {name} {version} for {host}: {result.stderr.strip()}",
            hint=f"on a machine with a network run `pip {' '.join(command)}`, then build with `--wheelhouse`",
        )
    return _find_wheel(name, version, host, folder)


def _find_wheel(name: str, version: str, host: Host, folder: Path) -> Path:
    pattern = f"{name.replace('-', '_')}-{version}-*{host.cpu}.whl"
    wheels = sorted(folder.glob(pattern))
    if not wheels:
        command = " ".join(_fetch_command(name, version, host, folder))
        raise ToolchainError(f"`{folder}` holds no {pattern}", hint=f"fetch it with `pip {command}`")
    return wheels[0]


def _check_wheel(wheel: Path, name: str, version: str, host: Host) -> None:
    pinned: dict[str, Any] = json.loads(files("aot").joinpath("data/wheels.json").read_text())
    expected = pinned["sha256"].get(f"{name}-{version}-{host.cpu}")
    digest = sha256_of(wheel)
    if expected is None:
        raise ToolchainError(
            f"no digest is recorded for {name} {version} on {host.cpu}",
            hint=f"tested versions: {', '.join(pinned['sha256'])}",
        )
    if digest != expected:
        raise ToolchainError(f"`{wheel}` has sha256 {digest}, expected {expected}", hint="delete it and fetch it again")


def _unpack(wheel: Path, folder: Path) -> None:
    """Take the wanted files out of the wheel, flat, and let the folder appear whole."""
    staged = folder.with_name(folder.name + ".partial")
    staged.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            name = PurePosixPath(member).name
            if _is_wanted(name):
                (staged / name).write_bytes(archive.read(member))
    staged.rename(folder)
