"""What a bundle was built from, by which versions, with which options: the records of ``provenance.json``."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..bundle.build_records import BuildOptions, BuildRecord, SourceRecord
from ..cache.keys import cutlass_distributions
from ..files import sha256_of
from ..link.nvidia import distributions
from ..versions import installed_version
from .settings import Settings

__all__ = ["build_record", "joined", "source_record", "toolchain"]


def build_record(settings: Settings) -> BuildRecord:
    """The record of one build. Which kernels, architectures and hosts it made, the bundle itself says."""
    compiled = settings.options
    options: BuildOptions = {
        "cuda": compiled.cuda,
        "line_info": compiled.line_info,
        "keep": sorted(compiled.keep),  # in whatever order they were asked for
        "source": compiled.source,
        "shared_cudart": settings.shared_cudart,
        "archives": settings.archives,
    }
    return {
        "source": source_record(settings.kernels),
        "options": options,
        "versions": {"python": platform.python_version(), "build_host": f"{platform.machine()}-{sys.platform}"},
    }


def joined(records: Iterable[Sequence[Mapping[str, Any]]]) -> tuple[dict[str, Any], ...]:
    """The records of several bundles that become one, each once, in their order."""
    found: list[dict[str, Any]] = []
    for record in (dict(record) for listed in records for record in listed):
        if record not in found:
            found.append(record)
    return tuple(found)


def source_record(kernels: str) -> SourceRecord:
    """The Python files of a source with their digests, the commit they came from, and whether they were altered since."""
    root = _root(kernels)
    if root is None:
        return {"files": {}}
    folder = root if root.is_dir() else root.parent
    paths = sorted(_python_files(root)) if root.is_dir() else [root]
    files = {path.relative_to(folder).as_posix(): sha256_of(path) for path in paths}
    return {**_commit(folder, root), "files": files}


def _python_files(folder: Path) -> Iterator[Path]:
    """All below a folder, but for hidden folders: environments and version control may lie there."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        yield from (path for name in names if name.endswith(".py") and (path := Path(place) / name).is_file())


def _root(kernels: str) -> Path | None:
    """The file or folder that a source lies in."""
    path = Path(kernels)
    if path.exists():
        return path.resolve()
    spec = importlib.util.find_spec(kernels.partition(".")[0]) if kernels.partition(".")[0].isidentifier() else None
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    found = origin.parent if origin.name == "__init__.py" else origin
    return found.resolve() if found.exists() else None


def _commit(folder: Path, root: Path) -> SourceRecord:
    """The commit, if the source is under version control; ``clean`` is false if a file of it differs from the commit."""
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=all", "--", str(root))
    if commit is None or changed is None:
        return {}
    return {"commit": commit.strip(), "clean": not changed.strip()}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def toolchain(cuda: int) -> dict[str, str]:
    """The versions that shape the code of a bundle."""
    names = [name.replace("_", "-") for name in cutlass_distributions()]
    wanted = sorted({*names, *distributions(cuda), "cute-aot", "apache-tvm-ffi", "ziglang"})
    versions = {name: found for name in wanted if (found := installed_version(name)) is not None}
    return {**versions, "cuda": str(cuda)}
