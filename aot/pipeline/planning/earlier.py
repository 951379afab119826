"""What earlier builds have left in the cache: the plan of an unchanged source, and what it was built into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...bundle.contracts import contract_sources
from ...bundle.publish import Destination
from ...bundle.verifying.integrity import damaged_files
from ...cache import keys, recall
from ...cache.entries import shared_bytes
from ...cache.store import Store
from ...compile.messages import Closure
from ...errors import Failure
from ...files import sha256_of
from ...link.nvidia import distributions
from ...records import encode
from ...versions import installed_version
from ..executing.workers import Workers
from ..plan import Plan, read_plan
from ..settings import Settings, Shape
from ..workspace import Workspace
from .planner import make_plan

__all__ = ["Earlier", "Planned", "keep_plan", "look_up", "outlined", "plan_build"]


@dataclass(frozen=True)
class Earlier:
    """What the cache knows of a build before anything is compiled."""

    request: recall.Request | None = None  # what is asked of the source; None: there is no cache
    key: str | None = None  # of what the build ends with; None: something that it comes from is new or has changed
    is_made: bool = False  # the bundle at the destination is, file by file, what the build would end with
    outline: recall.Outline | None = None  # of a plan of an earlier build, which still holds


@dataclass(frozen=True)
class Planned:
    """A plan, the failures of its files and declarations, and the key of the finished build."""

    plan: Plan
    failures: tuple[Failure, ...] = ()
    key: str | None = None  # None: nobody will ask for it


def look_up(workspace: Workspace, destination: Destination) -> Earlier:
    """What earlier builds have left for this one; whether it is made already is asked of the destination."""
    store = workspace.store
    if store is None:
        return Earlier()
    request = _request(workspace.settings)
    outline = recall.unchanged(store, request)
    if outline is None:
        return Earlier(request)
    key = _result_key(workspace, outline)
    made = destination.manifest
    is_made = made is not None and recall.is_made(store, key, made.sha256)
    is_whole = made is not None and is_made and not any(damaged_files(destination.path, made))
    return Earlier(request, key, is_whole, outline)


def plan_build(workspace: Workspace, earlier: Earlier, workers: Workers) -> Planned:
    """The plan of an earlier build if it still holds, else one that is made now, and kept for later builds."""
    store = workspace.store
    if store is not None and earlier.outline is not None:
        known = store.get("plans", earlier.outline.digest, read_plan)
        if known is not None:
            return Planned(known, key=earlier.key)
    new = make_plan(workspace.settings, workers, workspace.progress)
    for note in new.notes:
        workspace.progress.warn(note)
    if store is None or earlier.request is None or new.failures:
        return Planned(new.plan, new.failures)
    outline, content = outlined(new.plan)
    planned = Planned(new.plan, (), _result_key(workspace, outline))
    keep_plan(store, earlier.request, outline, content, new.closures)
    return planned


def outlined(plan: Plan) -> tuple[recall.Outline, bytes]:
    """What later builds ask of a plan first, and the plan as it is kept. It has thousands of variants: encoded once."""
    encoded = encode(plan)
    contracts = {kernel.info.name: kernel.info.contract for kernel in plan.kernels if kernel.info.contract}
    return recall.Outline(keys.digest_of(encoded), plan.cuda, contracts), shared_bytes(encoded)


def keep_plan(
    store: Store, request: recall.Request, outline: recall.Outline, content: bytes, closures: Sequence[Closure]
) -> None:
    """Keep a plan and what it depends on. The plan that the request had before goes."""
    store.put("plans", outline.digest, content)
    before = recall.keep_source(store, request, outline, closures)
    if before is not None and before.digest != outline.digest:
        store.remove("plans", before.digest)


def _request(settings: Settings) -> recall.Request:
    source = settings.kernels
    place = str(Path(source).resolve()) if Path(source).exists() else f"module {source}"
    own = settings.select, settings.options, settings.families, settings.tilings
    return recall.Request(place, settings.archs, *own)


def _result_key(workspace: Workspace, outline: recall.Outline) -> str:
    ending = Ending(
        settings=workspace.settings.shape,
        plan=outline.digest,
        nvidia={name: installed_version(name) for name in distributions(outline.cuda)},
        contracts={name: sha256_of(path) for name, path in contract_sources(dict(outline.contracts)).items()},
        source=workspace.source,
        tuning=workspace.tables.digests,
    )
    return keys.bundle_key(ending)


@dataclass(frozen=True)
class Ending:
    """All that a build ends with a bundle by. Its key is a digest of the whole; our own code is in that of the plan."""

    settings: Shape
    plan: str  # the digest of the plan
    nvidia: Mapping[str, str | None]  # versions of what is linked
    contracts: Mapping[str, str]  # digests of the files, by name in the bundle
    source: Mapping[str, Any]  # what provenance says of it
    tuning: tuple[str, ...]  # digests of the tables
