"""What a build would do: the variants it would compile, what is in the cache, and how long the rest may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ..bundle.publish import check_destination
from ..cache import recall
from ..cache.store import Store
from ..compile.messages import KernelInfo
from ..errors import Failure
from .build import check_options
from .events import Progress
from .executing.executor import Session
from .executing.workers import Workers
from .plan import KernelPlan, Plan
from .planning.changes import check_replaceable, kept_pairs
from .planning.earlier import look_up, remember_plan
from .planning.planner import make_plan, over_budget
from .planning.tuning import check_tables
from .settings import Settings
from .workspace import Workspace, make_workspace, scratch_folder

__all__ = ["KernelOutlook", "Outlook", "foresee"]


@dataclass(frozen=True)
class KernelOutlook:
    """One kernel for one architecture."""

    kernel: str  # its name
    arch: str  # the architecture
    variants: tuple[str, ...]  # their names
    cached: int  # how many of them are in the cache of this machine
    guards: tuple[str, ...]  # conditions that tell its variants apart
    contract: bool  # whether the kernel has a reference and inputs, so that `check` and `bench` can run it


@dataclass(frozen=True)
class Outlook:
    path: Path
    plan: tuple[KernelOutlook, ...]
    failures: tuple[Failure, ...]
    seconds: float | None  # to compile what is not in the cache; None: nothing is known of it
    kernels: tuple[KernelInfo, ...] = ()  # the declarations of what is planned

    @property
    def variants(self) -> int:
        return sum(len(kernel.variants) for kernel in self.plan)

    @property
    def cached(self) -> int:
        return sum(kernel.cached for kernel in self.plan)


def foresee(settings: Settings, progress: Progress, *, as_build: bool = False) -> Outlook:
    """Plan a build and compile nothing. ``as_build``: stop where the build would, before it compiles."""
    with scratch_folder() as scratch:
        workspace = make_workspace(settings, progress, scratch)
        existing = check_destination(workspace.out) if as_build else None
        tables = check_options(workspace)[1] if as_build else {}
        whole, failures = _plan(workspace)
        if existing is not None and not look_up(workspace, existing).is_made:
            check_replaceable(existing, workspace.out, workspace.name, settings)
            kept_pairs(existing, workspace.out, whole, failures, settings)
        plan = whole.kernels
        if not failures:
            check_tables(tables, settings, plan)
        for warning in over_budget(whole):
            progress.warn(warning)
        store = workspace.store
        took = recall.durations(store, settings.kernels) if store is not None else {}
        seconds = _estimate(plan, store, took, settings.worker_count)
        declared = {kernel.info.name: kernel.info for kernel in plan}
        kernels = tuple(_kernel(kernel, store) for kernel in plan)
        return Outlook(workspace.out, kernels, failures, seconds, tuple(declared.values()))


def _plan(workspace: Workspace) -> tuple[Plan, tuple[Failure, ...]]:
    known = look_up(workspace).plan
    if known is not None:
        return known, ()
    settings = workspace.settings
    workspace.progress.stage("reading declarations")
    session = Session(settings.kernels, settings.options, settings.timeout)
    limit = settings.worker_count if settings.memory is not None else None
    with Workers(session, workspace.scratch, limit=limit) as workers:
        new = make_plan(settings, workers)
    remember_plan(workspace, new)  # so that the build, and the next look, need not read the declarations again
    return new.plan, new.failures


def _kernel(plan: KernelPlan, store: Store | None) -> KernelOutlook:
    guards = dict.fromkeys(guard for variant in plan.variants for guard in variant.guards)
    return KernelOutlook(
        kernel=plan.info.name,
        arch=str(plan.arch),
        variants=tuple(variant.table.name for variant in plan.variants),
        cached=len(_cached(plan, store)),
        guards=tuple(guards),
        contract=plan.info.has_contract,
    )


def _cached(plan: KernelPlan, store: Store | None) -> set[str]:
    if store is None:
        return set()
    names = [variant.table.name for variant in plan.variants]
    return {name for name, key in zip(names, plan.keys, strict=False) if store.has("variants", key)}


def _missing(plan: KernelPlan, store: Store | None) -> list[str]:
    cached = _cached(plan, store)
    return [variant.table.name for variant in plan.variants if variant.table.name not in cached]


def _estimate(
    plan: tuple[KernelPlan, ...], store: Store | None, took: Mapping[str, float], workers: int
) -> float | None:
    """From how long variants took here before: those that are new, like the others of their kernel, or like all."""
    missing = [(kernel, name) for kernel in plan for name in _missing(kernel, store)]
    if not missing:
        return 0.0
    if not took:
        return None
    mean = fmean(took.values())
    return sum(took.get(f"{kernel.arch} {name}", _like(kernel, took, mean)) for kernel, name in missing) / workers


def _like(kernel: KernelPlan, took: Mapping[str, float], mean: float) -> float:
    names = {variant.table.name for variant in kernel.variants}
    known = [seconds for label, seconds in took.items() if label.partition(" ")[2] in names]
    return fmean(known) if known else mean
