"""What a bundle was built from, by which versions, with which options: the records of ``provenance.json``."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch

from ..bundle.build_records import BuildOptions, BuildRecord, BuiltRecord, SourceRecord
from ..cache.keys import cutlass_distributions
from ..compile.messages import EXERCISE, KernelSources
from ..files import sha256_of
from ..link.nvidia import distributions
from ..versions import installed_version
from .settings import Settings

__all__ = ["build_record", "joined", "kernel_sources", "only", "source_record", "source_root", "toolchain"]

_DATA = "file "  # what the names of files begin with that are not modules: see ``closure_of``


def build_record(
    settings: Settings, linked: Mapping[str, str], built: Iterable[tuple[str, Arch, KernelSources]] = ()
) -> BuildRecord:
    """The record of one build: what it read, and what it built of that, kernel by kernel.

    ``linked`` are the digests of NVIDIA's libraries that went into it.
    """
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
        "source": {**source_record(settings.kernels), "linked": linked},
        "options": options,
        "versions": {"python": platform.python_version(), "build_host": f"{platform.machine()}-{sys.platform}"},
        "built": _built(built),
    }


def _built(given: Iterable[tuple[str, Arch, KernelSources]]) -> dict[str, BuiltRecord]:
    found: dict[str, BuiltRecord] = {}
    for kernel, arch, sources in sorted(given, key=itemgetter(0, 1)):
        one: BuiltRecord = {"archs": [str(arch)], "files": sources.files, "modules": sources.modules}
        found[kernel] = _together(found[kernel], one) if kernel in found else one
    return found


def _together(one: BuiltRecord, other: BuiltRecord) -> BuiltRecord:
    """The record of a kernel that was built for other architectures too, from the same files."""
    archs = sorted({*one["archs"], *other["archs"]}, key=Arch.parse)
    return {
        "archs": archs,
        "files": dict(sorted({**one["files"], **other["files"]}.items())),
        "modules": dict(sorted({**one["modules"], **other["modules"]}.items())),
    }


def kernel_sources(kernels: str, kind: str, places: Mapping[str, str], digests: Mapping[str, str]) -> KernelSources:
    """The files of a kernel, by names that hold wherever the source lies: see :class:`KernelSources`.

    Captured kernels name the modules of their library themselves; what calls them is the exercise.
    """
    root = source_root(kernels)
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


def only(records: Iterable[Mapping[str, Any]], pairs: Collection[tuple[str, Arch]]) -> tuple[Mapping[str, Any], ...]:
    """The records of what is taken of a bundle: those kernels for those architectures."""
    taken = {(kernel, str(arch)) for kernel, arch in pairs}
    found: list[Mapping[str, Any]] = []
    for record in records:
        if "built" not in record:  # nobody knows what it built
            found.append(record)
            continue
        built = {
            kernel: {**one, "archs": archs}
            for kernel, one in record["built"].items()
            if (archs := [arch for arch in one["archs"] if (kernel, arch) in taken])
        }
        found += [{**record, "built": built}] if built else []
    return tuple(found)


def joined(records: Iterable[Sequence[Mapping[str, Any]]]) -> tuple[dict[str, Any], ...]:
    """The records of several bundles that become one, in their order. Builds of the same source are one record."""
    found: list[dict[str, Any]] = []
    for record in (dict(record) for listed in records for record in listed):
        same = next((one for one in found if _agree(one, record)), None)
        if same is None:
            found.append(record)
        elif "built" in record:
            built = dict(same["built"])
            for kernel, one in record["built"].items():
                built[kernel] = _together(built[kernel], one) if kernel in built else one
            same["built"] = dict(sorted(built.items()))
    return tuple(found)


def _agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two records are of the same source, and of the same files for each kernel that is in both."""
    if {**one, "built": None} != {**other, "built": None} or ("built" in one) != ("built" in other):
        return False
    mine, yours = one.get("built", {}), other.get("built", {})
    return all(
        mine[kernel][kind].get(name, digest) == digest
        for kernel in mine.keys() & yours.keys()
        for kind in ("files", "modules")
        for name, digest in yours[kernel][kind].items()
    )


def source_record(kernels: str) -> SourceRecord:
    """The Python files of a source with their digests, the commit they came from, and whether they were altered since."""
    root = source_root(kernels)
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


def source_root(kernels: str) -> Path | None:
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
