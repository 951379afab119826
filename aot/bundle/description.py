"""Writing what a bundle says of itself, last of all: ``manifest.json`` and the files it vouches for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from aot_runtime.description.records import FILE_NAME, INDEX_NAMES, SCHEMA, FileRecord

from ..errors import BuildError
from ..files import sha256_of
from .manifest import Manifest

__all__ = ["bounded_failures", "check_schema", "file_record", "write_description"]

MAX_FAILURES = 200  # with more of them, those of one kernel and architecture become one
MAX_MESSAGE = 500  # letters


def file_record(path: Path) -> FileRecord:
    return FileRecord(sha256_of(path), path.stat().st_size)


def check_schema(bundle: Path, manifest: Manifest) -> None:
    """Refuse to change a bundle that a later version wrote: what this version does not know would be lost."""
    if manifest.schema > SCHEMA:
        raise BuildError(
            f"`{bundle}` has schema {manifest.schema}, this version writes {SCHEMA}",
            hint="install a newer version of cute-aot",
        )


def write_description(staged: Path, manifest: Manifest, known: Mapping[str, FileRecord] | None = None) -> Manifest:
    """Write the manifest of a staged bundle and its indexes, with the digests of all files that lie there.

    ``manifest`` says all but that: the entry libraries carry its identity, and so exist only after it does. ``known``
    are files whose digests were compared already.
    """
    files = dict(known or {})
    for folder, _, names in os.walk(staged):
        for path in (Path(folder) / name for name in names):
            name = path.relative_to(staged).as_posix()
            if name not in files and name not in (FILE_NAME, *INDEX_NAMES):
                files[name] = file_record(path)
    hosts = {name: host.replace(file=files[host.entry]) for name, host in manifest.hosts.items()}
    described = manifest.replace(files=files, hosts=hosts)
    texts = described.texts()
    for name in (*INDEX_NAMES, FILE_NAME):
        (staged / name).write_bytes(texts[name])
    described.sha256 = hashlib.sha256(texts[FILE_NAME]).hexdigest()
    return described


def bounded_failures(failures: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], ...]:
    """Failures as a manifest holds them, which stays small: long messages are cut, and many failures are summed up."""
    cut = [{**failure, "message": _cut(failure.get("message", ""))} for failure in failures]
    if len(cut) <= MAX_FAILURES:
        return tuple(cut)
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for failure in cut:
        groups.setdefault((failure.get("kernel", ""), failure.get("arch", "")), []).append(failure)
    return tuple(
        {**group[0], "variant": "", "message": f"{len(group)} failures, the first: {group[0]['message']}"}
        for group in groups.values()
    )


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "..."
