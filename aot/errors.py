"""What can go wrong while building, all under :class:`aot_runtime.AotError`."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from aot_runtime.errors import AotError

__all__ = [
    "NOTHING_LEFT",
    "NO_MEMORY",
    "AotError",
    "BuildError",
    "DeclarationError",
    "ToolchainError",
    "UsageError",
    "system_hint",
]

NOTHING_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
NO_MEMORY = "memory ran out; give `--memory` or fewer `--jobs`"


class UsageError(AotError):
    """The command line or the call asks for something that does not exist."""


class DeclarationError(AotError):
    """A kernel's declaration is wrong; the message names the file and line."""


class BuildError(AotError):
    """A bundle could not be made. ``problems`` are the kernels that failed, where those are the reason."""

    def __init__(self, message: str, *, hint: str | None = None, problems: Sequence[Any] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class ToolchainError(BuildError):
    """A tool or library that the build needs is missing or failed."""


def system_hint(error: OSError) -> str | None:
    """What to do where the system has run out of something."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "file handles ran out; raise the limit (`ulimit -n`) or give fewer `--jobs`"
    if error.errno == errno.ENOMEM:
        return NO_MEMORY
    return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
