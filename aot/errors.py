"""Errors of the builder, all derived from :class:`aot_runtime.AotError`."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aot_runtime.errors import AotError, UsageError

__all__ = [
    "NOTHING_LEFT",
    "NO_MEMORY",
    "NO_TEMPORARY",
    "AotError",
    "BuildError",
    "DeclarationError",
    "Failure",
    "ToolchainError",
    "UsageError",
    "counted",
    "error_lines",
    "failure_lines",
    "plain_text",
    "system_hint",
]

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
NOTHING_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
NO_MEMORY = "memory ran out; pass `--memory` or fewer `--jobs`"
NO_TEMPORARY = "set TMPDIR to a folder that you may write to"


@dataclass(frozen=True)
class Failure:
    """A kernel, or one variant of it, that is missing from the bundle, and why; for a person to read."""

    variant: str  # empty: the whole kernel
    message: str  # what is wrong, in one sentence
    log: str = ""  # what the compiler or the author's code printed
    kernel: str = ""  # empty: no kernel in particular, as of a file that cannot be read
    arch: str = ""  # empty: every architecture
    trace: str = ""  # where the compiler raised, frame by frame; for people only with `-v`

    def __post_init__(self) -> None:
        """Compilers colour their messages; logs, manifests and JSON hold plain text."""
        object.__setattr__(self, "message", plain_text(self.message))
        object.__setattr__(self, "log", plain_text(self.log))


class DeclarationError(AotError):
    """A kernel's declaration is wrong; the message names the file and line."""


class BuildError(AotError):
    """A bundle could not be made. ``failures`` are the kernels that failed, if those are the reason."""

    def __init__(self, message: str, *, hint: str | None = None, failures: Sequence[Failure] = ()) -> None:
        super().__init__(message, hint=hint)
        self.failures = tuple(failures)


class ToolchainError(BuildError):
    """A tool or library that the build needs is missing or failed."""


def plain_text(text: str) -> str:
    """A text without the escape codes that colour it on a terminal."""
    return _ESCAPES.sub("", text)


def counted(number: int, noun: str) -> str:
    """``1 kernel``, ``2 kernels``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def system_hint(error: OSError) -> str | None:
    """The next step if the system has run out of a resource, or if a path cannot be; else None."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "file handles ran out; raise the limit (`ulimit -n`) or pass fewer `--jobs`"
    if error.errno == errno.ENOMEM:
        return NO_MEMORY
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        written = error.filename2 or error.filename  # a copy names what is read, then what is written
        return f"the disk of `{written}` is full; free some space there" if written else "the disk is full"
    if error.errno == errno.EFBIG:
        return "files may not be that large here; raise the limit (`ulimit -f`)"
    if error.errno == errno.ENAMETOOLONG:
        return "use a shorter name, or a folder that is less deep"
    if (error.strerror or "").startswith("No usable temporary directory"):  # of Python's tempfile
        return NO_TEMPORARY
    if error.errno == errno.ELOOP:
        return "one of its folders is a link that leads to itself; remove the link"
    # Not normalized: `missing/../key` needs the folder `missing`.
    folder = os.path.dirname(os.path.join(os.getcwd(), os.fsdecode(error.filename))) if error.filename else "/"
    if error.errno == errno.ENOENT and not os.path.isdir(folder):
        return f"there is no folder `{folder}`; make it, or name another place"
    return None


def error_lines(
    message: str, hint: str | None, failures: Iterable[Failure] = (), *, verbose: bool = False
) -> Iterator[str]:
    """An error as text: what failed with the compiler's output, the message, the hint."""
    yield from failure_lines(failures, verbose=verbose)
    yield f"error: {message}"
    if hint:
        yield from ("", f"hint: {hint}")


def failure_lines(failures: Iterable[Failure], *, verbose: bool = False) -> Iterator[str]:
    """One report per cause: failures with the same message are one, with the log of the first.

    ``verbose`` names all of them, and shows where the compiler raised.
    """
    causes: dict[str, list[Failure]] = {}
    for failure in failures:
        causes.setdefault(failure.message, []).append(failure)
    for message, same in causes.items():
        where = _where(same, verbose=verbose)
        yield f"failed: {where}: {message}" if where else f"failed: {message}"
        yield from (f"    | {line}" for line in same[0].log.splitlines())
        if verbose:
            yield from (f"    | {line}" for line in same[0].trace.splitlines())


def _where(failures: Sequence[Failure], *, verbose: bool) -> str:
    """``sm_80 add__f16``, or ``sm_80 add__f16 and 3 more (sm_80, sm_90a)``."""
    names = [" ".join(filter(None, (one.arch, one.variant or one.kernel))) for one in failures]
    if len(names) == 1 or verbose:
        return ", ".join(filter(None, names))
    archs = ", ".join(dict.fromkeys(one.arch for one in failures if one.arch))
    return f"{names[0]} and {len(names) - 1} more" + (f" ({archs})" if archs else "")
