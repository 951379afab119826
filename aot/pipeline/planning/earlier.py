"""What earlier builds have left in the cache: the plan of an unchanged source, and what it was built into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...bundle.contracts import contract_sources
from ...bundle.integrity import damaged_files
from ...bundle.manifest import Manifest
from ...cache import keys, recall
from ...cache.entries import json_bytes
from ...cache.store import Store
from ...files import sha256_of
from ...link.nvidia import distributions
from ...records import encode
from ...versions import installed_version
from ..plan import Plan, read_plan
from ..settings import Settings, shaping
from ..workspace import Workspace
from .planner import NewPlan
from .sources import source_record
from .tuning import tuning_files

__all__ = ["Earlier", "keep_plan", "look_up", "note_made", "remember_plan"]


@dataclass(frozen=True)
class Earlier:
    """What the cache knows of a build before anything is compiled."""

    key: str | None = None  # of what the build ends with; None: something that it comes from is new or has changed
    is_made: bool = False  # the bundle at the destination is, file by file, what the build would end with
    plan: Plan | None = None  # of an earlier build, which still holds; not looked for if the bundle is there


def look_up(workspace: Workspace, existing: Manifest | None = None) -> Earlier:
    """What earlier builds have left for this one; ``existing`` is the bundle at the destination."""
    store = workspace.store
    outline = recall.unchanged(store, _request(workspace.settings)) if store is not None else None
    if store is None or outline is None:
        return Earlier()
    key = _result_key(workspace.settings, outline)
    is_made = existing is not None and recall.is_made(store, key, workspace.out)
    if existing is not None and is_made and not any(damaged_files(workspace.out, existing)):
        return Earlier(key, is_made=True)
    return Earlier(key, plan=store.get("plans", outline.digest, read_plan))


def remember_plan(workspace: Workspace, new: NewPlan) -> str | None:
    """Keep a plan, unless something was wrong with its declarations; returns the key of what the build ends with."""
    if workspace.store is None or new.failures:
        return None
    outline = keep_plan(workspace.store, _request(workspace.settings), new)
    return _result_key(workspace.settings, outline)


def keep_plan(store: Store, request: recall.Request, new: NewPlan) -> recall.Outline:
    """Keep a plan and what it depends on."""
    infos = [kernel.info for kernel in new.plan.kernels]
    encoded = encode(new.plan)
    contracts = {info.name: info.contract for info in infos if info.contract}
    outline = recall.Outline(keys.digest_of(encoded), new.plan.cuda, contracts)
    store.put("plans", outline.digest, json_bytes(encoded))
    recall.keep_source(store, request, outline, new.closures)
    return outline


def note_made(workspace: Workspace, key: str | None) -> None:
    """Remember that the bundle at the destination is what a build with that key ends with."""
    if workspace.store is not None and key is not None:
        recall.keep_made(workspace.store, key, workspace.out)


def _request(settings: Settings) -> recall.Request:
    return recall.Request(settings.kernels, settings.archs, settings.select, settings.options, settings.families)


def _result_key(settings: Settings, outline: recall.Outline) -> str:
    files = [path for path in tuning_files(settings) if path.is_file()]
    ending = Ending(
        settings=shaping(settings),
        plan=outline.digest,
        nvidia={name: installed_version(name) for name in distributions(outline.cuda)},
        contracts={name: sha256_of(path) for name, path in contract_sources(dict(outline.contracts)).items()},
        source=source_record(settings.kernels),
        tuning=tuple(sha256_of(path) for path in files),
    )
    return keys.bundle_key(ending)


@dataclass(frozen=True)
class Ending:
    """All that a build ends with a bundle by. Its key is a digest of the whole; our own code is in that of the plan."""

    settings: Mapping[str, Any]  # those that shape the bundle
    plan: str  # the digest of the plan
    nvidia: Mapping[str, str | None]  # versions of what is linked
    contracts: Mapping[str, str]  # digests of the files, by name in the bundle
    source: Mapping[str, Any]  # what provenance says of it
    tuning: tuple[str, ...]  # digests of the tables
