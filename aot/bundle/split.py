"""Parts of a bundle that may be absent: one architecture's code, installed by a distribution of its own.

The manifest of a bundle that was split says which distribution holds which architecture. A part that is
there holds all of its files and a stamp, ``parts/<arch>.json``, that names the manifest it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from aot_runtime.description.records import Reader, parse_json, read_bounded
from aot_runtime.errors import BundleError

from .layout import part_of, stamp_name
from .manifest import Manifest

__all__ = ["absent_parts", "stamp_problems", "stamp_text"]

_LONGEST_STAMP = 4096


def absent_parts(bundle: Path, manifest: Manifest) -> frozenset[str]:
    """Architectures that the bundle may lack, and does: nothing of them is there."""
    present = {part for name in manifest.files if (part := part_of(name)) and (bundle / name).exists()}
    stamped = {arch for arch in manifest.distributions if (bundle / stamp_name(arch)).exists()}
    return frozenset(manifest.distributions) - present - stamped


def stamp_text(arch: str, manifest_sha256: str) -> bytes:
    """The stamp of a part: its architecture, and the digest of the manifest it belongs to."""
    return (json.dumps({"arch": arch, "manifest_sha256": manifest_sha256}, indent=1) + "\n").encode()


def stamp_problems(bundle: Path, manifest: Manifest, arch: str) -> Iterator[str]:
    """What is wrong with the stamp of a part that is there."""
    name = stamp_name(arch)
    digest = manifest.sha256
    try:
        content = read_bounded(str(bundle / name), _LONGEST_STAMP, BundleError)
        belongs_to = Reader(parse_json(content, name), name).get("manifest_sha256", str)
    except BundleError:
        content, belongs_to = b"", digest
    if belongs_to == digest and content != stamp_text(arch, digest):  # no digest covers a stamp, so every byte counts
        yield f"{name} is missing or malformed; {arch} is installed by {manifest.distributions[arch]}"
    elif belongs_to != digest:
        yield f"{arch} belongs to a bundle with manifest {belongs_to}, this one's is {digest}; install {manifest.distributions[arch]}"
