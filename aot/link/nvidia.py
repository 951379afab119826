"""NVIDIA's static libraries for a host: found where they are installed, never shipped by us.

Those of the native host come from the installed distributions, those of another host from its wheels: see
:mod:`aot.link.wheels`.
"""

from __future__ import annotations

import importlib.metadata
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ToolchainError
from ..files import sha256_of
from ..hosts import Host
from ..versions import installed_version
from .wheels import files_of_wheel, pinned_libraries

__all__ = ["NvidiaLibraries", "distributions", "find_libraries", "linked_digests"]


@dataclass(frozen=True)
class NvidiaLibraries:
    """Paths of what the support library links. ``culibos`` is part of cudart_static from CUDA 13 on.

    ``digests`` are those of the files, by name.
    """

    launch_support: Path
    cudart_static: Path
    cudart_shared: Path
    culibos: Path | None
    digests: Mapping[str, str]


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
    versions = {name: _installed_version(name) for name in (launch, runtime)}
    found: dict[str, Path] = {}
    digests: dict[str, str] = {}
    for name, version in versions.items():
        if host.cpu == Host.native().cpu:
            libraries, expected = _installed(name)
        else:
            libraries = files_of_wheel(name, version, host, _is_wanted, cache=cache, wheelhouse=wheelhouse)
            expected = {}
        expected |= pinned_libraries(name, version, host)
        digests.update(_digests(libraries, expected, f"{name} {version}"))
        found.update(libraries)
    shared = f"libcudart.so.{cuda}"
    for name in (_LAUNCH_SUPPORT, _CUDART_STATIC, shared):
        if name not in found:
            raise ToolchainError(f"{name} for {host} is not in {launch} or {runtime}")
    return NvidiaLibraries(found[_LAUNCH_SUPPORT], found[_CUDART_STATIC], found[shared], found.get(_CULIBOS), digests)


def linked_digests(libraries: Mapping[Host, NvidiaLibraries], *, shared_cudart: bool) -> dict[str, str]:
    """The digests of the files that support libraries are linked from, by host and name."""
    linked = {
        f"{host.name}/{path.name}": one.digests[path.name]
        for host, one in libraries.items()
        for path in (one.launch_support, *(() if shared_cudart else (one.cudart_static, one.culibos)))
        if path is not None
    }
    return dict(sorted(linked.items()))


def _installed_version(name: str) -> str:
    version = installed_version(name)
    if version is None:
        raise ToolchainError(f"{name} is not installed", hint=f"`pip install {name}`")
    return version


def _installed(name: str) -> tuple[dict[str, Path], dict[str, set[str]]]:
    """The libraries of an installed distribution, and the digests that its installer wrote down."""
    records = [path for path in importlib.metadata.distribution(name).files or [] if _is_wanted(path.name)]
    hashes = {path.name: path.hash for path in records if path.hash is not None and path.hash.mode == "sha256"}
    recorded = {name: {urlsafe_b64decode(f"{hash.value}==").hex()} for name, hash in hashes.items()}
    return {path.name: Path(str(path.locate())) for path in records}, recorded


def _digests(libraries: Mapping[str, Path], expected: Mapping[str, set[str]], distribution: str) -> dict[str, str]:
    """The digests of libraries. One that is not the library that was tested, or that was installed, is refused."""
    seen = {name: sha256_of(path) for name, path in libraries.items()}
    for name, path in libraries.items():
        known = expected.get(name, {seen[name]})
        if seen[name] not in known:
            raise ToolchainError(
                f"`{path}` has sha256 {seen[name]}, expected {' or '.join(sorted(known))}: "
                f"it is not the library of {distribution}",
                hint=f"install {distribution.partition(' ')[0]} again; if the file lies in the cache, remove its folder",
            )
    return seen


def _is_wanted(name: str) -> bool:
    return name in (_LAUNCH_SUPPORT, _CUDART_STATIC, _CULIBOS) or name.startswith("libcudart.so.")
