"""From a plan to compiled variants: out of the cache what is there, the rest by an executor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from aot_runtime.arch import Arch

from ...cache import recall
from ...cache.variants import keep_variant, restore_variant
from ...compile.messages import Compiled, KernelInfo, KernelSources, VariantInfo
from ...errors import Failure, UsageError, counted
from ..plan import KernelPlan, Plan
from ..workspace import Workspace
from .address import Address, parse_address
from .executor import CompileJob, Executor, Session
from .local import LocalExecutor
from .workers import Workers

__all__ = [
    "Compilation",
    "CompiledKernel",
    "Launcher",
    "check_cluster",
    "choose_executor",
    "compile_plan",
    "open_cluster",
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


def check_cluster(text: str | None, security: Path | None = None) -> Address | None:
    """The address of the cluster that is named; None if none is. ``security`` names certificates, and asks for TLS."""
    if text is None:
        if security is not None:
            raise UsageError("`--dask-security` needs a cluster", hint="pass `--executor tls://host:8786`")
        return None
    address = parse_address(text)
    return replace(address, encrypted=address.encrypted or security is not None)


def open_cluster(text: str | None, security: Path | None = None) -> Executor | None:
    """Connect to the cluster that is named; None if none is."""
    address = check_cluster(text, security)
    if address is None:
        return None
    from .dask import DaskExecutor

    return DaskExecutor.connect(address, security)


def choose_executor(cluster: Executor | None, workers: Workers, workspace: Workspace) -> Executor:
    """The cluster if there is one; else processes of this machine, of which those that planned go on."""
    warm, settings = workers.release(), workspace.settings
    if cluster is None:
        return LocalExecutor(workers.another, jobs=settings.jobs, memory=settings.memory, warm=warm)
    for worker in warm.values():
        worker.close()
    return cluster


def compile_plan(plan: Plan, session: Session, executor: Executor, workspace: Workspace) -> Compilation:
    """Have every variant of a plan compiled that is not in the cache."""
    by_kernel = [_jobs(kernel, workspace.scratch) for kernel in plan.kernels]
    jobs = [job for own in by_kernel for job in own]
    compiled = _restored(jobs, workspace)
    cached = len(compiled)
    missing = _largest_first([job for job in jobs if job not in compiled], workspace)
    if compiled:
        workspace.progress.note(
            f"{len(compiled)} of {counted(len(jobs), 'variant')} {'is' if len(jobs) == 1 else 'are'} in the cache"
        )
    workspace.progress.total(len(missing), len({(job.arch, job.kernel, job.group or job.variant) for job in missing}))
    failures: list[Failure] = []
    callers = {kernel.info.name: _called_from(kernel.info) for kernel in plan.kernels}

    def report(job: CompileJob, outcome: Compiled | Failure) -> None:
        if isinstance(outcome, Compiled):
            compiled[job] = outcome
            _keep(job, outcome, workspace)
        else:
            message = f"{callers[job.kernel]}{outcome.message}"
            failures.append(replace(outcome, message=message, kernel=job.kernel, arch=str(job.arch)))
        workspace.progress.compiled(job, outcome)

    executor.compile(replace(session, kernels=_kernels_by_arch(plan)), missing, report)
    _note_durations(compiled, workspace)
    kept = workspace.settings.options.keep
    kernels = [_kernel(*pair, compiled, kept) for pair in zip(plan.kernels, by_kernel, strict=True)]
    failed = tuple(_compared(failure, compiled) for failure in failures)
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


def _restored(jobs: Sequence[CompileJob], workspace: Workspace) -> dict[CompileJob, Compiled]:
    """What the cache holds; its files are put where a worker would have written them."""
    store = workspace.store
    if store is None:
        return {}
    with ThreadPoolExecutor(_FETCHES if workspace.settings.remote else 1) as pool:
        found = pool.map(lambda job: restore_variant(store, job.key, job.launcher) if job.key else None, jobs)
        return {job: compiled for job, compiled in zip(jobs, found, strict=True) if compiled is not None}


def _keep(job: CompileJob, compiled: Compiled, workspace: Workspace) -> None:
    if workspace.store is not None and job.key:
        keep_variant(workspace.store, job.key, job.launcher, compiled, workspace.settings.options.keep)


def _largest_first(jobs: Sequence[CompileJob], workspace: Workspace) -> list[CompileJob]:
    """By how long each took last time, so that no long one is left for the end; those not known first."""
    store = workspace.store
    known = recall.durations(store, workspace.settings.kernels) if store is not None else {}
    return sorted(jobs, key=lambda job: -known.get(f"{job.arch} {job.variant}", float("inf")))


def _note_durations(compiled: Mapping[CompileJob, Compiled], workspace: Workspace) -> None:
    if workspace.store is not None:
        took = {f"{job.arch} {job.variant}": outcome.seconds for job, outcome in compiled.items()}
        recall.keep_durations(workspace.store, workspace.settings.kernels, took)


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
