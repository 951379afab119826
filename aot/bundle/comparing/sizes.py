"""Where the bytes of a bundle are: by purpose, by architecture, by kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aot_runtime.description.records import FileRecord

from ..manifest import Manifest

__all__ = ["Share", "purpose_of", "shares"]


@dataclass(frozen=True)
class Share:
    """Files of one purpose, and what they take."""

    purpose: str  # what the files are for
    arch: str  # empty: of no architecture alone
    kernel: str  # empty: of no kernel alone
    files: int  # how many there are
    size: int  # in bytes


def purpose_of(name: str, bundle: str) -> tuple[str, str, str]:
    """What a file is for, and the architecture and kernel that it belongs to, if it belongs to one alone."""
    folders = name.split("/")
    if folders[0] == "lib" and len(folders) == 4:
        return "kernels", folders[2], folders[3].rpartition(".")[0]
    if folders[0] == "lib" and name.endswith(".a"):
        return "archives for static linking", folders[2].removeprefix(f"lib{bundle}_").removesuffix(".a"), ""
    if folders[0] == "lib":
        return ("CUDA runtime and launch support" if name.endswith("_cuda.so") else "entry points"), "", ""
    if folders[0] == "details":
        return "descriptions", folders[1].removesuffix(".json"), ""
    if folders[0] in ("include", "contracts", "tuning"):
        return {"include": "headers", "contracts": "contracts", "tuning": "tables"}[folders[0]], "", ""
    return ("descriptions" if len(folders) == 1 else "kept intermediate files"), "", ""


def shares(manifest: Manifest) -> list[Share]:
    """The files of a bundle by purpose, architecture and kernel, the largest share first."""
    found: dict[tuple[str, str, str], list[FileRecord]] = {}
    for name, record in manifest.files.items():
        purpose, arch, kernel = purpose_of(name, manifest.name)
        known = arch if arch in map(str, manifest.archs) else ""  # archives of the CUDA runtime have none
        found.setdefault((purpose, known, kernel), []).append(record)
    made = [Share(*key, len(records), _size(records)) for key, records in found.items()]
    return sorted(made, key=lambda share: (-share.size, share.purpose, share.arch, share.kernel))


def _size(records: Iterable[FileRecord]) -> int:
    return sum(record.size for record in records)
