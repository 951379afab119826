"""Building a bundle: plan what to compile, compile it, link it, assemble the bundle, publish it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..bundle.lock import locked
from ..bundle.manifest import Manifest
from ..bundle.publish import Destination, check_destination, put_back, staging
from ..errors import BuildError, Failure, counted
from ..hosts import Host
from ..link.nvidia import NvidiaLibraries, find_libraries
from .address import Address
from .assembling.assemble import assemble
from .assembling.contributions import bundle_contribution, remaining, still_missing, with_verified
from .assembling.finish import verify_and_publish
from .assembling.linking import Linkers, link_kernels, linkers
from .events import CountingProgress, Progress
from .executing.compiling import Compilation, compile_plan
from .executing.executor import Executor
from .executing.local import choose_executor
from .executing.workers import Workers
from .planning.changes import Pair, check_replaceable, hosts_with_kept, kept_pairs, made_changes
from .planning.earlier import Earlier, look_up, plan_build
from .planning.planner import comment
from .settings import BuildResult, Changes, Settings
from .workspace import Workspace, open_workspace, scratch_folder

__all__ = ["build", "check_may_replace"]


def build(settings: Settings, progress: Progress | None = None) -> BuildResult:
    """Build a bundle. Kernels that fail are listed in the result, and the manifest says that it is incomplete."""
    counting = CountingProgress(progress or Progress())
    try:
        with scratch_folder() as scratch, locked(settings.destination, counting.warn, wait=settings.wait):
            return _build(settings, counting, scratch)
    except KeyboardInterrupt:
        kept = "nothing was written"
        if settings.kept_in is not None and counting.count:
            variants = f"{counted(counting.count, 'compiled variant')} {'is' if counting.count == 1 else 'are'}"
            kept = f"{variants} kept in `{settings.kept_in}`; the next build goes on from there"
        raise KeyboardInterrupt(kept) from None


def _build(settings: Settings, progress: Progress, scratch: Path) -> BuildResult:
    """Build while this process holds the lock of the directory, so the old bundle is read only now."""
    with suppress(OSError):  # check_destination reports what is wrong with the place
        put_back(settings.destination)
    destination = check_destination(settings.destination)
    workspace = open_workspace(settings, progress, scratch)
    earlier = look_up(workspace, destination)
    if earlier.is_made and destination.manifest is not None:
        unchanged = Changes(kept=destination.manifest.variant_count)
        return BuildResult(workspace.out, destination.manifest, (), unchanged)
    check_replaceable(destination, settings)
    with linkers(settings.cache, workspace.scratch, settings.link_count, workspace.store) as linker_for:
        linker_for.prepare(settings)
        made = _compile(workspace, earlier, destination)
        check_may_replace(destination, made.compilation.failures, settings)
        manifest = _assemble(made, destination, workspace, linker_for)
    cached = made.compilation.cached
    variants = sum(len(kernel.launchers) for kernel in made.compilation.kernels)
    changes = made_changes(destination.manifest, manifest, compiled=variants - cached, cached=cached)
    return BuildResult(workspace.out, manifest, made.compilation.failures, changes)


@dataclass(frozen=True)
class _Made:
    """What :func:`_compile` hands to :func:`_assemble`."""

    compilation: Compilation
    libraries: Mapping[Host, NvidiaLibraries]  # for every host of the new bundle
    kept: frozenset[Pair]  # what the new bundle takes over from the old one
    key: str | None  # of the finished bundle in the cache; None: such a bundle is not recalled


def _compile(workspace: Workspace, earlier: Earlier, destination: Destination) -> _Made:
    settings = workspace.settings
    cluster = _connect(settings.executor) if settings.executor is not None else None
    # An empty cache means that everything is compiled: start the second worker while the first one plans.
    ahead = cluster is None and workspace.store is not None and workspace.store.is_empty("variants")
    with closing(cluster) if cluster else nullcontext(), Workers(settings, workspace.scratch, ahead=ahead) as workers:
        planned = plan_build(workspace, earlier, workers)
        plan, failures = planned.plan, planned.failures
        comment(plan, workspace.progress)
        kept = kept_pairs(destination, plan, failures, settings)
        hosts = hosts_with_kept(destination, settings)
        if not failures:  # else report the failures: a table may be for a kernel that failed
            workspace.tables.check(plan.kernels)
        others = ", ".join(host.name for host in hosts if host.cpu != Host.native().cpu)
        fetched = f" for {others}, which may be fetched" if others else ""
        workspace.progress.stage(f"finding NVIDIA's libraries{fetched}")
        # A missing library is reported now, before the kernels are compiled.
        libraries = {host: find_libraries(host, plan.cuda, settings.cache, settings.wheelhouse) for host in hosts}
        with closing(choose_executor(cluster, workers, workspace)) as executor:
            compilation = compile_plan(plan, workers.session, executor, workspace)
        failures = (*failures, *compilation.failures, *workers.take_failures())
    if not compilation.kernels:
        raise BuildError("every kernel failed", failures=failures)
    return _Made(replace(compilation, failures=failures), libraries, kept, planned.key)


def _connect(address: Address) -> Executor:
    from .executing.dask import DaskExecutor  # what builds on this machine do without

    return DaskExecutor.connect(address)


def check_may_replace(destination: Destination, failures: Sequence[Failure], settings: Settings) -> None:
    """An incomplete build leaves a complete bundle as it is, unless that is allowed."""
    existing = destination.manifest
    if failures and existing is not None and existing.complete and not settings.allow_incomplete:
        raise BuildError(
            f"`{destination.path}` holds a complete bundle, and this build is incomplete: the bundle was left as it is",
            hint="fix the failures, or pass `--allow-incomplete`",
            failures=failures,
        )


def _assemble(made: _Made, destination: Destination, workspace: Workspace, linker_for: Linkers) -> Manifest:
    """Link the compiled kernels, add what is kept of the old bundle, and publish the new one."""
    settings, out, existing = workspace.settings, workspace.out, destination.manifest
    old = bundle_contribution(out, lambda *pair: pair in made.kept, existing) if made.kept else None
    workspace.progress.stage(f"linking for {', '.join(map(str, made.libraries))}")
    with staging(out.absolute()) as staged:
        new = link_kernels(made.compilation, made.libraries, workspace, linker_for)
        built = {pair: kernel.variants for pair, kernel in new.kernels.items()}
        new = replace(new, tunings=workspace.tables.of_built(built))
        if existing is not None and not settings.replace:
            new = with_verified(new, out, existing)
            left = still_missing(existing, new, is_all=not settings.select) if settings.add else ()
            new = replace(new, failures=(*left, *new.failures))
        manifest = assemble([new] if old is None else [remaining(old, new), new], staged, linker_for)
        workspace.progress.stage("verifying")
        request = made.key if not made.compilation.failures else None
        verify_and_publish(staged, out, workspace.store, workspace.progress.warn, request)
    return manifest
