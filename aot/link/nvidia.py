"""NVIDIA's static libraries for a host: found where pip installed them, never shipped by us.

The native host's come from the installed distributions. Another host's come from that host's wheels,
which pip fetches once into a cache; each is checked against a digest recorded in ``data/wheels.json``.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath

from ..errors import ToolchainError
from ..files import sha256_of
from ..hosts import Host

__all__ = ["NvidiaLibraries", "distributions", "fetch_command", "find_libraries"]


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


def distributions(cuda: int) -> tuple[str, str]:
    """The distributions whose libraries are linked, for a CUDA major version."""
    return _DISTRIBUTIONS[cuda]


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
        digest = _pinned_digest(name, version, host)
        with tempfile.TemporaryDirectory(prefix="aot-wheels-") as downloads:
            source = wheelhouse or _fetch(name, version, host, Path(downloads))
            _unpack(_find_wheel(name, version, host, source, digest), folder)
    return {path.name: path for path in folder.iterdir()}


def _pinned_digest(name: str, version: str, host: Host) -> str:
    pinned: dict[str, str] = json.loads(files("aot").joinpath("data/wheels.json").read_text())["sha256"]
    key = f"{name}-{version}-{host.cpu}"
    if key not in pinned:
        known = sorted(other for other in pinned if other.startswith(f"{name}-") and other.endswith(host.cpu))
        raise ToolchainError(
            f"no digest is recorded for {name} {version} on {host.cpu}, so that its wheel cannot be checked",
            hint=f"install a version that was tested: {', '.join(known) or 'none for this host'}",
        )
    return pinned[key]


def fetch_command(name: str, version: str, host: Host, folder: Path) -> list[str]:
    """What pip is told to fetch another host's wheel."""
    platforms = [f"--platform=manylinux_2_{minor}_{host.cpu}" for minor in (28, 27, 17)]
    choice = ["--no-deps", "--only-binary=:all:", *platforms, f"--platform=manylinux2014_{host.cpu}"]
    return ["download", *choice, "--python-version=312", "--dest", str(folder), f"{name}=={version}"]


def _fetch(name: str, version: str, host: Host, folder: Path) -> Path:
    command = fetch_command(name, version, host, folder)
    result = subprocess.run([sys.executable, "-m", "pip", "-q", *command], capture_output=True, text=True)
    if result.returncode != 0:
        elsewhere = " ".join(fetch_command(name, version, host, Path("wheelhouse")))
        raise ToolchainError(
            f"pip could not fetch {name} {version} for {host}: {result.stderr.strip()}",
            hint=f"on a machine with a network run `pip {elsewhere}`, then build with `--wheelhouse wheelhouse`",
        )
    return folder


def _find_wheel(name: str, version: str, host: Host, folder: Path, digest: str) -> Path:
    """The wheel in a folder that has the digest. Those of other Python versions may lie beside it."""
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


def _unpack(wheel: Path, folder: Path) -> None:
    """Take the wanted files out of the wheel, flat, and let the folder appear whole, whoever else does the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                name = PurePosixPath(member).name
                if _is_wanted(name):
                    (staged / name).write_bytes(archive.read(member))
        staged.rename(folder)
    except OSError:
        if not folder.is_dir():  # nobody else was first
            raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)
