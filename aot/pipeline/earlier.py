"""What earlier builds have left in the cache: the plan of an unchanged source, and what it was built into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aot_runtime.manifest import Manifest

from ..bundle.contracts import contract_sources
from ..bundle.integrity import damaged_files
from ..cache import keys, recall
from .plan import NewPlan
from .provenance import source_record
from .settings import Settings
from .tuning import tuning_files
from .workspace import Workspace

__all__ = ["Earlier", "look_up", "note_made", "remember_plan"]


@dataclass(frozen=True)
class Earlier:
    """What the cache knows of a build before anything is compiled."""

    key: str | None = None  # of what the build ends with; None: something that it comes from is new or has changed
    is_made: bool = False  # the bundle at the destination is, file by file, what the build would end with
    plan: recall.Plan | None = None  # of an earlier build, which still holds; not looked for if the bundle is there
    outline: recall.Outline | None = None  # of the plan that holds, if there is one


def look_up(workspace: Workspace) -> Earlier:
    """What earlier builds have left for this one."""
    store = workspace.store
    outline = recall.unchanged(store, _request(workspace.settings)) if store is not None else None
    if store is None or outline is None:
        return Earlier()
    key = _result_key(workspace.settings, outline)
    if recall.is_made(store, key, workspace.out) and not any(_damaged(workspace.out)):
        return Earlier(key, is_made=True, outline=outline)
    return Earlier(key, plan=recall.recall_plan(store, outline), outline=outline)


def _damaged(bundle: Path) -> Iterator[str]:
    return damaged_files(bundle, Manifest.read(bundle))


def remember_plan(workspace: Workspace, new: NewPlan) -> str | None:
    """Keep a plan, unless something was wrong with its declarations; returns the key of what the build ends with."""
    if workspace.store is None or new.failures:
        return None
    outline = recall.keep_plan(workspace.store, _request(workspace.settings), new.plan, new.closures)
    return _result_key(workspace.settings, outline)


def note_made(workspace: Workspace, key: str | None) -> None:
    """Remember that the bundle at the destination is what a build with that key ends with."""
    if workspace.store is not None and key is not None:
        recall.keep_made(workspace.store, key, workspace.out)


def _request(settings: Settings) -> recall.Request:
    return recall.Request(settings.kernels, settings.archs, settings.select, settings.options, settings.families)


def _result_key(settings: Settings, outline: recall.Outline) -> str:
    return keys.bundle_key(
        outline.digest,
        settings.bundle_name,
        hosts=settings.hosts,
        shared_cudart=settings.shared_cudart,
        archives=settings.archives,
        replace=settings.replace,
        cuda=outline.cuda,
        wheelhouse=settings.wheelhouse,
        contracts=contract_sources(dict(outline.contracts)),
        source=source_record(settings.kernels),
        tuning=tuning_files(settings),
    )
