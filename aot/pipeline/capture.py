"""Building a bundle of what an exercise makes other libraries compile, one architecture at a time.

A library compiles other kernels for other architectures, so that each architecture has a plan of its own. Parts are
built apart and joined at the end: the directory is never half of a bundle.
"""

from __future__ import annotations

from dataclasses import replace

from ..bundle.lock import locked
from ..bundle.manifest import Manifest
from ..bundle.publish import check_destination
from ..errors import UsageError
from .assembling.contributions import bundle_contribution, not_settled
from .build import build, check_may_replace
from .combine import Tools, combine
from .events import Progress
from .plan import Plan
from .planning.changes import Pair, check_addable, check_replaceable, dropped, kept_pairs
from .settings import BuildResult, Changes, Settings
from .spellings import parse_archs
from .workspace import scratch_folder

__all__ = ["capture"]


def capture(settings: Settings, progress: Progress) -> BuildResult:
    """Build what the exercise compiles for each architecture. A bundle that is there follows the rules of ``build``."""
    if "all" in {part.strip() for text in settings.archs for part in text.split(",")}:
        raise UsageError("an exercise does not name its architectures", hint="pass them: `--arch sm90`")
    archs = parse_archs(settings.archs, ())
    if len(archs) == 1:
        return build(replace(settings, archs=(str(archs[0]),)), progress)
    _kept(settings)  # before the architectures are built, not after
    with scratch_folder() as scratch:
        alone = replace(settings, add=False, replace=False, name=settings.bundle_name)
        parts = [build(replace(alone, archs=(str(arch),), out=scratch / str(arch)), progress) for arch in archs]
        return _joined(settings, parts, progress)


def _kept(settings: Settings) -> tuple[Manifest | None, frozenset[Pair]]:
    """The bundle at the destination, and what is taken over from it."""
    out = settings.destination
    existing = check_destination(out)
    check_addable(existing, out, settings)
    if existing is None:
        return None, frozenset()
    check_replaceable(existing, out, settings.bundle_name, settings)
    return existing, kept_pairs(existing, out, Plan(0, ()), (), settings)


def _joined(settings: Settings, parts: list[BuildResult], progress: Progress) -> BuildResult:
    out = settings.destination
    failures = tuple(failure for part in parts for failure in part.failures)
    tools = Tools(settings.cache, settings.artifacts, wait=settings.wait)
    with locked(out, progress.warn, wait=settings.wait):
        existing, kept = _kept(settings)
        check_may_replace(existing, failures, settings)
        given = [bundle_contribution(part.path) for part in parts]
        if kept:
            given.insert(0, bundle_contribution(out, lambda *pair: pair in kept, existing))
        manifest = combine(not_settled(given), out, tools, progress.warn)
    changes = Changes(
        compiled=sum(part.changes.compiled for part in parts),
        cached=sum(part.changes.cached for part in parts),
        kept=sum(kernel.variants for kernel in manifest.kernels.values())
        - sum(part.changes.compiled + part.changes.cached for part in parts),
        dropped=dropped(existing, manifest) if existing is not None else (),
    )
    return BuildResult(out, manifest, failures, changes)
