"""What a bundle is built from: the files of a source, the commit they came from, the versions of the tools."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..bundle.build_records import SourceRecord
from ..cache.keys import cutlass_distributions
from ..compile.messages import EXERCISE, KernelSources
from ..files import sha256_of
from ..link.nvidia import distributions
from ..versions import installed_version

__all__ = ["changed_tools", "kernel_sources", "source_record", "toolchain"]

_COMMIT = "# branch.oid "  # what the line begins with by which `git status` names the commit
_DATA = "file "  # what the names of files begin with that are not modules: see ``closure_of``


def kernel_sources(
    root: Path | None, kind: str, places: Mapping[str, str], digests: Mapping[str, str]
) -> KernelSources:
    """The files of a kernel, by names that hold wherever the source lies: see :class:`KernelSources`.

    Captured kernels name the modules of their library themselves; what calls them is the exercise.
    """
    if root is None:
        return KernelSources()
    if kind == EXERCISE:
        return KernelSources({root.name: sha256_of(root)})
    folder = root if root.is_dir() else root.parent
    files, modules = {}, {}
    for name, place in sorted(places.items()):
        path = Path(place)
        if path.is_relative_to(folder):
            files[path.relative_to(folder).as_posix()] = digests[name]
        elif not name.startswith(_DATA):  # a file of data that lies elsewhere has no name that holds on other machines
            modules[name] = digests[name]
    return KernelSources(files, modules)


def source_record(root: Path | None) -> SourceRecord:
    """The Python files of a source with their digests, the commit they came from, and whether they were altered since."""
    if root is None:
        return {"files": {}}
    folder = root if root.is_dir() else root.parent
    paths = sorted(_python_files(root)) if root.is_dir() else [root]
    files = {path.relative_to(folder).as_posix(): sha256_of(path) for path in paths}
    return {"name": root.name, **_commit(folder, root), "files": files}


def _python_files(folder: Path) -> Iterator[Path]:
    """All below a folder, but for hidden folders: environments and version control may lie there."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        yield from (path for name in names if name.endswith(".py") and (path := Path(place) / name).is_file())


def _commit(folder: Path, root: Path) -> SourceRecord:
    """The commit, if the source is under version control; ``clean`` is false if a file of it differs from the commit."""
    status = _git(folder, "status", "--branch", "--porcelain=v2", "--untracked-files=all", "--", str(root))
    if status is None:
        return {}
    lines = status.splitlines()
    commits = [line.removeprefix(_COMMIT) for line in lines if line.startswith(_COMMIT)]
    if commits in ([], ["(initial)"]):  # nothing was committed yet
        return {}
    return {"commit": commits[0], "clean": all(line.startswith("#") for line in lines)}


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


def changed_tools(before: Mapping[str, str], cuda: int) -> str:
    """What differs from an earlier toolchain, in words, or "". A plan without kernels has loaded no backend."""
    now = toolchain(cuda or int(before.get("cuda", 0)))
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return "; ".join(f"built with {name} {before.get(name)}, this is {now.get(name)}" for name in changed)
