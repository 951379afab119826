"""What earlier builds left for later ones to know, so that little has to be decided twice.

Four things are remembered: the plan of a source (what it declares, and the files that this came from), which bundles a
request ended with, which bundles passed verification, and how long variants took to compile. All lie in the store as
records of the kind ``recall``, but for the plans themselves, which are large and the pipeline's own. If nothing that a plan came from has
changed, a build is decided without importing the kernels or CuTe DSL. Contents are compared, never times: clocks jump.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aot_runtime.description.records import FILE_NAME

from ..compile.messages import Closure, Options
from ..compile.origins.closure import python_files, variables
from ..compile.origins.modules import places_of
from ..files import sha256_of
from ..versions import installed_version
from . import keys
from .entries import EntryError, as_record, read_record, record_bytes
from .store import Store

__all__ = [
    "Outline",
    "Request",
    "durations",
    "is_made",
    "is_verified",
    "keep_durations",
    "keep_made",
    "keep_source",
    "keep_verified",
    "read_any",
    "unchanged",
]

_KIND = "recall"
_REMEMBERED = 16  # results of one request, each on top of another bundle
_T = TypeVar("_T")


# Plans.


@dataclass(frozen=True)
class Request:
    """What a build asks of a source. Its key is a digest of the whole."""

    source: str  # a path with no link in it, or the name of a module
    archs: tuple[Any, ...]  # as the settings have them
    select: tuple[str, ...]
    options: Options
    families: tuple[str, ...] = ()
    tilings: str = ""


@dataclass(frozen=True)
class Outline:
    """What tells one plan from another, without its thousands of variants."""

    digest: str
    cuda: int
    contracts: Mapping[str, str]  # kernel -> the file that its checks are in


def keep_source(store: Store, request: Request, outline: Outline, closures: Sequence[Closure]) -> Outline | None:
    """Keep which plan holds for a request, and what that depends on; returns the plan that the request had before."""
    key = keys.request_key(request)
    before = _recall(store, key, Source)
    watched = [
        Watched(c.files, c.folders, c.environment, c.distributions, places_of(c.imports), c.current) for c in closures
    ]
    _keep(store, key, Source(outline, tuple(watched)))
    return before.plan if before is not None else None


def unchanged(store: Store, request: Request) -> Outline | None:
    """The plan that holds for a request, if one is remembered and nothing that it came from has changed."""
    source = _recall(store, keys.request_key(request), Source)
    return source.plan if source is not None and all(map(_holds, source.closures)) else None


# Bundles.


def is_made(store: Store, request: str, manifest: str) -> bool:
    """Whether such a request once ended with a bundle whose manifest has that digest."""
    made = _recall(store, request, Made)
    return made is not None and manifest in made.manifests


def keep_made(store: Store, request: str, bundle: Path) -> None:
    made, digest = _recall(store, request, Made), _manifest_digest(bundle)
    others = [item for item in made.manifests if item != digest] if made is not None else []
    _keep(store, request, Made((digest, *others)[:_REMEMBERED]))


def is_verified(store: Store, bundle: Path) -> bool:
    """Whether a bundle with this very manifest passed verification; its files' digests are in there."""
    digest = _manifest_digest(bundle)
    verified = _recall(store, keys.verdict_key(digest), Verified)
    return verified is not None and verified.manifest == digest


def keep_verified(store: Store, bundle: Path) -> None:
    digest = _manifest_digest(bundle)
    _keep(store, keys.verdict_key(digest), Verified(digest))


def _manifest_digest(bundle: Path) -> str:
    """Of a bundle that is not there it is the empty string, which no bundle has."""
    try:
        return sha256_of(bundle / FILE_NAME)
    except OSError:
        return ""


# Durations.


def durations(store: Store, source: str) -> Mapping[str, float]:
    """How many seconds each variant took to compile, by architecture and variant."""
    found = _recall(store, keys.durations_key(source), Durations)
    return found.seconds if found is not None else {}


def keep_durations(store: Store, source: str, took: Mapping[str, float]) -> None:
    _keep(store, keys.durations_key(source), Durations({**durations(store, source), **took}))


# The records.


@dataclass(frozen=True)
class Watched:
    """What a plan came from, and where to look to see that it has not changed."""

    files: Mapping[str, str]
    folders: Mapping[str, tuple[str, ...]]
    environment: Mapping[str, str | None]
    distributions: Mapping[str, str]
    places: Mapping[str, tuple[str, ...]]  # of the modules that it imports
    current: str  # the current folder, if the plan depends on that


@dataclass(frozen=True)
class Source:
    plan: Outline
    closures: tuple[Watched, ...]


@dataclass(frozen=True)
class Made:
    manifests: tuple[str, ...]  # digests, the latest first


@dataclass(frozen=True)
class Verified:
    manifest: str


@dataclass(frozen=True)
class Durations:
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class _Tagged:
    """A record with its name in front, so that each entry says what it is."""

    name: str
    record: Any


_RECORDS: dict[str, type] = {kind.__name__.lower(): kind for kind in (Source, Made, Verified, Durations)}


def _keep(store: Store, key: str, record: object) -> None:
    store.put(_KIND, key, record_bytes(_Tagged(type(record).__name__.lower(), record)))


def _recall(store: Store, key: str, kind: type[_T]) -> _T | None:
    found = store.get(_KIND, key, read_any)
    return found if isinstance(found, kind) else None


def read_any(content: bytes) -> object:
    """A record of any of the kinds above."""
    tagged = read_record(_Tagged, content)
    if tagged.name not in _RECORDS:
        raise EntryError(f"it holds {tagged.name!a}, which builds do not write")
    return as_record(_RECORDS[tagged.name], tagged.record)


# Looking whether anything has changed.


def _holds(closure: Watched) -> bool:
    return (
        variables(closure.environment, os.environ) == closure.environment
        and all(python_files(folder) == names for folder, names in closure.folders.items())
        and all(installed_version(name) == version for name, version in closure.distributions.items())
        and closure.current in ("", os.getcwd())
        and places_of(closure.places) == closure.places
        and all(_digest(path) == digest for path, digest in closure.files.items())
    )


def _digest(path: str) -> str | None:
    try:
        return sha256_of(Path(path))
    except OSError:
        return None
