"""Making one call to the file system fail: the n-th open, read, write, flush, link or rename below a folder."""

from __future__ import annotations

import builtins
import errno
import io
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aot.bundle import publish

__all__ = ["Faults", "Kills", "injected", "room_for"]

_BY_PATH = ("open", "link", "symlink", "rename", "replace", "mkdir")
_BY_DESCRIPTOR = ("read", "readv", "write", "fsync", "sendfile")


class Faults:
    """Counts the calls below ``root``; the one with the number ``fail_at`` fails, once."""

    def __init__(self, root: Path, fail_at: int | None, code: int = errno.EIO) -> None:
        self.root, self.fail_at, self.code = f"{root}{os.sep}", fail_at, code
        self.lock, self.count, self.failed = threading.Lock(), 0, ""

    def counts(self, path: str) -> bool:
        return path.startswith(self.root)

    def step(self, what: str, place: object) -> None:
        path = os.fspath(place) if isinstance(place, (str, os.PathLike)) else None  # type: ignore[arg-type]
        if not isinstance(path, str) or not self.counts(os.path.abspath(path)):
            return
        with self.lock:
            self.count += 1
            if self.count != self.fail_at:
                return
            self.failed = f"{what} {path}"
        raise OSError(self.code, os.strerror(self.code), path)


class Kills(Faults):
    """The call with the number ``fail_at`` ends the process instead, as if the machine had lost its power.

    Calls for ``root`` itself count too: it is flushed after a bundle was exchanged.
    """

    def counts(self, path: str) -> bool:
        return f"{path}{os.sep}".startswith(self.root)

    def step(self, what: str, place: object) -> None:
        try:
            super().step(what, place)
        except OSError:
            os.kill(os.getpid(), signal.SIGKILL)


class _File:
    """An open file whose reads and writes count."""

    def __init__(self, file: Any, faults: Faults, place: object) -> None:
        self._file, self._faults, self._place = file, faults, place

    def read(self, *arguments: Any) -> Any:
        self._faults.step("read", self._place)
        return self._file.read(*arguments)

    def write(self, *arguments: Any) -> Any:
        self._faults.step("write", self._place)
        return self._file.write(*arguments)

    def __enter__(self) -> _File:
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _place_of(descriptor: object) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") if isinstance(descriptor, int) else None
    except OSError:
        return None


@contextmanager
def injected(faults: Faults) -> Iterator[Faults]:
    """While this lasts, calls of Python code count; those of compilers and of C code do not."""
    real_open, real_exchange = io.open, publish._exchange

    def open_file(file: Any, *arguments: Any, **options: Any) -> Any:
        place = _place_of(file) if isinstance(file, int) else file
        faults.step("open", place)
        return _File(real_open(file, *arguments, **options), faults, place)

    def wrapped(name: str, by_descriptor: bool) -> Any:
        # No power is lost here, so that flushes only count. To wait for the disk took most of the time.
        real = (lambda descriptor: None) if name == "fsync" else getattr(os, name)

        def call(first: Any, *arguments: Any, **options: Any) -> Any:
            if options.get("dir_fd") is None and options.get("src_dir_fd") is None:
                faults.step(name, _place_of(first) if by_descriptor else first)
            return real(first, *arguments, **options)

        return call

    def exchange(left: Path, right: Path) -> bool:
        faults.step("rename", right)
        return real_exchange(left, right)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "_exchange", exchange)  # which calls C
        patch.setattr(builtins, "open", open_file)
        patch.setattr(io, "open", open_file)
        for name in _BY_PATH:
            patch.setattr(os, name, wrapped(name, by_descriptor=False))
        for name in _BY_DESCRIPTOR:
            patch.setattr(os, name, wrapped(name, by_descriptor=True))
        yield faults


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files larger than this cannot be written, as on a disk that fills up while one is written.

    Python would write the code of a module that is imported meanwhile in part, and every later import of it would fail.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = before
