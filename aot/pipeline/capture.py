"""Building a bundle of what an exercise makes other libraries compile, one architecture at a time.

A library compiles other kernels for other architectures, so that each architecture has a plan of its own. Parts are
built apart and joined at the end: the directory is never half of a bundle.
"""

from __future__ import annotations

from dataclasses import replace

from ..bundle.lock import locked
from ..bundle.publish import Destination, check_destination
from ..errors import UsageError
from .assembling.contributions import bundle_contribution, not_settled
from .build import build, check_may_replace
from .combine import Tools, combine
from .events import Progress
from .plan import Plan
from .planning.changes import Pair, check_replaceable, kept_pairs, made_changes
from .settings import BuildResult, Settings
from .spellings import ALL, exact_archs
from .workspace import scratch_folder

__all__ = ["capture"]


def capture(settings: Settings, progress: Progress) -> BuildResult:
    """Build what the exercise compiles for each architecture. A bundle that is there follows the rules of ``build``."""
    if ALL in settings.archs:
        raise UsageError("an exercise does not name its architectures", hint="pass them: `--arch sm90`")
    archs = exact_archs(settings.archs)
    settings = replace(settings, archs=archs)
    if len(archs) == 1:
        return build(settings, progress)
    _kept(settings)  # before the architectures are built, not after
    with scratch_folder() as scratch:
        alone = replace(settings, add=False, replace=False, name=settings.bundle_name)
        parts = [build(replace(alone, archs=(arch,), out=scratch / str(arch)), progress) for arch in archs]
        return _joined(settings, parts, progress)


def _kept(settings: Settings) -> tuple[Destination, frozenset[Pair]]:
    """What lies at the destination, and what is taken over from it."""
    destination = check_destination(settings.destination)
    check_replaceable(destination, settings)
    return destination, kept_pairs(destination, Plan(0, ()), (), settings)


def _joined(settings: Settings, parts: list[BuildResult], progress: Progress) -> BuildResult:
    out = settings.destination
    failures = tuple(failure for part in parts for failure in part.failures)
    tools = Tools(settings.cache, settings.artifacts, wait=settings.wait)
    with locked(out, progress.warn, wait=settings.wait):
        destination, kept = _kept(settings)
        existing = destination.manifest
        check_may_replace(destination, failures, settings)
        given = [bundle_contribution(part.path) for part in parts]
        if kept:
            given.insert(0, bundle_contribution(out, lambda *pair: pair in kept, existing))
        manifest = combine(not_settled(given), out, tools, progress.warn)
    compiled, cached = sum(part.changes.compiled for part in parts), sum(part.changes.cached for part in parts)
    return BuildResult(out, manifest, failures, made_changes(existing, manifest, compiled=compiled, cached=cached))
