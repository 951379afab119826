"""What earlier builds have left in the cache: the plan of an unchanged source, and what it was built into."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aot_runtime.manifest import Manifest

from ..bundle.contracts import contract_sources
from ..bundle.integrity import damaged_files
from ..cache import keys, recall
from .plan import NewPlan
from .provenance import source_record
from .settings import Settings
from .workspace import Workspace

__all__ = ["Known", "is_made", "look_up", "note_made", "recall_plan", "remember_plan"]


@dataclass(frozen=True)
class Known:
    """What the cache knows of a build before anything is compiled."""

    outline: recall.Outline
    result: str  # the key of what the build ends with


def look_up(workspace: Workspace) -> Known | None:
    """What is known of a build; None if there is no cache, or something that the plan came from has changed."""
    settings, store = workspace.settings, workspace.store
    outline = recall.unchanged(store, _request(settings)) if store is not None else None
    return Known(outline, _result_key(settings, outline)) if outline is not None else None


def is_made(workspace: Workspace, known: Known | None, bundle: Path) -> bool:
    """Whether the bundle there is, file by file, what this build would end with."""
    store = workspace.store
    if store is None or known is None or not recall.is_made(store, known.result, bundle):
        return False
    return not any(damaged_files(bundle, Manifest.read(bundle)))


def note_made(workspace: Workspace, known: Known | None, bundle: Path) -> None:
    """Remember that the bundle there is what such a build ends with."""
    if workspace.store is not None and known is not None:
        recall.keep_made(workspace.store, known.result, bundle)


def recall_plan(workspace: Workspace, known: Known | None) -> recall.Plan | None:
    """The plan of an earlier build, if nothing that it came from has changed."""
    store = workspace.store
    return recall.recall_plan(store, known.outline) if store is not None and known is not None else None


def remember_plan(workspace: Workspace, new: NewPlan) -> Known | None:
    """Keep a plan, unless something was wrong with its declarations."""
    if workspace.store is None or new.failures:
        return None
    outline = recall.keep_plan(workspace.store, _request(workspace.settings), new.plan, new.closures)
    return Known(outline, _result_key(workspace.settings, outline))


def _request(settings: Settings) -> recall.Request:
    return recall.Request(settings.kernels, settings.archs, settings.select, settings.options)


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
    )
