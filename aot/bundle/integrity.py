"""The files of a bundle against its manifest: the part of verifying that needs no look inside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from aot_runtime.manifest import FILE_NAME, Manifest
from aot_runtime.signature import FILE_NAME as SIGNATURE

from ..files import sha256_of
from .layout import CONTRACTS, part_of, stamp_name
from .split import absent_parts, stamp_problems

__all__ = ["damaged_files"]


# pip compiles the contracts of a package that it installs. Nothing executes the result: see `contracts.py`.
_COMPILED = f"{CONTRACTS}/__pycache__/"


def damaged_files(bundle: Path, manifest: Manifest) -> Iterator[str]:
    """A sentence for each file that is missing, altered, or not in the manifest."""
    absent = absent_parts(bundle, manifest)
    for name, record in manifest.files.items():
        if part_of(name) in absent:
            continue
        path = bundle / name
        if not path.is_file():
            yield f"{name} is missing"
        elif path.stat().st_size != record.size:
            yield f"{name} has {path.stat().st_size} bytes, the manifest says {record.size}"
        elif (digest := sha256_of(path)) != record.sha256:
            yield f"{name} has sha256 {digest}, the manifest says {record.sha256}"
    installed = sorted(set(manifest.parts) - absent)
    for arch in installed:
        yield from stamp_problems(bundle, manifest, arch)
    # The manifest names neither itself nor its signature.
    others = {FILE_NAME, SIGNATURE, *(stamp_name(arch) for arch in installed)}
    for folder, _, names in os.walk(bundle):
        for name in names:
            relative = (Path(folder) / name).relative_to(bundle).as_posix()
            if relative not in manifest.files and relative not in others and not relative.startswith(_COMPILED):
                yield f"{relative} is not in the manifest"
