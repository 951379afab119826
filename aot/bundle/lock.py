"""Taking turns at a directory: builds and other commands that change the same bundle wait for each other.

The lock is an ``flock`` on a file beside the bundle, since the bundle's own directory is exchanged for another one
when a bundle is published. The system releases the lock when its holder ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import BuildError, UsageError, system_hint
from ..files import is_at, sweep
from .publish import STAGING, check_writable, real_directory

__all__ = ["locked"]

_WRITABLE = "make it writable, or work on a copy in another folder"
_ATTEMPTS = 100  # to open a file in a folder that others may remove


@contextmanager
def locked(bundle: Path, warn: Callable[[str], None], *, wait: bool = True, changes: bool = False) -> Iterator[None]:
    """Hold the lock of a bundle's directory. While another process holds it, wait and tell ``warn``, or fail.

    ``changes``: the caller changes the bundle that is there, and its user cannot name another place.
    """
    directory = real_directory(bundle)
    path = directory.with_name(f".{directory.name}.lock")
    hint = _WRITABLE if changes else "pass another `--out`"
    check_writable(path.parent, hint)
    created = [folder for folder in path.parents if not folder.exists()]  # the innermost first
    descriptor = _acquire(path, bundle, warn, wait, hint)
    try:
        sweep(directory.parent, prefix=f".{directory.name}.", suffix=STAGING)  # what killed builds left
        yield
    finally:
        with suppress(OSError):  # another user's file stays; it is not locked any more
            path.unlink()
        os.close(descriptor)
        for folder in created:
            with suppress(OSError):  # a bundle lies there now
                folder.rmdir()


def _acquire(path: Path, bundle: Path, warn: Callable[[str], None], wait: bool, hint: str) -> int:
    while True:
        descriptor = _open(path, hint)
        try:
            if not _lock(descriptor, fcntl.LOCK_NB):
                if not wait:
                    raise BuildError(
                        f"another process is writing `{bundle}`", hint="leave out `--no-wait` to wait until it is done"
                    )
                warn(f"another process is writing `{bundle}`; waiting until it is done")
                _lock(descriptor, 0)
            if is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last holder has removed the file: the process that locks the new one is next


def _open(path: Path, hint: str) -> int:
    for _ in range(_ATTEMPTS):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except (FileNotFoundError, FileExistsError) as error:
            failed: OSError = error  # another build may have removed the folder just now, since it had made it
        except OSError as error:
            failed = error
            break
    raise UsageError(f"cannot write to `{path.parent}`: {failed.strerror}", hint=system_hint(failed) or hint)


def _lock(descriptor: int, flags: int) -> bool:
    """Whether the file is locked now. Some file systems have no locks: there nobody waits for anybody."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
