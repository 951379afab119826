"""Which bundles a build has made before: the digests of their manifests, and that they were verified."""

from __future__ import annotations

from pathlib import Path

from aot_runtime.manifest import FILE_NAME

from ..files import sha256_of
from . import keys
from .store import Store

__all__ = ["is_made", "is_verified", "note_made", "note_verified"]

_REMEMBERED = 16  # results of one request, each on top of another bundle


def is_made(store: Store, request: str, bundle: Path) -> bool:
    """Whether the bundle there is what such a request once ended with. Its files are not looked at."""
    made = store.get_json("bundles", request)
    return isinstance(made, list) and _manifest_digest(bundle) in made


def note_made(store: Store, request: str, bundle: Path) -> None:
    made = store.get_json("bundles", request)
    others = [item for item in made if item != _manifest_digest(bundle)] if isinstance(made, list) else []
    store.put_json("bundles", request, [_manifest_digest(bundle), *others][:_REMEMBERED])


def is_verified(store: Store, bundle: Path) -> bool:
    """Whether a bundle with this very manifest passed verification; its files' digests are in there."""
    return store.get("verdicts", _verdict_key(bundle)) is not None


def note_verified(store: Store, bundle: Path) -> None:
    store.put("verdicts", _verdict_key(bundle), b"sound")


def _verdict_key(bundle: Path) -> str:
    return keys.digest_of([_manifest_digest(bundle), keys.ourselves()])


def _manifest_digest(bundle: Path) -> str | None:
    try:
        return sha256_of(bundle / FILE_NAME)
    except OSError:
        return None
