"""A folder of entries under keys. Many builders may use one at once; a damaged entry counts as absent.

An entry is one file that appears whole: its first line is the SHA-256 of the rest. Entries are never
altered, so that two builders that write one key write the same thing.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Entry", "Store", "checked", "pack", "sealed", "unpack"]

KINDS = ("variants", "libraries", "plans", "sources", "bundles", "verdicts", "durations")
_SUFFIX = ".entry"
_STALE_SECONDS = 24 * 3600  # a temporary file as old as this has no writer any more


@dataclass(frozen=True)
class Entry:
    kind: str
    key: str
    path: Path
    size: int
    used: float  # seconds since the epoch


class Store:
    """Bytes by kind and key, below a folder. Whatever goes wrong with the disk is a miss, never an error."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, kind: str, key: str) -> bytes | None:
        """The entry's content; None where there is none, or it is damaged: then it is removed."""
        path = self._path(kind, key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        found = checked(content)
        with suppress(OSError):
            if found is None:
                path.unlink()
            else:
                os.utime(path)  # so that pruning takes the least used first
        return found

    def put(self, kind: str, key: str, content: bytes) -> bool:
        """Keep an entry; False where the folder cannot be written to."""
        path = self._path(kind, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".partial", dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(sealed(content))
                os.replace(temporary, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError:
            return False
        return True

    def get_json(self, kind: str, key: str) -> object | None:
        content = self.get(kind, key)
        data: object = json.loads(content) if content is not None else None
        return data

    def put_json(self, kind: str, key: str, data: object) -> bool:
        return self.put(kind, key, json.dumps(data, separators=(",", ":")).encode())

    def entries(self) -> Iterator[Entry]:
        for kind in KINDS:
            for path in sorted((self.root / kind).glob(f"*/*{_SUFFIX}")):
                with suppress(OSError):  # another builder prunes too
                    facts = path.stat()
                    yield Entry(kind, path.name.removesuffix(_SUFFIX), path, facts.st_size, facts.st_mtime)

    def check(self) -> list[Entry]:
        """Remove what is damaged, and say what it was."""
        damaged = [entry for entry in self.entries() if checked(entry.path.read_bytes()) is None]
        for entry in damaged:
            entry.path.unlink(missing_ok=True)
        return damaged

    def prune(self, *, max_size: int | None = None, older_than: float | None = None) -> list[Entry]:
        """Remove what was not used for that many seconds, then the least used until the size fits."""
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        now, size = time.time(), sum(entry.size for entry in entries)
        removed = []
        for entry in entries:
            old = older_than is not None and now - entry.used > older_than
            if old or (max_size is not None and size > max_size):
                entry.path.unlink(missing_ok=True)
                size -= entry.size
                removed.append(entry)
        self._sweep(now)
        return removed

    def _sweep(self, now: float) -> None:
        """What builders left behind that were killed while writing."""
        for path in self.root.glob("*/*/.*.partial"):
            with suppress(OSError):
                if abs(now - path.stat().st_mtime) > _STALE_SECONDS:
                    path.unlink()

    def _path(self, kind: str, key: str) -> Path:
        assert kind in KINDS, kind
        return self.root / kind / key[:2] / f"{key}{_SUFFIX}"


def sealed(content: bytes) -> bytes:
    """An entry as it is written: the digest of the content, then the content."""
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def checked(content: bytes) -> bytes | None:
    """The content of an entry; None where it is not what was written."""
    digest, separator, rest = content.partition(b"\n")
    return rest if separator and hashlib.sha256(rest).hexdigest().encode() == digest else None


def pack(parts: Mapping[str, bytes]) -> bytes:
    """Several named parts as one entry; the same parts give the same bytes."""
    head = json.dumps({name: len(parts[name]) for name in sorted(parts)}).encode()
    return zlib.compress(b"\n".join((head, b"".join(parts[name] for name in sorted(parts)))), level=1)


def unpack(content: bytes) -> dict[str, bytes]:
    head, _, rest = zlib.decompress(content).partition(b"\n")
    parts, at = {}, 0
    for name, size in json.loads(head).items():
        parts[name] = rest[at : at + size]
        at += size
    return parts
