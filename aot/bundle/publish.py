"""Putting a bundle in its place: at every instant the directory is the old bundle or the new one, whole.

A complete sibling is staged, flushed to disk, and exchanged with what was there. Where the file system
cannot exchange two directories (some network file systems), the old one is moved aside first; between the
two renames, for some microseconds, the place is empty.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aot_runtime.description.manifest import MAX_BYTES
from aot_runtime.description.records import FILE_NAME
from aot_runtime.errors import BundleError

from ..errors import BuildError, UsageError, system_hint
from ..files import owned_directory, sweep
from .layout import ROOT
from .manifest import Manifest
from .signature import keep_signature

__all__ = [
    "STAGING",
    "Destination",
    "check_destination",
    "check_writable",
    "publish",
    "put_back",
    "real_directory",
    "refuse_installed",
    "staging",
]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
STAGING = ".staging"
_ANOTHER = "pass another `--out`"
_EMPTY = "pass another `--out`, or empty it yourself"


@dataclass(frozen=True)
class Destination:
    """The place of a bundle, and what lies there: read once, and passed on."""

    path: Path
    manifest: Manifest | None = None  # of the bundle there; None: there is none, or it is damaged
    is_damaged: bool = False


def check_destination(path: Path) -> Destination:
    """What a build would replace; :class:`UsageError` where no bundle can be put."""
    try:
        _check_place(path)
        check_writable(real_directory(path).parent)
        content = _manifest_content(path)
    except OSError as error:
        raise UsageError(f"cannot look at `{path}`: {error.strerror}", hint="pass another `--out`") from None
    if content is None:
        return Destination(path)
    try:
        manifest = Manifest.parse(content, str(path))
        # What it says is read now, and is known after the bundle was replaced.
        _ = manifest.kernels, manifest.files, manifest.provenance
    except BundleError as error:
        cause = error.__context__
        if isinstance(cause, OSError) and not isinstance(cause, (FileNotFoundError, NotADirectoryError)):
            raise UsageError(f"cannot look at `{path}`: {cause.strerror}", hint="pass another `--out`") from None
        return Destination(path, is_damaged=True)  # it is replaced like any other
    return Destination(path, manifest)


def _manifest_content(path: Path) -> bytes | None:
    """A bundle that cannot be read now is not a damaged one: it must not be replaced."""
    if not (path / FILE_NAME).is_file():
        return None
    with open(path / FILE_NAME, "rb") as file:
        return file.read(MAX_BYTES + 1)


def refuse_installed(bundle: Path) -> None:
    """Raise :class:`UsageError` for the bundle inside a package: the package pins its manifest, and refuses any other."""
    if bundle.absolute().name == "_bundle" and (bundle.absolute().parent / "__init__.py").is_file():
        raise UsageError(
            f"`{bundle}` belongs to an installed package, which takes no other manifest than its own",
            hint="change the bundle that `build` made, and make the wheel again",
        )


def _check_place(path: Path) -> None:
    refuse_installed(path)
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_dir():
        seen = "is not a directory" if path.exists() else f"is a link to `{path.readlink()}`, which does not exist"
        raise UsageError(f"`{path}` {seen}", hint="pass another `--out`")
    if not any(item.is_symlink() or not item.is_dir() for item in path.rglob("*")):
        return  # build tools make the folders of what they expect
    if not (path / FILE_NAME).is_file():
        raise UsageError(f"`{path}` holds something that is not a bundle", hint=_EMPTY)
    # Other programs have files called manifest.json too. A network file system keeps open files as .nfs*.
    if others := sorted(name for name in os.listdir(path) if name not in ROOT and not name.startswith(".nfs")):
        raise UsageError(
            f"`{path}` holds {others[0]!a}, which is no part of a bundle and would be removed",
            hint="move it elsewhere, or pass another `--out`",
        )


def check_writable(folder: Path, hint: str = _ANOTHER) -> None:
    """Report a place that cannot be written before an hour of compiling rather than after it."""
    for place in (folder, *folder.parents):
        try:
            # Held by a descriptor: another build may remove the folder meanwhile, since it had made it.
            descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # it is to be made, or the folder that holds it is at fault
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise UsageError(f"`{place}` is not a directory", hint=hint)
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=descriptor):
                raise UsageError(f"cannot write to `{place}`", hint=hint)
        finally:
            os.close(descriptor)
        return


def real_directory(path: Path) -> Path:
    """Where the directory itself lies: a link stays, what it points to is replaced."""
    try:
        place = path.resolve() if path.is_symlink() else path.absolute()
        looped = place.is_symlink()  # from Python 3.13 on, a link that leads to itself is not an error
    except RuntimeError:
        looped = True
    if looped:
        raise UsageError(f"`{path}` is a link that leads to itself", hint="pass another `--out`")
    if not place.name:
        raise UsageError(f"`{path}` cannot be replaced by a bundle", hint="pass another `--out`")
    return place


@contextmanager
def staging(destination: Path) -> Iterator[Path]:
    """A directory beside the destination to make the new bundle in; gone afterwards, whatever happens."""
    try:
        destination = real_directory(destination)
        destination.parent.mkdir(parents=True, exist_ok=True)
        put_back(destination)
        prefix = f".{destination.name}."
        sweep(destination.parent, prefix=prefix, suffix=STAGING)
        stack = ExitStack()
        staged = stack.enter_context(owned_directory(destination.parent, prefix=prefix, suffix=STAGING))
        staged.chmod(0o755)
    except OSError as error:
        raise UsageError(
            f"cannot write to `{destination.parent}`: {error.strerror}", hint="pass another `--out`"
        ) from None
    try:
        with stack:
            yield staged
    except OSError as error:
        written = error.filename2 or error.filename or staged  # a copy that fails names what it reads first
        message = f"cannot write the bundle: {error.strerror} (`{written}`)"
        raise BuildError(message, hint=system_hint(error)) from error


def put_back(destination: Path) -> None:
    """A bundle that a killed build had moved aside is put back."""
    destination = real_directory(destination)
    for aside in sorted(destination.parent.glob(f".{destination.name}.*.old")):
        if not destination.exists():
            os.rename(aside, destination)


def publish(staged: Path, destination: Path, warn: Callable[[str], None] | None = None) -> None:
    """Exchange a staged bundle with what is at the destination. ``warn`` is told if a signature is lost by it."""
    refuse_installed(destination)
    place, destination = destination, real_directory(destination)
    kept = keep_signature(destination, staged)
    _flush(staged)
    if not destination.exists():
        os.rename(staged, destination)
    elif not _exchange(staged, destination):
        _swap(staged, destination)
    _flush_directory(destination.parent)
    if warn is not None and not kept:
        warn(
            f"the bundle has changed, and its signature was dropped; sign it again: `python -m aot sign {place} --key KEY`"
        )


def _exchange(left: Path, right: Path) -> bool:
    """Exchange two directories in one step; False where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(right))


def _swap(staged: Path, destination: Path) -> None:
    aside = staged.with_suffix(".old")
    os.rename(destination, aside)
    try:
        os.rename(staged, destination)
    except BaseException:
        if destination.exists():  # another build was faster: what it replaced is of no use any more
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.rename(aside, destination)
        raise
    os.rename(aside, staged)


def _flush(directory: Path) -> None:
    for folder, _, names in os.walk(directory):
        for name in names:
            _flush_file(Path(folder) / name)
        _flush_directory(Path(folder))


def _flush_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_directory(path: Path) -> None:
    with suppress(OSError):  # not every file system lets a directory be flushed
        _flush_file(path)
