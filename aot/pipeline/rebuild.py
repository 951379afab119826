"""Proving a bundle: rebuild it from its source, without a cache, and compare every byte."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from aot_runtime.arch import Arch

from ..bundle.manifest import Manifest
from ..compile.messages import Options
from ..errors import UsageError
from ..files import owned_directory
from ..hosts import Host
from .build import build
from .events import Progress
from .settings import Settings, Tilings

__all__ = ["rebuild"]


def rebuild(bundle: Path, settings: Settings, scratch: Path, progress: Progress | None = None) -> list[str]:
    """Every way in which the bundle differs from what its source gives now; ``settings`` name the source and tools."""
    manifest = Manifest.read(bundle)
    with owned_directory(scratch, prefix="aot-build-") as folder:
        made: Manifest | None = None
        for (archs, tilings), kernels in _groups(manifest).items():  # what was built alike in one build
            build_settings = dataclasses.replace(
                settings,
                archs=archs,
                tilings=tilings,
                select=tuple(kernels),
                name=manifest.name,
                out=folder / "bundle",
                hosts=_hosts(manifest),
                shared_cudart=any(host.cudart != "static" for host in manifest.hosts.values()),
                options=_options(manifest),
                artifacts=None,
                remote=None,
                add=True,
                archives=any(path.endswith(".a") for path in manifest.files),
            )
            made = build(build_settings, progress).manifest
    assert made is not None
    return _differences(manifest, made)


def _groups(manifest: Manifest) -> dict[tuple[tuple[Arch, ...], Tilings], list[str]]:
    groups: dict[tuple[tuple[Arch, ...], Tilings], list[str]] = {}
    core = {
        name
        for record in manifest.provenance
        if record.get("options", {}).get("tilings") == "core"
        for name in record.get("built", {})
    }
    for kernel in manifest.kernels.values():
        groups.setdefault((kernel.archs, "core" if kernel.name in core else "all"), []).append(kernel.name)
    if not groups:
        raise UsageError("the bundle holds no kernel")
    return groups


def _hosts(manifest: Manifest) -> tuple[Host, ...]:
    return tuple(Host.of_record(name, record) for name, record in manifest.hosts.items())


def _options(manifest: Manifest) -> Options:
    kept = {path.rpartition(".")[2] for path in manifest.files if path.startswith("kept/")}
    return Options(cuda=int(manifest.toolchain["cuda"]), keep=tuple(sorted(kept)))


def _differences(manifest: Manifest, made: Manifest) -> list[str]:
    problems = [
        f"{part}: the bundle was built with {before}, this is {now}"
        for part, before, now in _changed(manifest.toolchain, made.toolchain)
    ]
    for path in sorted({*manifest.files, *made.files}):
        if path not in made.files:
            problems.append(f"{path} is not in the rebuilt bundle")
        elif path not in manifest.files:
            problems.append(f"{path} is in the rebuilt bundle alone")
        elif manifest.files[path] != made.files[path]:
            problems.append(f"{path} is not reproducible: rebuilt bytes differ")
    return problems


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, str | None, str | None]]:
    names = sorted({*before, *now})
    return [(name, before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)]
