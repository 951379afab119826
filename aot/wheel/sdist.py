"""The sdist of a kernel project: the files its wheel is built from, and those its ``pyproject.toml`` names."""

from __future__ import annotations

import dataclasses
import gzip
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import BuildError, UsageError, system_hint
from ..files import write_whole
from .make import project_metadata
from .pyproject import KernelProject

__all__ = ["write_sdist"]

_SKIPPED = frozenset({"__pycache__", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


def write_sdist(project: KernelProject, directory: Path, epoch: int | None = None) -> Path:
    """Write ``name-version.tar.gz``, the same bytes for the same files."""
    identity = project.project.identity
    name = f"{identity.file_name}-{identity.version}"
    path = directory / f"{name}.tar.gz"
    files = {relative: (project.root / relative).read_bytes() for relative in sorted(set(_files(project)))}
    files["PKG-INFO"] = _package_info(project)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(path, gzip.compress(_tar(name, files, epoch or 0), mtime=epoch or 0))
    except OSError as error:
        raise BuildError(f"cannot write to `{directory}`: {error.strerror}", hint=system_hint(error)) from error
    return path


def _files(project: KernelProject) -> Iterator[str]:
    root, metadata = project.root, project.project.metadata
    yield "pyproject.toml"
    if project.table.version_file is not None:
        yield project.table.version_file
    yield from project.table.key
    yield from project.project.licenses
    if metadata is not None and metadata.readme is not None and metadata.readme.file is not None:
        yield Path(metadata.readme.file).relative_to(root).as_posix()
    yield from _below(root, root / project.table.kernels)
    for pattern in project.table.sdist_include:
        found = [name for path in root.glob(pattern) for name in _below(root, path)]
        if not found:
            raise UsageError(f"[tool.cute-aot]: `sdist-include` has {pattern!r}, which matches nothing")
        yield from found


def _below(root: Path, path: Path) -> Iterator[str]:
    """A file, or all files of a folder; nothing for an importable module, which lies elsewhere."""
    paths = [path] if path.is_file() else path.rglob("*")
    for file in paths:
        relative = file.relative_to(root)
        if file.is_file() and not _SKIPPED.intersection(relative.parts):
            yield relative.as_posix()


def _package_info(project: KernelProject) -> bytes:
    # The wheel's metadata without the licences of the linked libraries, which the sdist does not contain.
    licenses = [Path(name) for name in project.project.licenses]
    return bytes(dataclasses.replace(project_metadata(project.project), license_files=licenses).as_rfc822())


def _tar(name: str, files: dict[str, bytes], epoch: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for relative, content in sorted(files.items()):
            info = tarfile.TarInfo(f"{name}/{relative}")
            info.size, info.mtime, info.mode = len(content), epoch, 0o644
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
