"""Which kernels of a bundle are not what their sources say now.

A build records the digest of every file of the author that a kernel came from. Comparing these takes milliseconds and
executes nothing. Standard library only: bundles are inspected on machines that cannot build.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot_runtime.serving.values.sources import locate_source, source_digest

from ...errors import counted
from ...files import sha256_of
from ..manifest import Manifest

__all__ = ["Stale", "find_source", "known_stale", "stale_kernels", "stale_text", "unrecorded"]

_ABOVE = 3  # folders above a bundle beside which its source is looked for: dist/<name> is two below the project


@dataclass(frozen=True)
class Stale:
    """A kernel whose sources have changed since it was built."""

    kernel: str  # its name
    archs: tuple[str, ...]  # what it was built for from the old sources
    reason: str  # which file changed, or is gone


def known_stale(bundle: Path, manifest: Manifest, source: Path | None = None) -> list[Stale] | None:
    """What is stale in a bundle; None if its source is not here. ``source`` says where it is, else it is looked for."""
    found = source if source is not None and source.exists() else find_source(bundle, manifest)
    return stale_kernels(manifest, found) if found is not None else None


def find_source(bundle: Path, manifest: Manifest) -> Path | None:
    """The folder or file that a bundle was built from, if it lies here or beside the bundle."""
    for record in manifest.provenance:
        name = str(record["source"].get("name", ""))
        files = [file for one in record.get("built", {}).values() for file in one["files"]]
        telling = [file for file in files if not file.endswith("__init__.py")]  # which every folder may have
        for base in (Path(), *bundle.absolute().parents[:_ABOVE]):
            root = base / name
            if Path(name).name == name and any((_folder(root) / file).is_file() for file in telling):
                return root
    return None


def _folder(root: Path) -> Path:
    return root.parent if root.is_file() else root


def stale_kernels(manifest: Manifest, source: Path) -> list[Stale]:
    """The kernels that were built from other files than those at the source, each with the first that differs."""
    found = []
    for record in manifest.provenance:
        for kernel, one in record.get("built", {}).items():
            reason = next(_differences(manifest, kernel, one, _folder(source)), None)
            if reason is not None:
                found.append(Stale(kernel, tuple(one["archs"]), reason))
    return found


def stale_text(stale: list[Stale]) -> str:
    """What is stale, for people: kernels of which the same is said are named together."""
    by_reason: dict[str, list[Stale]] = {}
    for one in stale:
        by_reason.setdefault(one.reason, []).append(one)
    parts = [f"{reason} ({', '.join(one.kernel for one in own)})" for reason, own in by_reason.items()]
    return f"{counted(len(stale), 'kernel')} {'is' if len(stale) == 1 else 'are'} stale: {'; '.join(parts)}"


def unrecorded(manifest: Manifest) -> set[tuple[str, str]]:
    """Kernels with their architectures, for which no build recorded the sources."""
    held = {(kernel.name, str(arch)) for kernel in manifest.kernels.values() for arch in kernel.archs}
    known = {
        (kernel, arch)
        for record in manifest.provenance
        for kernel, one in record.get("built", {}).items()
        for arch in one["archs"]
    }
    return held - known


def _differences(manifest: Manifest, kernel: str, built: Mapping[str, Any], folder: Path) -> Iterator[str]:
    for name, digest in built["files"].items():
        yield from _compared(name, folder / name, digest)
    for name, digest in built["modules"].items():
        path = _located(name) if _is_module(name) else None
        if path is not None:  # not installed here: nobody can tell
            yield from _compared(name, Path(path), digest)
    record = manifest.kernels.get(kernel)
    for name, digest in ((record.captured if record is not None else None) or {}).get("sources", {}).items():
        if _is_module(name) and source_digest(name) not in (None, digest):
            yield f"{name} changed"


def _compared(name: str, path: Path, digest: str) -> Iterator[str]:
    try:
        if sha256_of(path) != digest:
            yield f"{name} changed"
    except OSError:
        yield f"{name} {'cannot be read' if path.is_file() else 'is gone'}"


def _located(module: str) -> str | None:
    """The file of a module, which is not imported for it: of one in a package, or of one that is a file alone."""
    found = locate_source(module)
    if found is not None or "." in module:
        return found
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


def _is_module(name: str) -> bool:
    """Names come from the bundle: nothing but a dotted name may be looked for."""
    return all(part.isidentifier() for part in name.split("."))
