"""NVIDIA's static libraries for a host: found where they are installed, never shipped by us.

Those of the native host come from the installed distributions, those of another host from its wheels: see
:mod:`aot.link.wheels`.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from ..errors import ToolchainError
from ..hosts import Host
from ..versions import installed_version
from .wheels import files_of_wheel

__all__ = ["NvidiaLibraries", "distributions", "find_libraries"]


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
            found.update(files_of_wheel(name, version, host, _is_wanted, cache=cache, wheelhouse=wheelhouse))
    shared = f"libcudart.so.{cuda}"
    for name in (_LAUNCH_SUPPORT, _CUDART_STATIC, shared):
        if name not in found:
            raise ToolchainError(f"{name} for {host} is not in {launch} or {runtime}")
    return NvidiaLibraries(found[_LAUNCH_SUPPORT], found[_CUDART_STATIC], found[shared], found.get(_CULIBOS))


def _installed_version(name: str) -> str:
    version = installed_version(name)
    if version is None:
        raise ToolchainError(f"{name} is not installed", hint=f"`pip install {name}`")
    return version


def _installed(name: str) -> dict[str, Path]:
    _installed_version(name)
    records = importlib.metadata.distribution(name).files or []
    return {path.name: Path(str(path.locate())) for path in records if _is_wanted(path.name)}


def _is_wanted(name: str) -> bool:
    return name in (_LAUNCH_SUPPORT, _CUDART_STATIC, _CULIBOS) or name.startswith("libcudart.so.")
