"""Building a bundle: plan what to compile, compile it, link it, assemble the bundle, publish it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from ..bundle.lock import locked
from ..bundle.manifest import Manifest
from ..bundle.publish import check_destination, clear_leftovers, staging
from ..bundle.tuning import Tuning
from ..cache.remote import without_secrets
from ..compile import dsl
from ..errors import BuildError, Failure, counted
from ..hosts import Host
from ..link.nvidia import NvidiaLibraries, find_libraries
from .assembling.assemble import assemble
from .assembling.contributions import bundle_contribution, remaining, still_missing, with_verified
from .assembling.finish import verify_and_publish
from .assembling.linking import link_kernels, linkers, prepare_linking
from .assembling.tuning import fitting_tables
from .events import CountingProgress, Progress
from .executing.compiling import Compilation, check_cluster, choose_executor, compile_plan, open_cluster
from .executing.executor import Executor, Session
from .executing.workers import Workers
from .plan import Plan
from .planning.changes import Pair, check_addable, check_replaceable, dropped, kept_pairs
from .planning.earlier import Earlier, look_up, note_made, remember_plan
from .planning.planner import make_plan, over_budget
from .planning.tuning import check_tables, read_tables
from .settings import BuildResult, Changes, Settings, check_memory
from .spellings import parse_archs
from .workspace import Workspace, make_workspace, scratch_folder, with_remote

__all__ = ["build", "check_may_replace", "check_options"]


def build(settings: Settings, progress: Progress | None = None) -> BuildResult:
    """Build a bundle. Kernels that fail are listed in the result, and the manifest says that it is incomplete."""
    counting = CountingProgress(progress or Progress())
    try:
        with scratch_folder() as scratch, locked(settings.destination, counting.warn, wait=settings.wait):
            return _build(make_workspace(settings, counting, scratch))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(settings, counting.count)) from None


def _kept(settings: Settings, variants: int) -> str:
    """What is left of a build that is interrupted, for a person to read."""
    place = settings.artifacts or (without_secrets(settings.remote) if settings.remote else None)
    if place is None or not variants:
        return "nothing was written"
    verb = "is" if variants == 1 else "are"
    return f"{counted(variants, 'compiled variant')} {verb} kept in `{place}`; the next build goes on from there"


def _build(workspace: Workspace) -> BuildResult:
    """Build while nobody else writes to the directory: what is there is looked at now, not before."""
    out, settings = workspace.out, workspace.settings
    with suppress(OSError):  # check_destination reports what is wrong with the place
        clear_leftovers(out)
    existing = check_destination(out)
    check_addable(existing, out, settings)
    workspace, tables = check_options(workspace)
    earlier = look_up(workspace, existing)
    if existing is not None:
        if earlier.is_made:
            return BuildResult(out, existing, (), Changes(kept=_variants(existing)))
        check_replaceable(existing, out, workspace.name, settings)
    compilation, kept, key = _compile(workspace, earlier, tables, existing)
    check_may_replace(existing, compilation.failures, settings)
    manifest = _assemble(compilation, existing, kept, workspace, tables)
    if not compilation.failures:
        note_made(workspace, key)
    return BuildResult(out, manifest, compilation.failures, _changes(existing, manifest, compilation))


def check_options(workspace: Workspace) -> tuple[Workspace, dict[Path, Tuning]]:
    """Look at every option, whether or not anything has to be compiled; the shared cache is opened by it."""
    settings = workspace.settings
    check_cluster(settings.executor, settings.dask_security)
    check_memory(settings.memory)
    return with_remote(workspace), read_tables(settings)


def _variants(manifest: Manifest) -> int:
    return sum(kernel.variants for kernel in manifest.kernels.values())


def _changes(existing: Manifest | None, manifest: Manifest, compilation: Compilation) -> Changes:
    made = sum(len(kernel.launchers) for kernel in compilation.kernels)
    return Changes(
        compiled=made - compilation.cached,
        cached=compilation.cached,
        kept=_variants(manifest) - made,
        dropped=dropped(existing, manifest) if existing is not None else (),
    )


def _compile(
    workspace: Workspace, earlier: Earlier, tables: dict[Path, Tuning], existing: Manifest | None
) -> tuple[Compilation, frozenset[Pair], str | None]:
    """Plan and compile; what is kept of the bundle there, and the key of what the build ends with, go along."""
    settings = workspace.settings
    prepare_linking(settings, workspace.scratch, workspace.store)
    session = Session(settings.kernels, settings.options, settings.timeout)
    limit = settings.worker_count if settings.memory is not None else None
    cluster = open_cluster(settings.executor, settings.dask_security)
    with closing(cluster) if cluster else nullcontext(), Workers(session, workspace.scratch, limit=limit) as workers:
        plan, failures, key = _plan(workspace, earlier, workers, cluster)
        kept = kept_pairs(existing, workspace.out, plan, failures, settings)
        if not failures:  # these go first: a table may be about what failed
            check_tables(tables, settings, plan.kernels)
        workspace.progress.stage("finding NVIDIA's libraries" + _for_other_hosts(settings.hosts))
        _libraries(settings, settings.hosts, plan.cuda)  # what is missing is reported before the long part
        with closing(choose_executor(cluster, workers, workspace)) as executor:
            compilation = compile_plan(plan, workers.session, executor, workspace)
        failures = (*failures, *compilation.failures, *workers.take_failures())
    if not compilation.kernels:
        raise BuildError("every kernel failed", failures=failures)
    return replace(compilation, failures=failures), kept, key


def _plan(
    workspace: Workspace, earlier: Earlier, workers: Workers, cluster: Executor | None
) -> tuple[Plan, tuple[Failure, ...], str | None]:
    if earlier.plan is not None:
        _comment(earlier.plan, workspace.progress)
        return earlier.plan, (), earlier.key
    workspace.progress.stage("reading declarations")
    if cluster is None:
        _start_ahead(workers, workspace)
    new = make_plan(workspace.settings, workers)
    _comment(new.plan, workspace.progress)
    return new.plan, new.failures, remember_plan(workspace, new)


def _start_ahead(workers: Workers, workspace: Workspace) -> None:
    """If nothing was compiled yet, a second worker will be needed: start it while the first one plans."""
    settings, store = workspace.settings, workspace.store
    archs = parse_archs(settings.archs, ())
    if archs and settings.jobs > 1 and settings.memory is None and store is not None and store.is_empty("variants"):
        workers.start_ahead(archs[0])


def _comment(plan: Plan, progress: Progress) -> None:
    """Name the kernels that nobody can check, and those with too many variants.

    Kernels of other libraries are checked by these libraries.
    """
    for warning in filter(None, (dsl.warning(dsl.version()), *over_budget(plan))):
        progress.warn(warning)
    infos = [kernel.info for kernel in plan.kernels]
    names = sorted({info.name for info in infos if not info.has_contract and info.captured is None})
    if names:
        progress.note(f"without a contract, so that `check` and `bench` pass over: {', '.join(names)}")


def _libraries(settings: Settings, hosts: Sequence[Host], cuda: int) -> dict[Host, NvidiaLibraries]:
    return {host: find_libraries(host, cuda, settings.cache, settings.wheelhouse) for host in hosts}


def _for_other_hosts(hosts: Sequence[Host]) -> str:
    others = [host.name for host in hosts if host.cpu != Host.native().cpu]
    return f" for {', '.join(others)}, which may be fetched" if others else ""


def check_may_replace(existing: Manifest | None, failures: Sequence[Failure], settings: Settings) -> None:
    """An incomplete build leaves a complete bundle as it is, unless that is allowed."""
    if failures and existing is not None and existing.complete and not settings.allow_incomplete:
        raise BuildError(
            f"`{settings.destination}` holds a complete bundle, and this build is incomplete: the bundle was left as it is",
            hint="fix the failures, or pass `--allow-incomplete`",
            failures=failures,
        )


def _assemble(
    compilation: Compilation,
    existing: Manifest | None,
    kept: frozenset[Pair],
    workspace: Workspace,
    tables: dict[Path, Tuning],
) -> Manifest:
    """Link what was compiled, and write a bundle of it and of what is kept of the bundle that is there."""
    settings, out = workspace.settings, workspace.out
    old = bundle_contribution(out, lambda *pair: pair in kept, existing) if kept else None
    hosts = _hosts(settings, existing)
    workspace.progress.stage(f"linking for {', '.join(map(str, hosts))}")
    with (
        linkers(settings.cache, workspace.scratch, settings.link_count, workspace.store) as linker_for,
        staging(out.absolute()) as staged,
    ):
        new = link_kernels(compilation, _libraries(settings, hosts, compilation.cuda), workspace, linker_for)
        new = replace(new, tunings=tuple(fitting_tables(tables, settings, new)))
        if existing is not None and not settings.replace:
            new = with_verified(new, out, existing)
            left = still_missing(existing, new, is_all=not settings.select) if settings.add else ()
            new = replace(new, failures=(*left, *new.failures))
        manifest = assemble([new] if old is None else [remaining(old, new), new], staged, linker_for)
        workspace.progress.stage("verifying")
        verify_and_publish(staged, out, workspace.store, workspace.progress.warn)
    return manifest


def _hosts(settings: Settings, existing: Manifest | None) -> tuple[Host, ...]:
    """With ``--add``, every host of the bundle there gets what is added, with the glibc that the bundle was built for."""
    hosts = {host.name: host for host in settings.hosts}
    for name, record in existing.hosts.items() if existing is not None and settings.add else ():
        hosts.setdefault(name, Host.of_record(name, record))
    return tuple(hosts.values())
