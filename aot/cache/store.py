"""A folder of entries under keys. Many builders may use one at once; a damaged entry counts as absent.

An entry is one file that appears whole. Its first line is the SHA-256 of its kind, its key and the rest, so that an
entry that was copied to another key counts as damaged too. Entries are never altered: two builders that write one
key write the same thing.

An entry is trusted by who owns it, see :class:`Trust`.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .entries import LARGEST, EntryError

__all__ = ["KINDS", "Entry", "Store", "Trust", "checked", "sealed"]

KINDS = ("variants", "libraries", "plans", "recall")
_COSTLY = frozenset({"variants", "libraries"})  # the rest is decided again in seconds
_SUFFIX = ".entry"
_KEY = re.compile("[0-9a-f]{64}")
_SEAL_BYTES = 65
_STALE_SECONDS = 24 * 3600  # a temporary file as old as this has no writer any more
_T = TypeVar("_T")


@dataclass(frozen=True)
class Entry:
    kind: str
    key: str
    path: Path
    size: int
    used: float  # seconds since the epoch


@dataclass(frozen=True)
class Trust:
    """Whose entries of a folder are used: this user's, root's, and those of the folder's owner.

    The owner of a folder shares it with a group by ``chmod g+ws`` (and not ``o+w``). Then the group's entries are used
    too. Nobody else's are, and none that others could have altered.
    """

    users: frozenset[int]
    group: int | None  # None: the folder is not shared with its group

    @classmethod
    def of(cls, folder: os.stat_result) -> Trust:
        is_shared = _is_shared(folder.st_mode)
        return cls(frozenset({os.geteuid(), 0, folder.st_uid}), folder.st_gid if is_shared else None)

    def accepts(self, entry: os.stat_result, parent: os.stat_result) -> bool:
        in_group = entry.st_gid == self.group and not parent.st_mode & stat.S_IWOTH
        if entry.st_mode & stat.S_IWOTH or (entry.st_mode & stat.S_IWGRP and not in_group):
            return False
        return entry.st_uid in self.users or in_group


def _is_shared(mode: int) -> bool:
    return bool(mode & stat.S_ISGID and mode & stat.S_IWGRP and not mode & stat.S_IWOTH)


class Store:
    """Bytes by kind and key, below a folder. Whatever goes wrong with the disk is a miss, never an error.

    ``warn`` is told once if what takes long to make cannot be kept.
    """

    def __init__(self, root: Path, *, limit: int = LARGEST, warn: Callable[[str], None] = lambda text: None) -> None:
        self.root, self.limit, self.warn = root, limit, warn
        self._has_warned = False

    def get(self, kind: str, key: str, decode: Callable[[bytes], _T]) -> _T | None:
        """The decoded entry. None if it is absent or not trusted, or if it is damaged: then it is removed."""
        path = self._path(kind, key)
        try:
            content = self._read(path)
        except OSError:
            return None
        if content is None:
            return None
        try:
            found = decode(checked(kind, key, content))
        except EntryError:
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):  # another user's entry cannot be touched
            os.utime(path)  # so that pruning takes the least used first
        return found

    def has(self, kind: str, key: str) -> bool:
        """Whether there is an entry, which may turn out to be damaged when it is read."""
        return os.path.isfile(self._path(kind, key))

    def is_empty(self, kind: str) -> bool:
        """Whether no entry of that kind was ever kept in this folder."""
        return not os.path.exists(self.root / kind)

    def put(self, kind: str, key: str, content: bytes) -> bool:
        """Keep an entry; False if the folder cannot be written to, or the entry is too large."""
        path = self._path(kind, key)
        if len(content) > self.limit:
            return False
        try:
            mode = self._make_folder(path.parent)
            descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".partial", dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    os.fchmod(descriptor, mode)
                    file.write(sealed(kind, key, content))
                os.replace(temporary, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            self._note(kind, error)
            return False
        return True

    def remove(self, kind: str, key: str) -> None:
        """Remove an entry that nobody will ask for again."""
        with suppress(OSError):  # gone, or another user's
            self._path(kind, key).unlink()

    def _note(self, kind: str, error: OSError) -> None:
        if kind in _COSTLY and not self._has_warned:
            self._has_warned = True
            self.warn(
                f"the cache `{self.root}` cannot be written: {error.strerror or error}; the build goes on, and the next "
                "one compiles again what is not kept"
            )

    def entries(self) -> Iterator[Entry]:
        """Every entry, those of kinds that only earlier versions wrote included."""
        for path in self._glob(f"*/??/*{_SUFFIX}"):
            if not _is_entry(path):
                continue  # a file of the user's, in a folder that holds a cache too
            with suppress(OSError):  # another builder prunes too
                facts = path.stat()
                kind = path.parent.parent.name
                yield Entry(kind, path.name.removesuffix(_SUFFIX), path, facts.st_size, facts.st_mtime)

    def is_trusted(self, entry: Entry) -> bool:
        try:
            facts = entry.path.lstat()
            return stat.S_ISREG(facts.st_mode) and self._trusts(facts, entry.path)
        except OSError:
            return False

    def is_sound(self, entry: Entry, decode: Callable[[bytes], object] | None) -> bool:
        """Whether an entry would be used as far as its content goes; ``decode`` is None for kinds of earlier versions."""
        try:
            with open(entry.path, "rb") as file:
                content = file.read(self.limit + _SEAL_BYTES + 1)
            if decode is None or len(content) > self.limit + _SEAL_BYTES:
                return False
            decode(checked(entry.kind, entry.key, content))
        except EntryError:
            return False
        except OSError:
            return True  # gone, or not ours to read: nothing that can be called damaged
        return True

    def prune(self, *, max_size: int | None = None, older_than: float | None = None) -> list[Entry]:
        """Remove what was not used for that many seconds, then the least used until the size fits."""
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        now, size = time.time(), sum(entry.size for entry in entries)
        removed = []
        for entry in entries:
            old = older_than is not None and now - entry.used > older_than
            if old or (max_size is not None and size > max_size):
                with suppress(OSError):  # gone, or another user's
                    entry.path.unlink()
                    size -= entry.size
                    removed.append(entry)
        self._sweep(now)
        return removed

    def clear(self) -> None:
        """Remove every entry, and the folders that held nothing else."""
        folders = {entry.path.parent for entry in self.entries()}
        for entry in self.entries():
            with suppress(OSError):  # another builder prunes too
                entry.path.unlink()
        self._sweep(float("inf"))
        for folder in [*folders, *{folder.parent for folder in folders}]:
            with suppress(OSError):  # something else lies there
                folder.rmdir()

    def _sweep(self, now: float) -> None:
        """Remove what builders left behind that were killed while writing."""
        for path in (path for kind in KINDS for path in self._glob(f"{kind}/??/.*.partial")):
            with suppress(OSError):
                if abs(now - path.stat().st_mtime) > _STALE_SECONDS:
                    path.unlink()

    def _glob(self, pattern: str) -> list[Path]:
        """None in a folder that this user may not look into, as /root is for others: a Path raises there."""
        return sorted(self.root.glob(pattern)) if os.path.isdir(self.root) else []

    def _path(self, kind: str, key: str) -> Path:
        assert kind in KINDS, kind
        return self.root / kind / key[:2] / f"{key}{_SUFFIX}"

    def _read(self, path: Path) -> bytes | None:
        """The bytes of a trusted entry. A link is not followed, and a named pipe is not waited for."""
        with open(path, "rb", opener=_open_entry) as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode) or not self._trusts(facts, path):
                return None
            content = file.read(self.limit + _SEAL_BYTES + 1)
        return content if len(content) <= self.limit + _SEAL_BYTES else None  # a build with more memory may use it

    def _trusts(self, facts: os.stat_result, path: Path) -> bool:
        return Trust.of(os.stat(self.root)).accepts(facts, os.stat(path.parent))

    def _make_folder(self, folder: Path) -> int:
        """Make the folder of an entry, as open as the store's own. Returns the mode of an entry in it."""
        self.root.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(os.stat(self.root).st_mode) & ~stat.S_IWOTH
        for path in (folder.parent, folder):
            with suppress(FileExistsError):
                path.mkdir()
                path.chmod(mode)
        return stat.S_IRUSR | stat.S_IWUSR | mode & (0o064 if _is_shared(mode) else 0o044)


def _is_entry(path: Path) -> bool:
    key = path.name.removesuffix(_SUFFIX)
    return _KEY.fullmatch(key) is not None and path.parent.name == key[:2]


def _open_entry(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def sealed(kind: str, key: str, content: bytes) -> bytes:
    """An entry as it is written: the digest of its place and content, then the content."""
    return _digest(kind, key, content) + b"\n" + content


def checked(kind: str, key: str, content: bytes) -> bytes:
    """The content of an entry; :class:`EntryError` if it is not what was written under that key."""
    digest, separator, rest = content.partition(b"\n")
    if not separator or _digest(kind, key, rest) != digest:
        raise EntryError("it is not what was written under this key")
    return rest


def _digest(kind: str, key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(f"{kind}/{key}\n".encode())
    digest.update(content)
    return digest.hexdigest().encode()
