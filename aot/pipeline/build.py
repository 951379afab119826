"""Building a bundle: decide what to compile, have it compiled, link it, check it, put it in its place."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor as Threads
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aot_runtime.manifest as manifest_module
from aot_runtime.arch import Arch
from aot_runtime.manifest import FileRecord, HostRecord, KernelRecord, Manifest

from ..bundle import layout
from ..bundle.contracts import contract_sources
from ..bundle.details import details_text
from ..bundle.headers import write_headers
from ..bundle.integrity import damaged_files
from ..bundle.layout import CONTRACTS, details_name
from ..bundle.publish import check_destination, clear_leftovers, publish, staging
from ..cache import keys, recall
from ..cache.entries import entry_limit
from ..cache.links import CachingLinker
from ..cache.remote import Remote, SharedStore
from ..cache.store import Store
from ..cache.variants import keep_variant, restore_variant
from ..compile.launcher import parse_launcher, symbol_prefix
from ..compile.messages import Closure, Compiled, Declared, Failure, KernelInfo, Options, VariantInfo
from ..compile.process import Worker, WorkerLost
from ..errors import BuildError, DeclarationError, Problem, UsageError
from ..files import owned_directory, sha256_of, sweep
from ..hosts import Host
from ..link.libraries import NO_IDENTITY, EntryFunction, KernelBuild, Linker, describe_file
from ..link.nvidia import NvidiaLibraries, distributions, find_libraries
from ..link.static import StaticArchives
from ..link.zig import Zig
from ..records import encode
from ..selection.decision import decide, unreachable
from ..selection.tables import MAX_ARGUMENTS, CompiledVariant, Group, kernel_library_source
from ..targets import builds_for, lowest_driver, parse_archs
from .assemble import Member, compose
from .events import Progress
from .executor import CompileJob, Executor, Session, open_executor
from .local import WORKER_BYTES, LocalExecutor, fitting

__all__ = [
    "BuildResult",
    "Problem",
    "Progress",
    "Settings",
    "build",
    "check_verified",
    "describe",
    "make_linker",
    "open_source",
]


@dataclass(frozen=True)
class Settings:
    """What to build, from what, for what. The command line fills one in; so may a program."""

    kernels: str
    archs: tuple[str, ...]
    out: Path | None = None  # dist/<name> where absent
    name: str | None = None  # the folder's or module's name where absent
    select: tuple[str, ...] = ()  # globs of kernel names; all where absent
    hosts: tuple[Host, ...] = field(default_factory=lambda: (Host.native(),))
    jobs: int = 1
    memory: int | None = None  # bytes that the build may take with all its processes; None: no limit but ``jobs``
    timeout: float | None = None  # seconds for one variant, and for one file of the kernels to be imported
    executor: str | None = None  # the cluster that compiles, like dask://host:port; None: this machine
    options: Options = field(default_factory=Options)
    shared_cudart: bool = False
    replace: bool = False  # a bundle of the same name at the destination: begin anew instead of adding to it
    allow_incomplete: bool = False  # may an incomplete build replace a complete bundle?
    cache: Path = field(default_factory=lambda: Path(tempfile.gettempdir()) / "cute-aot")  # of the tools
    artifacts: Path | None = None  # where compiled and linked code is kept from build to build; None: nowhere
    remote: str | None = None  # a URL: what is not among the artifacts here is looked for there
    remote_read_only: bool = False  # put nothing there
    wheelhouse: Path | None = None
    archives: bool = True  # for static linking, beside the shared libraries


@dataclass(frozen=True)
class BuildResult:
    path: Path
    manifest: Manifest
    problems: tuple[Problem, ...]


def describe(kernels: str, options: Options | None = None) -> Declared:
    """What a source declares, without building anything."""
    with tempfile.TemporaryDirectory(prefix="aot-") as scratch:
        worker, failures = open_source(Session(kernels, options or Options()), None, Path(scratch) / "log")
        worker.close()
        return replace(worker.declared, failures=(*worker.declared.failures, *failures.values()))


def open_source(session: Session, arch: Arch | None, log: Path) -> tuple[Worker, dict[str, Failure]]:
    """A worker that has read the author's files, and those that took its process down or did not come to an end."""
    failures: dict[str, Failure] = {}
    while True:
        skip = [*session.skip, *failures]
        try:
            return Worker(session.source, arch, session.options, log, timeout=session.timeout, skip=skip), failures
        except WorkerLost as error:
            path = error.reading or session.source
            failure = Failure("", f"reading `{path}`: the process {error.reason}", error.log)
            if path in skip or Path(session.source) not in Path(path).parents or Path(path).name == "__init__.py":
                problem = Problem("", str(arch or ""), "", failure.message, failure.log)
                raise BuildError("no kernel could be read", problems=[problem]) from None
            failures[path] = failure


def build(settings: Settings, progress: Progress | None = None) -> BuildResult:
    """Build a bundle. Kernels that fail are listed in the result, and the manifest says it is incomplete."""
    folder = Path(tempfile.gettempdir())
    sweep(folder, prefix=_SCRATCH)
    with owned_directory(folder, prefix=_SCRATCH) as scratch:
        run = _Build(settings, progress or Progress(), scratch)
        try:
            return run.run()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(run.kept()) from None


_SCRATCH = "aot-build-"
_FETCHES = 16  # requests to a remote cache at once: each waits for the network most of its time


@dataclass
class _KernelPlan:
    """One kernel for one architecture, as it goes through the build."""

    info: KernelInfo
    arch: Arch
    variants: tuple[VariantInfo, ...]
    keys: dict[str, str] = field(default_factory=dict)  # of the cache, by variant
    compiled: dict[str, Compiled] = field(default_factory=dict)

    def complete(self) -> tuple[VariantInfo, ...]:
        return tuple(variant for variant in self.variants if variant.table.name in self.compiled)


@dataclass(frozen=True)
class _KernelSource:
    """What a kernel library is linked from beside its launchers: the same for every host."""

    plan: _KernelPlan
    tables: str
    imports: frozenset[str]  # from the support library


class _Build:
    def __init__(self, settings: Settings, progress: Progress, scratch: Path) -> None:
        self.settings = settings
        self.progress = progress
        self.scratch = scratch
        self.name = settings.name or _default_name(settings.kernels)
        self.out = settings.out or Path("dist") / self.name
        self.problems: list[Problem] = []
        self.workers: dict[Arch, Worker] = {}
        self.closures: dict[Arch, Closure] = {}
        self.session = Session(settings.kernels, settings.options, settings.timeout)
        self.executor: Executor | None = None  # None: processes of this machine
        self.cuda = 0
        artifacts = settings.artifacts or (scratch / "artifacts" if settings.remote else None)
        self.store = Store(artifacts, limit=entry_limit(settings.memory)) if artifacts is not None else None
        self.request = recall.Request(settings.kernels, settings.archs, settings.select, settings.options)
        self.hosts = settings.hosts
        self.compiled = 0  # variants, by this build
        self.made_by: str | None = None  # what made this bundle, as a key of the cache
        self.libraries: dict[Host, NvidiaLibraries] = {}

    def run(self) -> BuildResult:
        if not manifest_module.is_name(self.name):
            raise UsageError(
                f"{self.name!r} cannot name a bundle", hint="give `--name` letters, digits and underscores"
            )
        with suppress(OSError):  # what is wrong with the place is said next
            clear_leftovers(self.out)
        existing = check_destination(self.out)
        if existing is not None and self._is_done():
            return BuildResult(self.out, existing, ())
        if self.store is not None and self.settings.remote is not None:
            read_only = self.settings.remote_read_only
            remote = Remote.open(self.settings.remote, read_only=read_only, warn=self.progress.warn)
            self.store = SharedStore(self.store.root, remote, limit=self.store.limit)
        try:
            self.executor = open_executor(self.settings.executor)
            made = self._recall() or self._plan()
            # What is missing for a host is said before the long part.
            self.libraries = {host: self._find_libraries(host) for host in self.hosts}
            self._compile(made)
            self._note_durations(made)
        finally:
            if self.executor is not None:
                self.executor.close()
            self._close_workers()
        # In the order of :func:`compose`: a bundle that was built at once is one that has grown.
        made = sorted((plan for plan in made if plan.compiled), key=lambda plan: (plan.arch, plan.info.name))
        if not made:
            raise BuildError("every kernel failed", problems=self.problems)
        if self.problems and existing is not None and existing.complete and not self.settings.allow_incomplete:
            raise BuildError(
                f"`{self.out}` holds a complete bundle, and this build is not complete: it was left as it is",
                hint="mend what failed, or say `--allow-incomplete`",
                problems=self.problems,
            )
        with staging(self.out.absolute()) as staged:
            if existing is not None and existing.name == self.name and not self.settings.replace:
                manifest = self._grow(existing, made, staged)
            else:
                manifest = self._assemble(made, staged)
            self._verify(staged)
            publish(staged, self.out, self.progress.warn)
        self._note_done()
        return BuildResult(self.out, manifest, tuple(self.problems))

    def _grow(self, existing: Manifest, made: Sequence[_KernelPlan], staged: Path) -> Manifest:
        """What is there and this build does not make stays, byte for byte; the rest is added."""
        fresh = {(plan.info.name, plan.arch) for plan in made}
        old = Member(self.out, lambda kernel, arch: (kernel, arch) not in fresh)
        if not old.pairs:
            return self._assemble(made, staged)
        self.hosts = _joined_hosts(self.settings.hosts, existing)
        self.libraries = {host: self.libraries.get(host) or self._find_libraries(host) for host in self.hosts}
        added = self.scratch / "added"
        added.mkdir()
        self._assemble(made, added)
        with ThreadPoolExecutor(self._link_count()) as pool:
            return compose(
                [old, Member(added)],
                staged,
                lambda host: make_linker(host, self.settings.cache, self.scratch, pool, self.store),
                later_wins=True,
            )

    def kept(self) -> str:
        """What is left of a build that ends here, for a person to read."""
        if self.store is None or not self.compiled:
            return "nothing was written"
        return f"{self.compiled} compiled variants are kept in `{self.store.root}`; the next build goes on from there"

    # What earlier builds have left.

    def _is_done(self) -> bool:
        """Whether what lies at the destination is what this build would end with."""
        outline = recall.unchanged(self.store, self.request) if self.store is not None else None
        if self.store is None or outline is None:
            return False
        self.made_by = self._made_by(outline)
        return recall.is_made(self.store, self.made_by, self.out) and not any(
            damaged_files(self.out, manifest_module.Manifest.read(self.out))
        )

    def _made_by(self, plan: recall.Outline) -> str:
        """The key of what this build ends with."""
        settings = self.settings
        return keys.bundle_key(
            plan.digest,
            self.name,
            hosts=settings.hosts,
            shared_cudart=settings.shared_cudart,
            archives=settings.archives,
            replace=settings.replace,
            cuda=plan.cuda,
            wheelhouse=settings.wheelhouse,
            contracts=contract_sources(dict(plan.contracts)),
            source=_source(settings.kernels),
        )

    def _recall(self) -> list[_KernelPlan] | None:
        """The plan of an earlier build, where nothing it came from has changed."""
        outline = recall.unchanged(self.store, self.request) if self.store is not None else None
        plan = recall.recall_plan(self.store, outline) if self.store is not None and outline is not None else None
        if plan is None or outline is None:
            return None
        self.cuda, self.made_by = plan.cuda, self._made_by(outline)
        recalled = []
        for kernel in plan.kernels:
            names = [variant.table.name for variant in kernel.variants]
            known = dict(zip(names, kernel.keys, strict=True))
            recalled.append(_KernelPlan(kernel.info, kernel.arch, kernel.variants, known))
        return recalled

    def _remember(self, made: Sequence[_KernelPlan]) -> None:
        """Keep the plan, unless something was wrong with it."""
        if self.store is not None and not self.problems:
            kernels = [recall.KernelPlan(p.info, p.arch, p.variants, tuple(p.keys.values())) for p in made]
            kept = recall.Plan(self.cuda, tuple(kernels))
            outline = recall.keep_plan(self.store, self.request, kept, list(self.closures.values()))
            self.made_by = self._made_by(outline)

    def _needs_keys(self) -> bool:
        return self.store is not None or (self.executor is not None and self.executor.is_remote)

    def _verify(self, staged: Path) -> None:
        from ..bundle.verify import verify  # its readers of machine code take long to import, and are not always needed

        self.progress.stage("verifying")
        if self.store is not None and recall.is_verified(self.store, staged):
            check_verified(list(damaged_files(staged, Manifest.read(staged))))
            return
        check_verified(verify(staged))
        if self.store is not None:
            recall.keep_verified(self.store, staged)

    def _note_done(self) -> None:
        if self.store is not None and self.made_by is not None and not self.problems:
            recall.keep_made(self.store, self.made_by, self.out)

    # Deciding what to compile.

    def _plan(self) -> list[_KernelPlan]:
        declared = self._declared()
        kernels = self._selected(declared.kernels)
        available = {arch for kernel in kernels for arch in kernel.archs}
        archs = parse_archs(self.settings.archs, available)
        for arch in archs:
            if not builds_for(available, arch):
                raise UsageError(
                    f"no kernel is written for {arch}",
                    hint="they are written for " + ", ".join(str(item) for item in sorted(available)),
                )
        made = [plan for arch in archs for plan in self._plan_arch(arch, kernels)]
        self._remember(made)
        return made

    def _declared(self) -> Declared:
        self.progress.stage("reading declarations")
        named = parse_archs(self.settings.archs, ())  # all of them but `all`
        worker = self._worker(named[0]) if named else self._start(None)
        declared = worker.declared
        if not named:
            worker.close()
        for failure in declared.failures:
            self.problems.append(Problem("", "", "", failure.message))
        if not declared.kernels:
            raise BuildError("no kernel could be read", problems=self.problems)
        return declared

    def _worker(self, arch: Arch) -> Worker:
        """The worker that plans an architecture, and is kept to compile it as far as the memory allows."""
        if arch not in self.workers:
            while self.settings.memory is not None and len(self.workers) >= self._worker_count():
                self.workers.pop(next(iter(self.workers))).close()
            self.workers[arch] = self._start(arch)
        return self.workers[arch]

    def _close_workers(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.workers = {}

    def _start(self, arch: Arch | None) -> Worker:
        worker, failures = open_source(self.session, arch, self.scratch / f"worker-{arch}.log")
        for failure in failures.values():
            self.problems.append(Problem("", "", "", failure.message, failure.log))
        self.session = replace(self.session, skip=(*self.session.skip, *failures))
        return worker

    def _selected(self, kernels: Sequence[KernelInfo]) -> list[KernelInfo]:
        globs = self.settings.select or ("*",)
        selected = [kernel for kernel in kernels if any(fnmatch.fnmatchcase(kernel.name, glob) for glob in globs)]
        if not selected:
            known = ", ".join(kernel.name for kernel in kernels)
            raise UsageError(f"no kernel matches {', '.join(globs)}", hint=f"there are: {known}")
        return selected

    def _plan_arch(self, arch: Arch, kernels: Sequence[KernelInfo]) -> list[_KernelPlan]:
        self.cuda = self._worker(arch).backend()
        made = [self._plan_kernel(kernel, arch) for kernel in kernels if builds_for(kernel.archs, arch)]
        planned = [plan for plan in made if plan is not None]
        if self._needs_keys() and planned:
            self._give_keys(planned, arch)
        return planned

    def _give_keys(self, made: Sequence[_KernelPlan], arch: Arch) -> None:
        self.closures[arch] = closure = self._worker(arch).closure()
        for plan in made:
            kernel = closure.kernels[plan.info.name]
            plan.keys = keys.variant_keys(
                plan.info, plan.variants, arch, kernel, options=self.settings.options, cuda=self.cuda
            )

    def _plan_kernel(self, kernel: KernelInfo, arch: Arch) -> _KernelPlan | None:
        """What to compile of a kernel; None, and a problem noted, where its declaration is wrong."""
        try:
            plan = _KernelPlan(kernel, arch, self._worker(arch).expand(kernel.name))
            for function in kernel.functions:
                _check_group(plan, function)
        except WorkerLost as error:
            self.workers.pop(arch).close()
            message = f"{kernel.origin}: the process that runs its declaration {error.reason}"
            self.problems.append(Problem(kernel.name, str(arch), "", message, error.log))
            return None
        except DeclarationError as error:
            self.problems.append(Problem(kernel.name, str(arch), "", str(error)))
            return None
        return plan

    # Compiling.

    def _compile(self, plans: Sequence[_KernelPlan]) -> None:
        by_kernel = {(plan.info.name, plan.arch): plan for plan in plans}
        every = [(plan, self._job(plan, variant)) for plan in plans for variant in plan.variants]
        with ThreadPoolExecutor(_FETCHES if self.settings.remote else 1) as pool:
            found = list(pool.map(lambda one: self._restore(*one), every))
        jobs = self._largest_first([job for (_, job), is_there in zip(every, found, strict=True) if not is_there])
        self.progress.total(len(jobs))
        if len(jobs) < len(every):
            self.progress.stage(f"{len(every) - len(jobs)} of {len(every)} variants are in the cache")

        def report(job: CompileJob, outcome: Compiled | Failure) -> None:
            if isinstance(outcome, Compiled):
                self._keep(by_kernel[job.kernel, job.arch], job, outcome)
            else:
                self.problems.append(Problem(job.kernel, str(job.arch), job.variant, outcome.message, outcome.log))
            self.progress.compiled(job, outcome)

        self._executor().compile(self._session(plans), jobs, report)

    def _executor(self) -> Executor:
        if self.executor is not None:
            self._close_workers()  # they have planned, others compile
        else:
            workers, self.workers = self.workers, {}
            settings = self.settings
            self.executor = LocalExecutor(self._start, jobs=settings.jobs, memory=settings.memory, warm=workers)
        return self.executor

    def _session(self, plans: Sequence[_KernelPlan]) -> Session:
        kernels: dict[Arch, tuple[str, ...]] = {}
        for plan in plans:
            kernels[plan.arch] = (*kernels.get(plan.arch, ()), plan.info.name)
        return replace(self.session, kernels=kernels)

    def _worker_count(self) -> int:
        return fitting(self.settings.jobs, self.settings.memory, WORKER_BYTES)

    def _link_count(self) -> int:
        return fitting(self.settings.jobs, self.settings.memory, LINK_BYTES)

    def _largest_first(self, jobs: Sequence[CompileJob]) -> list[CompileJob]:
        """By how long each took last time, so that no long one is left for the end; those not known first."""
        known = recall.durations(self.store, self.settings.kernels) if self.store is not None else {}
        return sorted(jobs, key=lambda job: -known.get(f"{job.arch} {job.variant}", float("inf")))

    def _restore(self, plan: _KernelPlan, job: CompileJob) -> bool:
        key = plan.keys.get(job.variant)
        compiled = restore_variant(self.store, key, job.launcher) if self.store is not None and key else None
        if compiled is not None:
            plan.compiled[job.variant] = compiled
        return compiled is not None

    def _keep(self, plan: _KernelPlan, job: CompileJob, compiled: Compiled) -> None:
        plan.compiled[job.variant] = compiled
        self.compiled += 1
        if self.store is not None and job.variant in plan.keys:
            keep_variant(self.store, plan.keys[job.variant], job.launcher, compiled, self.settings.options.keep)

    def _job(self, plan: _KernelPlan, variant: VariantInfo) -> CompileJob:
        folder = self.scratch / str(plan.arch)
        folder.mkdir(exist_ok=True)
        name = variant.table.name
        launcher, log = folder / f"{name}.ll", folder / f"{name}.log"
        return CompileJob(plan.arch, plan.info.name, name, launcher, log, plan.keys.get(name, ""))

    def _note_durations(self, made: Sequence[_KernelPlan]) -> None:
        if self.store is not None:
            took = {f"{p.arch} {name}": compiled.seconds for p in made for name, compiled in p.compiled.items()}
            recall.keep_durations(self.store, self.settings.kernels, took)

    # Linking and writing down.

    def _assemble(self, plans: Sequence[_KernelPlan], staged: Path) -> Manifest:
        self.progress.stage(f"linking for {', '.join(map(str, self.hosts))}")
        jobs = self._link_count()
        # A host waits for its libraries, and a library for its parts: each waits in a line of its own.
        with ThreadPoolExecutor(jobs) as parts, ThreadPoolExecutor(jobs) as libraries, ThreadPoolExecutor() as waiting:
            sources = list(libraries.map(self._kernel_source, plans))
            linked = waiting.map(
                lambda host: self._link_host(self._linker(host, parts), sources, staged, libraries), self.hosts
            )
            hosts = {host.name: record for host, record in zip(self.hosts, linked, strict=True)}
        self._write_details(plans, staged)
        self._write_contracts(plans, staged)
        self._write_kept(staged)
        kernels = _kernel_records(plans)
        write_headers(staged / "include", self.name, kernels, sorted((staged / "details").iterdir()))
        manifest = Manifest(
            name=self.name,
            complete=not self.problems,
            kernels=kernels,
            hosts=hosts,
            files=_file_records(staged),
            failures=tuple(_failure_record(problem) for problem in self.problems),
            toolchain=_toolchain(self.cuda),
            source=_source(self.settings.kernels),
            requires=self._requires(plans),
        )
        (staged / manifest_module.FILE_NAME).write_text(manifest.to_json())
        return manifest

    def _link_host(self, linker: Linker, sources: Sequence[_KernelSource], staged: Path, pool: Threads) -> HostRecord:
        host, plans = linker.host, [source.plan for source in sources]
        root = staged / "lib" / host.name
        builds: dict[str, list[KernelBuild]] = {}
        archives = StaticArchives(linker, self.name) if self.settings.archives else None
        paths = [f"{plan.arch}/{plan.info.name}.so" for plan in plans]
        linked = pool.map(lambda source, path: self._link_kernel(linker, source, root / path), sources, paths)
        for source, relative, objects in zip(sources, paths, linked, strict=True):
            plan = source.plan
            if archives is not None:
                archives.add_kernel(plan.info.name, plan.arch, objects, source.imports)
            builds.setdefault(plan.info.name, []).append(describe_file(root / relative, relative, plan.arch))
        support = root / f"lib{self.name}_cuda.so"
        linker.support(self.libraries[host], support, shared_cudart=self.settings.shared_cudart)
        entry = root / f"lib{self.name}.so"
        support_file = describe_file(support, support.name, plans[0].arch)
        linker.entry(self.name, _entry_functions(plans), builds, support_file, entry, NO_IDENTITY)
        if archives is not None:
            archives.write(
                _entry_functions(plans),
                builds,
                self.libraries[host],
                root,
                NO_IDENTITY,
                shared_cudart=self.settings.shared_cudart,
            )
        (root / layout.ENTRY_NOTE).write_text(layout.entry_note(self.name, entry.name, _file_record(entry)))
        cudart = f"libcudart.so.{self.cuda}" if self.settings.shared_cudart else "static"
        relative_to = f"lib/{host.name}/"
        return HostRecord(relative_to + entry.name, relative_to + support.name, host.glibc_text, cudart)

    def _find_libraries(self, host: Host) -> NvidiaLibraries:
        return find_libraries(host, self.cuda, self.settings.cache, self.settings.wheelhouse)

    def _linker(self, host: Host, pool: Threads) -> Linker:
        return make_linker(host, self.settings.cache, self.scratch, pool, self.store)

    def _kernel_source(self, plan: _KernelPlan) -> _KernelSource:
        facts = {name: parse_launcher(text, name) for name, text in self._launchers(plan)}
        compiled = {
            v.table.name: _compiled_variant(v, plan.compiled[v.table.name], facts[v.table.name].binaries)
            for v in plan.complete()
        }
        groups = [group for function in plan.info.functions if (group := _group(plan, function, compiled)) is not None]
        imports = frozenset(name for launcher in facts.values() for name in launcher.imports)
        return _KernelSource(plan, kernel_library_source(plan.info.name, plan.arch, groups, imports), imports)

    def _launchers(self, plan: _KernelPlan) -> Iterator[tuple[str, str]]:
        for variant in plan.complete():
            name = variant.table.name
            yield name, (self.scratch / str(plan.arch) / f"{name}.ll").read_text()

    def _link_kernel(self, linker: Linker, source: _KernelSource, output: Path) -> list[str]:
        """Link a kernel; returns its objects."""
        output.parent.mkdir(parents=True, exist_ok=True)
        # Variants of two architectures have the same names, and may be under way together.
        linker = replace(linker, work=linker.work / str(source.plan.arch))
        linker.work.mkdir(exist_ok=True)
        return linker.kernel(source.plan.info.name, source.tables, dict(self._launchers(source.plan)), output)

    def _write_details(self, plans: Sequence[_KernelPlan], staged: Path) -> None:
        (staged / "details").mkdir()
        for arch in {plan.arch: None for plan in plans}:
            variants = [_detail(plan, variant) for plan in plans if plan.arch == arch for variant in plan.complete()]
            (staged / details_name(arch)).write_text(details_text(arch, variants))

    def _write_contracts(self, plans: Sequence[_KernelPlan], staged: Path) -> None:
        sources = contract_sources({plan.info.name: plan.info.contract for plan in plans if plan.info.contract})
        for name, path in sources.items():
            (staged / CONTRACTS).mkdir(exist_ok=True)
            shutil.copyfile(path, staged / CONTRACTS / name)

    def _write_kept(self, staged: Path) -> None:
        """What ``--keep`` asked for, in a folder of the bundle that no loader looks at."""
        for kind in self.settings.options.keep:
            for path in sorted(self.scratch.glob(f"sm_*/*.{kind}")):
                folder = staged / "kept" / path.parent.name
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / path.name)

    def _requires(self, plans: Sequence[_KernelPlan]) -> dict[str, Any]:
        drivers = {str(plan.arch): lowest_driver(plan.arch, self.cuda) for plan in plans}
        return {"driver": dict(sorted(drivers.items())), "tvm_ffi": LOWEST_TVM_FFI}


LINK_BYTES = 400 << 20  # a compiler and a linker at once; seen: 60 to 150 MB each
LOWEST_TVM_FFI = "0.1.0"


def _default_name(kernels: str) -> str:
    return Path(kernels).stem if "/" in kernels or Path(kernels).exists() else kernels.rsplit(".", 1)[-1]


def _joined_hosts(asked: Sequence[Host], existing: Manifest) -> tuple[Host, ...]:
    """Every host of a bundle gets what is added, with the glibc that the bundle was built for."""
    hosts = {host.name: host for host in asked}
    for name, record in existing.hosts.items():
        major, minor = record.glibc.split(".")
        hosts.setdefault(name, Host.parse(name, (int(major), int(minor))))
    return tuple(hosts.values())


def make_linker(host: Host, cache: Path, work: Path, pool: Threads, store: Store | None) -> Linker:
    """A linker for a host, with a folder of its own below ``work``."""
    import tvm_ffi.libinfo

    folder = Path(tempfile.mkdtemp(prefix=f"link-{host.name}-", dir=work))
    include = Path(tvm_ffi.libinfo.find_include_path())
    zig = Zig.find(cache / "zig")
    if store is not None:
        return CachingLinker(zig, host, folder, include, pool, store)
    return Linker(zig, host, folder, include, pool)


def check_verified(problems: Sequence[str]) -> None:
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise BuildError(f"the bundle does not pass its own verification:\n{listed}")


def _check_group(plan: _KernelPlan, function: str) -> None:
    tables = [variant.table for variant in plan.variants if variant.table.function == function]
    slots = len(plan.info.parameters) + len({path for table in tables for path in table.paths})
    if slots > MAX_ARGUMENTS:
        raise DeclarationError(
            f"{plan.info.origin}: {function} has {slots} arguments, tuples' elements included; {MAX_ARGUMENTS} is the limit"
        )
    try:
        lost = unreachable(decide(tables), tables)
    except DeclarationError as error:
        raise DeclarationError(f"{plan.info.origin}: {function}: {error.message}", hint=error.hint) from None
    if lost:
        raise DeclarationError(
            f"{plan.info.origin}: {function} for {plan.arch}: {', '.join(lost)} can never be chosen, since variants declared "
            "earlier take everything it takes",
            hint="declare the more special variant first, or tell them apart by a guard",
        )


def _group(plan: _KernelPlan, function: str, compiled: Mapping[str, CompiledVariant]) -> Group | None:
    variants = [compiled[v.table.name] for v in plan.complete() if v.table.function == function]
    if not variants:
        return None
    return Group(function, len(plan.info.parameters), tuple(variants), decide([variant.table for variant in variants]))


def _compiled_variant(variant: VariantInfo, compiled: Compiled, binaries: int) -> CompiledVariant:
    launch = compiled.launches[0]
    return CompiledVariant(
        table=variant.table,
        symbol=symbol_prefix(variant.table.name),
        binaries=binaries,
        block=launch.block or (1, 1, 1),
        cluster=launch.cluster or (1, 1, 1),
        dynamic_shared_memory=launch.dynamic_shared_memory or 0,
    )


def _entry_functions(plans: Sequence[_KernelPlan]) -> list[EntryFunction]:
    functions: dict[str, EntryFunction] = {}
    for plan in plans:
        names = ", ".join(parameter.name for parameter in plan.info.parameters)
        for variant in plan.complete():
            function = variant.table.function
            functions[function] = EntryFunction(
                function,
                plan.info.name,
                f"{function}({names})",
                len(plan.info.parameters),
                variant.table.uses_tensors,
                plan.info.doc,
            )
    return [functions[name] for name in sorted(functions)]


def _kernel_records(plans: Sequence[_KernelPlan]) -> dict[str, KernelRecord]:
    records: dict[str, KernelRecord] = {}
    for name in sorted({plan.info.name for plan in plans}):
        own = [plan for plan in plans if plan.info.name == name]
        info = own[0].info
        built = {variant.table.function for plan in own for variant in plan.complete()}
        records[name] = KernelRecord(
            name=name,
            doc=info.doc,
            parameters=info.parameters,
            choices=info.choices,
            functions=tuple(function for function in info.functions if function in built),
            archs=tuple(sorted(plan.arch for plan in own)),
            variants=sum(len(plan.complete()) for plan in own),
        )
    return records


def _detail(plan: _KernelPlan, variant: VariantInfo) -> dict[str, Any]:
    compiled = plan.compiled[variant.table.name]
    return {
        "name": variant.table.name,
        "kernel": plan.info.name,
        "function": variant.table.function,
        "point": dict(variant.point),
        "symbol": f"__tvm_ffi_{variant.table.name}",
        "cubin_sha256": list(compiled.cubin_sha256),
        "cubin_bytes": compiled.cubin_bytes,
        "launches": encode(compiled.launches),
        "requirements": [_requirement_text(item) for item in encode(variant.table.requirements)],
        "uses_tensors": variant.table.uses_tensors,
        "verified_on": [],
    }


def _requirement_text(requirement: Mapping[str, Any]) -> dict[str, Any]:
    subject = requirement["subject"]
    return {
        "of": subject["label"],
        "is": subject["operation"],
        "low": requirement["low"],
        "high": requirement["high"],
        "parameter": subject["parameter"],
    }


def _file_records(staged: Path) -> dict[str, FileRecord]:
    records = {}
    for path in sorted(path for path in staged.rglob("*") if path.is_file()):
        records[path.relative_to(staged).as_posix()] = _file_record(path)
    return records


def _file_record(path: Path) -> FileRecord:
    return FileRecord(sha256_of(path), path.stat().st_size)


def _failure_record(problem: Problem) -> dict[str, str]:
    return {"kernel": problem.kernel, "arch": problem.arch, "variant": problem.variant, "message": problem.message}


def _toolchain(cuda: int) -> dict[str, str]:
    names = [
        d.metadata["Name"]
        for d in importlib.metadata.distributions()
        if (d.metadata["Name"] or "").startswith("nvidia-cutlass-dsl")
    ]
    wanted = sorted({*names, *distributions(cuda), "cute-aot", "apache-tvm-ffi", "ziglang"})
    versions = {name: version for name in wanted if (version := _version(name)) is not None}
    return {**versions, "cuda": str(cuda), "python": f"{sys.version_info.major}.{sys.version_info.minor}"}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _source(kernels: str) -> dict[str, str]:
    """The commit the kernels came from, where they are under version control."""
    path = Path(kernels)
    if not path.exists():
        return {}  # an importable module: what is checked out here says nothing of it
    folder = path if path.is_dir() else path.parent
    try:
        result = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True)
    except OSError:
        return {}
    return {"commit": result.stdout.strip()} if result.returncode == 0 else {}
