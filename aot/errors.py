"""What can go wrong while building, all under :class:`aot_runtime.AotError`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aot_runtime.errors import AotError

__all__ = ["AotError", "BuildError", "DeclarationError", "ToolchainError", "UsageError"]


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
