"""Opening the entry library of a bundle: the file whose digest matched is the file that is mapped.

The file is opened once. Its digest is computed through that descriptor, and the dynamic linker opens the same
descriptor through ``/proc``, so that nobody can put another file into its place in between.
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

import tvm_ffi

from ..errors import BundleError, DigestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..description.records import FileRecord

__all__ = ["open_library", "through_descriptor"]

_BUFFER = 1 << 15
_AGAIN_HINT = "build or install the bundle again"
_VERIFY_HINT = "the bundle was altered or copied incompletely; `python -m aot verify` lists what differs"

# A child that is forked while another thread opens a library would find the lists of the dynamic linker half written.
# A thread that forks waits for the others; `runtime/src/aot_lock.h` does the same in C, for the kernels' libraries.
_linker = threading.RLock()
os.register_at_fork(before=_linker.acquire, after_in_parent=_linker.release, after_in_child=_linker.release)


def open_library(path: str, expected: FileRecord | None) -> tvm_ffi.Module:
    """Open a library for the rest of the process, after its digest matched; ``None`` stands for any digest."""
    return through_descriptor(path, expected, lambda name: _load(name, path))


def through_descriptor(path: str, expected: FileRecord | None, use: Callable[[str], Any]) -> Any:
    """Open something by a name of just the file whose digest matched; ``use`` is given that name."""
    descriptor = _open(path)
    try:
        facts = os.fstat(descriptor)
        if not S_ISREG(facts.st_mode):
            raise BundleError(f"`{path}` is not a regular file", hint=_AGAIN_HINT)
        if expected is None:
            return use(path)
        _check_digest(descriptor, path, expected)
        return use(_spelled(descriptor, facts))
    except OSError as error:
        raise BundleError(f"cannot read `{path}`: {error.strerror}") from None
    finally:
        with suppress(OSError):  # it was read and hashed: a file system that fails now changes nothing
            os.close(descriptor)


def _open(path: str) -> int:
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(f"`{path}` is missing", hint=_AGAIN_HINT) from None
    except OSError as error:
        hint = "change its permissions" if isinstance(error, PermissionError) else None
        raise BundleError(f"cannot read `{path}`: {error.strerror}", hint=hint) from None


def _load(name: str, path: str) -> tvm_ffi.Module:
    load: Any = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")
    try:
        with _linker:
            # What tvm_ffi.load_module does, without asking the name for an extension.
            module: tvm_ffi.Module = load(name, "so")
    except RuntimeError as error:
        # The dynamic linker opens the file that was hashed through its descriptor, for which it needs /proc.
        missing = name != path and not os.path.exists("/proc/self/fd")
        hint = "mount /proc, or pass `verify=False` if you trust the bundle" if missing else None
        raise BundleError(f"cannot open `{path}`: {str(error).replace(name, path)}", hint=hint) from None
    tvm_ffi._ffi_api.ModuleGlobalsAdd(module)
    return module


def _spelled(descriptor: int, facts: os.stat_result) -> str:
    """A name of an open file that no other file of this process has had.

    The dynamic linker takes a name it has seen before for the same library, and descriptors are used again. So the
    name spells out the file's device and inode, in ways to say "this directory". While a library is mapped, no
    other file has its inode.
    """
    identity = f"{facts.st_dev:b}1{facts.st_ino:064b}"
    return "/proc/self/fd/" + identity.replace("0", "./").replace("1", ".//") + str(descriptor)


def _check_digest(descriptor: int, path: str, expected: FileRecord) -> None:
    digest, size = _hashed(descriptor, expected.size)
    if size != expected.size:
        seen = "more" if size > expected.size else str(size)
        raise DigestError(f"`{path}` has {seen} bytes, expected {expected.size}", hint=_VERIFY_HINT)
    if digest != expected.sha256:
        raise DigestError(f"`{path}` has sha256 {digest}, expected {expected.sha256}", hint=_VERIFY_HINT)


def _hashed(descriptor: int, most: int) -> tuple[str, int]:
    """The SHA-256 of an open file and its size. Reading stops as soon as it has more than ``most`` bytes."""
    buffer = memoryview(bytearray(_BUFFER))  # used again and again: fresh memory takes longer than the reading
    hashed, size = hashlib.sha256(), 0
    while size <= most and (count := os.readv(descriptor, [buffer])):
        hashed.update(buffer[:count])
        size += count
    return hashed.hexdigest(), size
