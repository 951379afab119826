"""The last steps to a bundle, however it was assembled: verify what is staged, then publish it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...bundle.manifest import Manifest
from ...bundle.publish import publish
from ...bundle.verifying.integrity import damaged_files
from ...cache import recall
from ...cache.store import Store
from ...errors import BuildError

__all__ = ["verify_and_publish"]


def verify_and_publish(
    staged: Path, destination: Path, store: Store | None, warn: Callable[[str], None], request: str | None = None
) -> None:
    """Put a staged bundle in its place if it passes its own verification.

    The cache knows bundles that did, and the last ones that a build with the key ``request`` ended with.
    """
    # Its readers of machine code take long to import, and are not always needed.
    from ...bundle.verifying.verify import verify

    if store is not None and recall.is_verified(store, staged):
        _check(list(damaged_files(staged, Manifest.read(staged))))
    else:
        _check(verify(staged))
        if store is not None:
            recall.keep_verified(store, staged)
    if store is not None and request is not None:
        recall.keep_made(store, request, staged)
    publish(staged, destination, warn)


def _check(problems: Sequence[str]) -> None:
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise BuildError(f"the bundle does not pass its own verification:\n{listed}")
