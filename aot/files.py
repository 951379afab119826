"""Files and directories: digests in bounded memory, directories that belong to a process, directories of caches.

The owner of a directory holds a lock on it. The system releases the lock when the owner ends, however it ends.
So a directory whose lock is free has lost its owner and may be removed. Process numbers and clocks are not
consulted, since both repeat.

A file for the user appears whole or not at all: it is written under another name first. On a full disk nothing is left.

A directory of a cache is marked when it is made. Only marked ones are removed, since a cache may lie in a folder
that holds files of the user's too.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = [
    "full_disk",
    "is_at",
    "is_marked",
    "make_marked",
    "making",
    "naming",
    "owned_directory",
    "read_given",
    "scratch_directory",
    "sha256_of",
    "sweep",
    "write_whole",
]

_MARK = "CACHEDIR.TAG"  # https://bford.info/cachedir: programs for backups leave such directories out
_MARK_TEXT = "Signature: 8a477f597d28d172789f06886806bc55\n# This directory is a cache that cute-aot made.\n"
_LITTLE = 1 << 20  # bytes
_LONGEST_TEXT = 256 << 20  # of a file that a user names: measurements of ten thousand calls take a few megabytes


def sha256_of(path: Path) -> str:
    """The digest of a regular file. Anything else is an OSError: a pipe may have no end, or nobody who writes to it."""
    digest = hashlib.sha256()
    with open(path, "rb", opener=_open_regular) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would wait for a writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor


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


@contextmanager
def scratch_directory(folder: Path, *, prefix: str) -> Iterator[Path]:
    """An owned directory; those that killed owners left there with the same prefix are removed."""
    sweep(folder, prefix=prefix)
    with owned_directory(folder, prefix=prefix) as path:
        yield path


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


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """Make a folder for what is written into it, with those above it. If nothing is, those that were made are removed."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]  # the innermost first
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with naming(folder):
            yield
    finally:
        for place in made:
            with suppress(OSError):  # it holds something now
                place.rmdir()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of the system that names no file, as of a write, names this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def read_given(path: Path) -> str:
    """The text of a file that a user names. A device that never ends, or a file of terabytes, is an OSError."""
    with open(path, "rb") as file, naming(path):
        content = file.read(_LONGEST_TEXT + 1)
    if len(content) > _LONGEST_TEXT:
        raise OSError(errno.EFBIG, f"it has more than {_LONGEST_TEXT >> 20} MB", str(path))
    return content.decode()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that is there with all of its content, or not at all. A device is written to as it is."""
    data = content.encode() if isinstance(content, str) else content
    path = Path(os.path.realpath(path))  # a link stays, what it points to is replaced
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        error.filename = str(path)  # what the user knows of
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def full_disk(*folders: Path) -> str | None:
    """The next step if the disk of one of the folders is full; else None."""
    for folder in folders:
        with suppress(OSError):
            free = shutil.disk_usage(folder).free
            if free < _LITTLE:
                return f"the disk of `{folder}` is full: {free >> 10} KB left; free some space there"
    return None


def make_marked(folder: Path) -> None:
    """Make a directory of a cache. One that is there already stays as it is: it may be the user's."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return
    (folder / _MARK).write_text(_MARK_TEXT)


def is_marked(folder: Path) -> bool:
    """Whether :func:`make_marked` made a directory; a link to one does not count."""
    try:
        with open(folder / _MARK, "rb") as file:
            return file.read(len(_MARK_TEXT) + 1) == _MARK_TEXT.encode() and not folder.is_symlink()
    except OSError:
        return False
