"""Kernels that a user names by globs."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence

from ..errors import UsageError

__all__ = ["matching"]


def matching(kernels: Collection[str], globs: Sequence[str], where: str = "") -> list[str]:
    """The kernels whose names match one of the globs; all of them if there is no glob.

    A glob that matches none is an error, since what it names would be left out. ``where`` says where that was looked for.
    """
    if missed := [glob for glob in globs if not fnmatch.filter(kernels, glob)]:
        raise UsageError(f"no kernel{where} matches {', '.join(missed)}", hint=f"there are: {', '.join(kernels)}")
    return [name for name in kernels if not globs or any(fnmatch.fnmatchcase(name, glob) for glob in globs)]
