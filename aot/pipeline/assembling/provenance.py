"""What a bundle was built from, by which versions, with which options: the records of ``provenance.json``."""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from aot_runtime.arch import Arch

from ...bundle.build_records import BuildOptions, BuildRecord, BuiltRecord, SourceRecord
from ...compile.messages import KernelSources
from ..settings import Settings

__all__ = ["build_record", "joined", "only"]


def build_record(
    settings: Settings,
    source: SourceRecord,
    linked: Mapping[str, str],
    built: Iterable[tuple[str, Arch, KernelSources]] = (),
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
        "tilings": settings.tilings,
    }
    return {
        "source": {**source, "linked": linked},
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
