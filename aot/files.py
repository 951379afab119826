"""Files and directories: digests in bounded memory, directories that belong to a process, directories of caches.

The owner of a directory holds a lock on it. The system releases the lock when the owner ends, however it ends.
So a directory whose lock is free has lost its owner and may be removed. Process numbers and clocks are not
consulted, since both repeat.

A directory of a cache is marked when it is made. Only marked ones are removed, since a cache may lie in a folder
that holds files of the user's too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["MARK", "is_at", "is_marked", "make_marked", "owned_directory", "sha256_of", "sweep"]

MARK = "CACHEDIR.TAG"  # https://bford.info/cachedir: programs for backups leave such directories out
_MARK_TEXT = "Signature: 8a477f597d28d172789f06886806bc55\n# This directory is a cache that cute-aot made.\n"


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def owned_directory(folder: Path, *, prefix: str, suffix: str = "") -> Iterator[Path]:
    """A new directory that :func:`sweep` leaves alone as long as this process lives; gone afterwards."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=folder))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # swept before it was opened
        except OSError:
            with suppress(OSError):
                os.rmdir(path)
            raise
        with suppress(OSError):  # not every file system has locks: there nothing is swept either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_at(lock, path):
            break
        os.close(lock)  # swept before it was locked
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def sweep(folder: Path, *, prefix: str, suffix: str = "") -> list[Path]:
    """Remove what owners left behind that were killed; returns what was removed."""
    removed = []
    with suppress(OSError):
        names = [name for name in os.listdir(folder) if name.startswith(prefix) and name.endswith(suffix)]
        for path in (folder / name for name in names):
            with suppress(OSError):
                if _remove_if_abandoned(path):
                    removed.append(path)
    return removed


def _remove_if_abandoned(path: Path) -> bool:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(lock)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether what was opened is still what lies at that path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def make_marked(folder: Path) -> None:
    """Make a directory of a cache. One that is there already stays as it is: it may be the user's."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return
    (folder / MARK).write_text(_MARK_TEXT)


def is_marked(folder: Path) -> bool:
    """Whether :func:`make_marked` made a directory; a link to one does not count."""
    try:
        with open(folder / MARK, "rb") as file:
            return file.read(len(_MARK_TEXT) + 1) == _MARK_TEXT.encode() and not folder.is_symlink()
    except OSError:
        return False
