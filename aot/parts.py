"""Parts of a bundle that may be absent: one architecture's code, installed by a distribution of its own.

The manifest of a bundle that was split says which distribution holds which architecture. A part that is
there holds all of its files and a stamp, ``parts/<arch>.json``, that names the manifest it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from aot_runtime.manifest import FILE_NAME, Manifest

from .digests import sha256_of

__all__ = ["absent_parts", "note_name", "part_of", "stamp_name", "stamp_problems"]


def part_of(name: str) -> str | None:
    """The architecture that a file of a bundle belongs to, if it belongs to one alone."""
    folders = name.split("/")
    if folders[0] == "lib" and len(folders) == 4:
        return folders[2]
    if folders[0] == "details" and len(folders) == 2:
        return folders[1].removesuffix(".json")
    return None


def stamp_name(arch: str) -> str:
    return f"parts/{arch}.json"


def note_name(host: str, arch: str) -> str:
    """Where the base says which distribution holds an architecture, for C: see ``aot_open.c``."""
    return f"lib/{host}/{arch}.part"


def absent_parts(bundle: Path, manifest: Manifest) -> frozenset[str]:
    """Architectures that the bundle may lack, and does: nothing of them is there."""
    present = {part for name in manifest.files if (part := part_of(name)) and (bundle / name).exists()}
    stamped = {arch for arch in manifest.parts if (bundle / stamp_name(arch)).exists()}
    return frozenset(manifest.parts) - present - stamped


def stamp_problems(bundle: Path, manifest: Manifest, arch: str) -> Iterator[str]:
    """What is wrong with the stamp of a part that is there."""
    name = stamp_name(arch)
    try:
        stamp = json.loads((bundle / name).read_bytes())
        belongs_to = stamp["manifest_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        yield f"{name} is missing or malformed; {arch} is installed by {manifest.parts[arch]}"
        return
    digest = sha256_of(bundle / FILE_NAME)
    if belongs_to != digest:
        yield f"{arch} belongs to a bundle with manifest {belongs_to}, this one's is {digest}; install {manifest.parts[arch]}"
