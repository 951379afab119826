"""From a plan to compiled variants: out of the cache what is there, the rest by an executor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from aot_runtime.arch import Arch

from ...cache.variants import KeptVariants
from ...compile.messages import Compiled, KernelInfo, KernelSources, VariantInfo
from ...errors import Failure, counted
from ..plan import KernelPlan, Plan
from ..settings import Settings
from ..workspace import Workspace
from .executor import CompileJob, Executor, Session
from .forecast import Code, Forecast

__all__ = [
    "Compilation",
    "CompiledKernel",
    "Launcher",
    "compile_plan",
]

_FETCHES = 16  # requests to a remote cache at once: each waits for the network most of its time


@dataclass(frozen=True)
class Launcher:
    """A compiled variant: what came out, and the file that holds its launcher."""

    variant: VariantInfo
    compiled: Compiled
    path: Path

    @property
    def name(self) -> str:
        return self.variant.table.name


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel for one architecture, with those of its variants that compiled."""

    info: KernelInfo
    arch: Arch
    launchers: tuple[Launcher, ...]
    kept: tuple[Path, ...]  # the files that ``--keep`` asked for
    sources: KernelSources = field(default_factory=KernelSources)


@dataclass(frozen=True)
class Compilation:
    """What came of a plan: the kernels of which something compiled, and what failed."""

    cuda: int  # the backend's major version
    kernels: tuple[CompiledKernel, ...]
    failures: tuple[Failure, ...]
    cached: int = 0  # how many variants came from the cache


def compile_plan(plan: Plan, session: Session, executor: Executor, workspace: Workspace) -> Compilation:
    """Have every variant of a plan compiled that is not in the cache."""
    settings = workspace.settings
    variants = KeptVariants(workspace.store, settings.kernels, settings.options.keep)
    session = replace(session, kernels=_kernels_by_arch(plan))
    by_kernel = [_jobs(kernel, workspace.scratch) for kernel in plan.kernels]
    jobs = [job for own in by_kernel for job in own]
    compiled = _restored(jobs, variants, _FETCHES if settings.remote else 1)
    cached = len(compiled)
    took = variants.durations()
    missing = _largest_first([job for job in jobs if job not in compiled], took)
    if compiled:
        workspace.progress.note(
            f"{len(compiled)} of {counted(len(jobs), 'variant')} {'is' if len(jobs) == 1 else 'are'} in the cache"
        )
    workspace.progress.total(len(missing), _forecast(jobs, missing, took, settings))
    failures: dict[CompileJob, Failure] = {}
    callers = {kernel.info.name: _called_from(kernel.info) for kernel in plan.kernels}

    def report(job: CompileJob, outcome: Compiled | Failure) -> None:
        if isinstance(outcome, Compiled):
            compiled[job] = outcome
            variants.keep(job.key, job.launcher, outcome)
        else:
            message = f"{callers[job.kernel]}{outcome.message}"
            failures[job] = replace(outcome, message=message, kernel=job.kernel, arch=str(job.arch))
        workspace.progress.compiled(job, outcome)

    executor.compile(session, missing, report)
    variants.note_durations({job.label: outcome.seconds for job, outcome in compiled.items()})
    kernels = [_kernel(*pair, compiled, variants.kinds) for pair in zip(plan.kernels, by_kernel, strict=True)]
    failed = tuple(_compared(failures[job], compiled) for job in jobs if job in failures)
    return Compilation(plan.cuda, tuple(kernel for kernel in kernels if kernel.launchers), failed, cached)


def _compared(failure: Failure, compiled: Iterable[CompileJob]) -> Failure:
    """A failure with the architectures for which the same variant compiled."""
    archs = sorted({str(job.arch) for job in compiled if job.variant == failure.variant})
    message, hint, step = failure.message.partition("\nhint: ")
    return replace(failure, message=f"{message}\nit compiles for {', '.join(archs)}{hint}{step}") if archs else failure


def _called_from(kernel: KernelInfo) -> str:
    """Begins the message about a captured kernel, whose name does not tell an author which call it is."""
    return f"what {kernel.captured['called_from']} compiles: " if kernel.captured else ""


def _jobs(kernel: KernelPlan, scratch: Path) -> list[CompileJob]:
    """A job for each variant of a kernel, in their order."""
    folder = scratch / str(kernel.arch)
    folder.mkdir(exist_ok=True)
    keys = kernel.keys or [""] * len(kernel.variants)
    return [_job(kernel, variant, folder, key) for variant, key in zip(kernel.variants, keys, strict=True)]


def _job(kernel: KernelPlan, variant: VariantInfo, folder: Path, key: str) -> CompileJob:
    name = variant.table.name
    launcher, log = folder / f"{name}.ll", folder / f"{name}.log"
    return CompileJob(kernel.arch, kernel.info.name, name, launcher, log, key, variant.code)


def _kernels_by_arch(plan: Plan) -> dict[Arch, tuple[str, ...]]:
    kernels: dict[Arch, tuple[str, ...]] = {}
    for kernel in plan.kernels:
        kernels[kernel.arch] = (*kernels.get(kernel.arch, ()), kernel.info.name)
    return kernels


def _restored(jobs: Sequence[CompileJob], variants: KeptVariants, fetches: int) -> dict[CompileJob, Compiled]:
    """What the cache holds; its files are put where a worker would have written them."""
    with ThreadPoolExecutor(fetches) as pool:
        found = pool.map(lambda job: variants.restore(job.key, job.launcher), jobs)
        return {job: compiled for job, compiled in zip(jobs, found, strict=True) if compiled is not None}


def _forecast(
    jobs: Sequence[CompileJob], missing: Sequence[CompileJob], took: Mapping[str, float], settings: Settings
) -> Forecast:
    workers = settings.worker_count if settings.executor is None else None
    return Forecast({job.code for job in missing}, workers, [(job.code, job.label) for job in jobs], took)


def _largest_first(jobs: Sequence[CompileJob], took: Mapping[str, float]) -> list[CompileJob]:
    """By how long each took last time, so that no long one is left for the end; those not known first.

    Of these, kernels take turns: how long a kernel takes is known soon then, and with it how long the rest takes.
    """
    codes: dict[str, dict[Code, int]] = {}
    for job in jobs:
        own = codes.setdefault(job.kernel, {})
        own.setdefault(job.code, len(own))
    return sorted(jobs, key=lambda job: (-took.get(job.label, float("inf")), codes[job.kernel][job.code]))


def _kernel(
    plan: KernelPlan, jobs: Sequence[CompileJob], compiled: Mapping[CompileJob, Compiled], kinds: Sequence[str]
) -> CompiledKernel:
    launchers = [
        Launcher(variant, compiled[job], job.launcher)
        for variant, job in zip(plan.variants, jobs, strict=True)
        if job in compiled
    ]
    kept = [
        path for job in jobs for kind in kinds for path in sorted(job.launcher.parent.glob(f"{job.variant}.*{kind}"))
    ]
    return CompiledKernel(plan.info, plan.arch, tuple(launchers), tuple(kept), plan.sources)
