"""The files of a bundle against its manifest: the part of verifying that looks into no library."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from aot_runtime.core.signature import FILE_NAME as SIGNATURE_NAME
from aot_runtime.description.manifest import read_manifest
from aot_runtime.description.records import FILE_NAME, INDEX_NAMES, SCHEMA, FileRecord, read_bounded
from aot_runtime.errors import AotError, BundleError

from ...files import sha256_of
from ..layout import CONTRACTS, note_name, part_of, stamp_name
from ..manifest import Manifest
from ..split import absent_parts, stamp_problems

__all__ = ["damaged_files", "description_problems"]

_LONGEST_NOTE = 4096
_UPDATE = "install a newer version of cute-aot to verify it"


def description_problems(bundle: Path, manifest: Manifest) -> list[str]:
    """Every way in which a manifest and its indexes are not what a build writes, byte for byte."""
    if manifest.schema > SCHEMA:
        return [f"{FILE_NAME} has schema {manifest.schema}, this version knows {SCHEMA}; {_UPDATE}"]
    try:
        contents = {name: manifest.index_content(name) for name in INDEX_NAMES}
        contents[FILE_NAME] = read_manifest(str(bundle))
        written = manifest.texts()
    except AotError as error:
        return [error.message]
    # The manifest holds the digests of its indexes: it can only be as it should if they are.
    for name, content in contents.items():
        if content != written[name]:
            return [_layout_problem(name, content, written[name])]
    return list(_contradictions(bundle, manifest))


def _layout_problem(name: str, content: bytes, written: bytes) -> str:
    unknown = sorted(set(_keys(json.loads(content))) - set(_keys(json.loads(written))))
    if unknown:
        return f"{name} has fields that this version does not know: {', '.join(unknown[:5])}; {_UPDATE}"
    return f"{name} is not as a build writes it: the same content would have other bytes"


def _keys(data: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield f"{prefix}{key}"
            yield from _keys(value, f"{prefix}{key}.")
    elif isinstance(data, list):
        for item in data:
            yield from _keys(item, prefix)


def _contradictions(bundle: Path, manifest: Manifest) -> Iterator[str]:
    """What the manifest says twice, in different ways."""
    archs = sorted({arch for kernel in manifest.kernels.values() for arch in kernel.archs})
    if list(manifest.archs) != archs:
        yield f"{FILE_NAME} names {', '.join(map(str, manifest.archs))}, its kernels {', '.join(map(str, archs))}"
    for host, record in manifest.hosts.items():
        if manifest.files.get(record.entry) != record.file:
            yield f"{FILE_NAME} and files.json differ about {record.entry}"
        if record.support not in manifest.files:
            yield f"{record.support} is not among the files"
        for arch, distribution in manifest.distributions.items():
            yield from _note_problems(bundle / note_name(host, arch), f"{arch} of {host}", distribution)


def _note_problems(path: Path, what: str, distribution: str) -> Iterator[str]:
    """C programs read from a file of its own which distribution installs an architecture."""
    try:
        said = read_bounded(str(path), _LONGEST_NOTE, BundleError)
    except BundleError as error:
        yield f"cannot read what installs {what}: {error.message}"
        return
    if said != f"{distribution}\n".encode():
        yield f"{path.name} and {FILE_NAME} differ about what installs {what}"


def _index_problem(manifest: Manifest, name: str) -> str | None:
    try:
        manifest.index_content(name)
    except AotError as error:
        return error.message
    return None


def _is_compiled(name: str, manifest: Manifest) -> bool:
    """Whether pip wrote it: it compiles the contracts of a package that it installs. Nothing executes the result: see
    ``contracts.py``."""
    match = re.fullmatch(rf"({CONTRACTS}/(?:\w+/)*)__pycache__/(\w+)\.[a-z]+-[0-9]+(\.opt-[12])?\.pyc", name)
    return match is not None and f"{match[1]}{match[2]}.py" in manifest.files


def damaged_files(bundle: Path, manifest: Manifest) -> Iterator[str]:
    """A sentence for each file that is missing, altered, or not in the manifest."""
    damaged = [problem for name in INDEX_NAMES if (problem := _index_problem(manifest, name))]
    if damaged:
        yield from damaged
        return  # what the others should be is in there
    absent = absent_parts(bundle, manifest)
    for name, record in manifest.files.items():
        if part_of(name) not in absent and (problem := _file_problem(bundle / name, record)):
            yield f"{name} {problem}"
    installed = sorted(set(manifest.distributions) - absent)
    for arch in installed:
        yield from stamp_problems(bundle, manifest, arch)
    known = {*manifest.files, *(stamp_name(arch) for arch in installed), FILE_NAME, *INDEX_NAMES, SIGNATURE_NAME}
    yield from _unknown_files(bundle, manifest, known)


def _file_problem(path: Path, expected: FileRecord) -> str:
    """What is wrong with a file that the manifest names; "" if nothing."""
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != expected.size:
        return f"has {path.stat().st_size} bytes, the manifest says {expected.size}"
    if (digest := sha256_of(path)) != expected.sha256:
        return f"has sha256 {digest}, the manifest says {expected.sha256}"
    return ""


def _unknown_files(bundle: Path, manifest: Manifest, known: Collection[str]) -> Iterator[str]:
    """A sentence for each file and folder that a bundle may not hold."""
    for folder, folders, names in os.walk(bundle):
        for name in folders:
            if (Path(folder) / name).is_symlink():  # what it leads to would go unseen
                yield f"{_printable(bundle, Path(folder) / name)} is a link to a directory; a bundle has none"
        for name in names:
            relative = (Path(folder) / name).relative_to(bundle).as_posix()
            if relative not in known and not _is_compiled(relative, manifest):
                yield f"{_printable(bundle, Path(folder) / name)} is not in the manifest"


def _printable(bundle: Path, path: Path) -> str:
    """The name of a file that nobody vouches for: it may hold a line break, or what moves a terminal's cursor."""
    name = path.relative_to(bundle).as_posix()
    return name if name.isprintable() else ascii(name)
