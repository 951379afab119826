"""What a build would do: the variants it would compile, what is in the cache, and how long the rest may take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..bundle.publish import Destination, check_destination
from ..cache.variants import KeptVariants
from ..compile.messages import KernelInfo
from ..errors import Failure
from .events import Progress
from .executing.forecast import Code, Forecast
from .executing.workers import Workers
from .plan import KernelPlan
from .planning.changes import check_replaceable, kept_pairs
from .planning.earlier import Planned, look_up, plan_build
from .planning.planner import depth_of, over_budget
from .settings import Settings
from .workspace import Workspace, make_workspace, open_workspace, scratch_folder

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
        destination = check_destination(workspace.out) if as_build else Destination(workspace.out)
        if as_build:
            # The shared cache is tried like every option. What is in the cache is told of this machine's alone.
            workspace = replace(workspace, tables=open_workspace(settings, progress, scratch).tables)
        earlier = look_up(workspace, destination)
        with Workers(settings, workspace.scratch) as workers:
            planned = plan_build(workspace, earlier, workers)
        if as_build and not earlier.is_made:
            check_replaceable(destination, settings)
            kept_pairs(destination, planned.plan, planned.failures, settings)
        if not planned.failures:
            workspace.tables.check(planned.plan.kernels)
        for warning in over_budget(planned.plan):
            progress.warn(warning)
        if depth := depth_of(planned.plan):
            progress.note(depth)
        return _outlook(workspace, planned)


def _outlook(workspace: Workspace, planned: Planned) -> Outlook:
    settings, plan = workspace.settings, planned.plan.kernels
    variants = KeptVariants(workspace.store, settings.kernels)
    cached = [_cached(kernel, variants) for kernel in plan]
    codes = [_codes(kernel) for kernel in plan]
    missing = {own[name] for own, there in zip(codes, cached, strict=True) for name in own.keys() - there}
    labels = [(code, f"{code[0]} {name}") for own in codes for name, code in own.items()]
    forecast = Forecast(missing, settings.worker_count, labels, variants.durations())
    return Outlook(
        workspace.out,
        tuple(_kernel(kernel, len(own)) for kernel, own in zip(plan, cached, strict=True)),
        planned.failures,
        forecast.seconds_left() if missing else 0.0,
        tuple({kernel.info.name: kernel.info for kernel in plan}.values()),
    )


def _codes(plan: KernelPlan) -> dict[str, Code]:
    """What variants share the work of compiling."""
    return {one.table.name: (plan.arch, plan.info.name, one.code or one.table.name) for one in plan.variants}


def _names(plan: KernelPlan) -> tuple[str, ...]:
    return tuple(variant.table.name for variant in plan.variants)


def _kernel(plan: KernelPlan, cached: int) -> KernelOutlook:
    guards = dict.fromkeys(guard for variant in plan.variants for guard in variant.guards)
    return KernelOutlook(
        kernel=plan.info.name,
        arch=str(plan.arch),
        variants=_names(plan),
        cached=cached,
        guards=tuple(guards),
        contract=plan.info.has_contract,
    )


def _cached(plan: KernelPlan, variants: KeptVariants) -> set[str]:
    return {name for name, key in zip(_names(plan), plan.keys, strict=False) if variants.has(key)}
