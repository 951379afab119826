"""From compiled variants to a contribution: kernel libraries and the support library, linked for each host."""

from __future__ import annotations

import hashlib
import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as Threads
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aot_runtime.description.kernel_records import KernelRecord
from aot_runtime.description.records import HostRecord

from ...bundle.contracts import contract_sources
from ...bundle.details import LaunchDetails, RequirementDetails, VariantDetails, WorkDetails
from ...bundle.layout import CONTRACTS, library_path
from ...cache.links import CachingLinker
from ...cache.store import Store
from ...compile.launcher import parse_launcher, symbol_prefix
from ...compile.messages import KernelInfo
from ...errors import AotError, Failure
from ...hosts import Host
from ...link.libraries import Linker
from ...link.nvidia import NvidiaLibraries, linked_digests
from ...link.static import StaticArchives
from ...link.zig import Zig
from ...selection.decision import decide, decide_plainly
from ...selection.subjects import Requirement
from ...selection.tables import CompiledVariant, Group, kernel_library_source, variant_symbol
from ...targets import lowest_driver
from ...versions import LOWEST_TVM_FFI, TVM_FFI_ABI, tvm_ffi_headers
from ..executing.compiling import Compilation, CompiledKernel, Launcher
from ..settings import Settings
from ..sources import toolchain
from ..workspace import Workspace
from .assemble import LinkerFor
from .contributions import BuiltKernel, Contribution, File, HostCode, HostSupport, LinkedObjects
from .provenance import build_record

__all__ = ["Linkers", "link_kernels", "linkers"]


@contextmanager
def linkers(tools: Path, work: Path, jobs: int, store: Store | None) -> Iterator[Linkers]:
    """Makes linkers for hosts, each with a folder of its own below ``work``; all share ``jobs`` processes."""
    with ThreadPoolExecutor(jobs) as pool:
        yield Linkers(Zig.find(tools / "zig"), tvm_ffi_headers(), work, pool, store)


@dataclass(frozen=True)
class Linkers:
    """What the linkers of all hosts have in common."""

    zig: Zig
    include: Path
    work: Path
    pool: Threads
    store: Store | None

    def __call__(self, host: Host) -> Linker:
        folder = Path(tempfile.mkdtemp(prefix=f"link-{host.name}-", dir=self.work))
        if self.store is not None:
            return CachingLinker(self.zig, host, folder, self.include, self.pool, self.store)
        return Linker(self.zig, host, folder, self.include, self.pool)

    def prepare(self, settings: Settings) -> None:
        """In a first build, do what linking any bundle needs while kernels are read: one core has little to do then.

        zig builds what it links into every library, and the C sources of entry libraries and of libraries for torch are
        compiled.
        """
        if settings.jobs == 1 or settings.memory is not None or not self.zig.is_new:
            return
        threading.Thread(target=self._prepare, args=(settings.hosts,), daemon=True).start()

    def _prepare(self, hosts: Sequence[Host]) -> None:
        # What fails here fails again when the bundle is linked, and is reported then.
        with ThreadPoolExecutor(1) as alone, suppress(AotError, OSError):
            for host in hosts:
                replace(self, pool=alone)(host).prepare()


@dataclass(frozen=True)
class _Source:
    """What a kernel library is linked from beside its launchers: the same for every host."""

    kernel: CompiledKernel
    runs: Mapping[str, str]  # variant -> the variant whose launcher it runs
    tables: str
    imports: frozenset[str]  # from the support library

    @property
    def launchers(self) -> list[Launcher]:
        """Those that are linked."""
        return [one for one in self.kernel.launchers if self.runs[one.name] == one.name]


@dataclass(frozen=True)
class _Linked:
    """What was linked for one host."""

    support: HostSupport
    code: tuple[HostCode, ...]  # in the order of the kernels


def link_kernels(
    compilation: Compilation, libraries: Mapping[Host, NvidiaLibraries], workspace: Workspace, linker_for: LinkerFor
) -> Contribution:
    """Link what was compiled, for the hosts of ``libraries``, into a folder that is laid out like a bundle."""
    settings, kernels = workspace.settings, compilation.kernels
    numbers, total = itertools.count(1), len(kernels) * len(libraries)
    link = _Link(
        workspace.name,
        compilation.cuda,
        workspace.scratch / "linked",
        settings,
        lambda label: workspace.progress.linked(label, next(numbers), total),
    )
    # A host waits for its libraries, and a library for its objects: each waits in a line of its own.
    with ThreadPoolExecutor(settings.link_count) as pool, ThreadPoolExecutor() as waiting:
        sources = list(pool.map(lambda kernel: _source(kernel, share="o" not in settings.options.keep), kernels))
        linked = list(waiting.map(lambda host: link.host(linker_for(host), libraries[host], sources, pool), libraries))
    hosts = {host.name: one for host, one in zip(libraries, linked, strict=True)}
    drivers = {str(kernel.arch): lowest_driver(kernel.arch, compilation.cuda) for kernel in kernels}
    return Contribution(
        label="this build",
        name=workspace.name,
        kernels={
            (source.kernel.info.name, source.kernel.arch): _built(
                source, {name: one.code[number] for name, one in hosts.items()}
            )
            for number, source in enumerate(sources)
        },
        hosts={name: one.support for name, one in hosts.items()},
        contracts=_contracts(kernels),
        toolchain=toolchain(compilation.cuda),
        requires={
            "driver": dict(sorted(drivers.items())),
            "tvm_ffi": LOWEST_TVM_FFI,
            "tvm_ffi_abi": TVM_FFI_ABI,
        },
        provenance=(
            build_record(
                settings,
                workspace.source,
                linked_digests(libraries, shared_cudart=settings.shared_cudart),
                [(one.info.name, one.arch, one.sources) for one in kernels],
            ),
        ),
        failures=tuple(_failure(failure) for failure in compilation.failures),
    )


def _source(kernel: CompiledKernel, *, share: bool) -> _Source:
    texts = {one.name: one.path.read_text() for one in kernel.launchers}
    runs = _shared(texts) if share else {name: name for name in texts}
    facts = {name: parse_launcher(texts[name], name) for name in texts if runs[name] == name}
    compiled = [_variant(one, runs[one.name], facts[runs[one.name]].binaries) for one in kernel.launchers]
    groups = [group for function in kernel.info.functions if (group := _group(kernel, function, compiled)) is not None]
    imports = frozenset(name for launcher in facts.values() for name in launcher.imports)
    return _Source(kernel, runs, kernel_library_source(kernel.info.name, kernel.arch, groups, imports), imports)


def _shared(texts: Mapping[str, str]) -> dict[str, str]:
    """For each variant, the first one whose launcher is the same but for the name."""
    first: dict[bytes, str] = {}
    return {name: first.setdefault(_without_name(text, name), name) for name, text in texts.items()}


def _without_name(text: str, name: str) -> bytes:
    for symbol in (symbol_prefix(name), variant_symbol(name)):
        text = text.replace(symbol, "")
    return hashlib.sha256(text.encode()).digest()


def _variant(launcher: Launcher, runs: str, binaries: int) -> CompiledVariant:
    launch = launcher.compiled.launches[0]
    return CompiledVariant(
        table=launcher.variant.table,
        launcher=runs,
        symbol=symbol_prefix(runs),
        binaries=binaries,
        block=launch.block or (1, 1, 1),
        cluster=launch.cluster or (1, 1, 1),
        dynamic_shared_memory=launch.dynamic_shared_memory or 0,
    )


def _group(kernel: CompiledKernel, function: str, compiled: Sequence[CompiledVariant]) -> Group | None:
    variants = tuple(variant for variant in compiled if variant.table.function == function)
    if not variants:
        return None
    tables = [variant.table for variant in variants]
    tree = decide(tables)
    plain = decide_plainly(tables) if tables[0].tuned_by else tree
    return Group(function, len(kernel.info.parameters), variants, tree, plain)


@dataclass(frozen=True)
class _Link:
    """Links the libraries of a bundle below a folder, one host at a time."""

    bundle: str
    cuda: int
    folder: Path
    settings: Settings
    linked: Callable[[str], None]  # hears of each kernel library

    def host(self, linker: Linker, libraries: NvidiaLibraries, sources: Sequence[_Source], pool: Threads) -> _Linked:
        (self.folder / "lib" / linker.host.name).mkdir(parents=True)
        code = pool.map(lambda source: self.kernel(linker, source), sources)
        return _Linked(self.support(linker, libraries), tuple(code))

    def kernel(self, linker: Linker, source: _Source) -> HostCode:
        name, arch = source.kernel.info.name, source.kernel.arch
        output = self.folder / library_path(linker.host.name, arch, name)
        output.parent.mkdir(exist_ok=True)
        # Variants of two architectures have the same names, and may be under way together.
        linker = replace(linker, work=linker.work / str(arch))
        linker.work.mkdir(exist_ok=True)
        launchers = {one.name: one.path.read_text() for one in source.launchers}
        objects = linker.kernel(name, source.tables, launchers, output)
        self.linked(f"{arch} {name} for {linker.host.cpu}")
        kept = LinkedObjects(tuple(objects), source.imports) if self.settings.archives else None
        names = source.kernel.launchers if "o" in self.settings.options.keep else ()
        own = {f"{one.name}.{linker.host.name}.o": File.at(linker.work / f"{one.name}.o") for one in names}
        return HostCode(File.at(output), kept, own)

    def support(self, linker: Linker, libraries: NvidiaLibraries) -> HostSupport:
        host, shared = linker.host, self.settings.shared_cudart
        record = HostRecord(
            entry=f"lib/{host.name}/lib{self.bundle}.so",
            support=f"lib/{host.name}/lib{self.bundle}_cuda.so",
            glibc=host.glibc_text,
            cudart=f"libcudart.so.{self.cuda}" if shared else "static",
        )
        library = self.folder / record.support
        linker.support(libraries, library, shared_cudart=shared)
        written: list[Path] = []
        if self.settings.archives:
            written = StaticArchives(linker, self.bundle).write_support(libraries, library.parent, shared_cudart=shared)
        archives = {path.relative_to(self.folder).as_posix(): File.at(path) for path in written}
        return HostSupport(record, File.at(library), archives)


def _built(source: _Source, code: Mapping[str, HostCode]) -> BuiltKernel:
    kernel, info = source.kernel, source.kernel.info
    kept = {path.name: File.at(path) for path in kernel.kept}
    for one in code.values():
        kept.update(one.kept)
    return BuiltKernel(
        signature=KernelRecord(
            info.name,
            info.doc,
            info.parameters,
            info.choices,
            info.functions,
            (kernel.arch,),
            0,
            info.backward,
            _captured(kernel),
        ),
        arch=kernel.arch,
        variants=tuple(_detail(info, launcher, source.runs[launcher.name]) for launcher in kernel.launchers),
        code=code,
        kept={f"kept/{kernel.arch}/{name}": file for name, file in kept.items()},
    )


def _captured(kernel: CompiledKernel) -> dict[str, Any] | None:
    """The call that a kernel answers, with what tracing read for this architecture."""
    if kernel.info.captured is None:
        return None
    (launcher,) = kernel.launchers  # a call has one variant
    return {**kernel.info.captured, "reads": {str(kernel.arch): launcher.compiled.reads}}


def _detail(kernel: KernelInfo, launcher: Launcher, runs: str) -> VariantDetails:
    table, compiled = launcher.variant.table, launcher.compiled
    return VariantDetails(
        name=table.name,
        kernel=kernel.name,
        function=table.function,
        point=launcher.variant.point,
        symbol=variant_symbol(runs),
        cubin_sha256=compiled.cubin_sha256,
        cubin_bytes=compiled.cubin_bytes,
        launches=tuple(LaunchDetails(**vars(launch)) for launch in compiled.launches),
        requirements=tuple(_requirement(item) for item in table.requirements),
        uses_tensors=table.uses_tensors,
        tuned_by={extent.name: extent.of_call for extent in table.tuned_by},
        written_for=launcher.variant.written_for,
        work=None if table.work is None else WorkDetails(**vars(table.work)),
    )


def _requirement(item: Requirement) -> RequirementDetails:
    subject = item.subject
    return RequirementDetails(subject.label, subject.operation, item.low, item.high, subject.parameter)


def _contracts(kernels: Sequence[CompiledKernel]) -> dict[str, File]:
    sources = contract_sources({kernel.info.name: kernel.info.contract for kernel in kernels if kernel.info.contract})
    return {f"{CONTRACTS}/{name}": File.at(path) for name, path in sources.items()}


def _failure(failure: Failure) -> dict[str, str]:
    return {"kernel": failure.kernel, "arch": failure.arch, "variant": failure.variant, "message": failure.message}
