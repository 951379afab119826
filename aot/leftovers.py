"""Directories that belong to a process, and the removal of those whose process is gone.

An owner holds a lock on its directory; the system lets go of it when the owner ends, however it ends.
Neither process numbers nor clocks are asked: both come round again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["owned_directory", "sweep"]


@contextmanager
def owned_directory(folder: Path, *, prefix: str, suffix: str = "") -> Iterator[Path]:
    """A new directory that :func:`sweep` leaves alone as long as this process lives; gone afterwards."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=folder))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # swept before it was opened
        with suppress(OSError):  # not every file system has locks: there nothing is swept either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_at(lock, path):
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


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
