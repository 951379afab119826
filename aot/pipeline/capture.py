"""Building a bundle of what an exercise makes other libraries compile, one architecture at a time.

A library compiles other kernels for other architectures, so that each architecture has a plan of its own. Parts are
built apart and joined at the end: the directory is never half of a bundle.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..bundle.publish import check_destination
from ..errors import UsageError
from .build import build, check_may_replace
from .combine import Tools, merge
from .events import Progress
from .settings import BuildResult, Settings
from .spellings import parse_archs
from .workspace import scratch_folder

__all__ = ["capture"]


def capture(settings: Settings, progress: Progress) -> BuildResult:
    """Build what the exercise compiles for each architecture. The bundle holds that and nothing else."""
    if "all" in {part.strip() for text in settings.archs for part in text.split(",")}:
        raise UsageError("an exercise does not name its architectures", hint="pass them: `--arch sm90`")
    archs = parse_archs(settings.archs, ())
    if len(archs) == 1:
        return build(replace(settings, archs=(str(archs[0]),), replace=True), progress)
    check_destination(settings.destination)  # before the architectures are built, not after
    with scratch_folder() as scratch:
        parts = [
            build(replace(settings, archs=(str(arch),), out=scratch / str(arch), name=settings.bundle_name), progress)
            for arch in archs
        ]
        return _joined(settings, parts, progress)


def _joined(settings: Settings, parts: list[BuildResult], progress: Progress) -> BuildResult:
    out: Path = settings.destination
    failures = tuple(failure for part in parts for failure in part.failures)
    check_may_replace(check_destination(out), failures, settings)
    tools = Tools(settings.cache, settings.artifacts, wait=settings.wait)
    manifest = merge([part.path for part in parts], out, tools, progress.warn)
    return BuildResult(out, manifest, failures)
