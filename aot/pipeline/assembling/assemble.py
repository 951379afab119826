"""Assembling a bundle out of contributions: one way for building, growing, merging and pruning.

Kernel libraries and all else that exists go over byte for byte. What says which kernels there are is written
here: the entry libraries and their notes, the static archives, the headers, the details, the SBOM, the manifest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from aot_runtime.description.kernel_records import KernelRecord

from ...bundle import layout
from ...bundle.description import bounded_failures, write_description
from ...bundle.details import details_text
from ...bundle.headers import write_headers
from ...bundle.layout import details_name, library_path, torch_library_path
from ...bundle.manifest import Manifest
from ...bundle.operators import operators
from ...bundle.sbom import linked_files, sbom_text
from ...bundle.tables.tuning import TunedDevice, TunedKernel, Tuning, tuning_name, tuning_text
from ...bundle.types import with_types
from ...hosts import Host
from ...link.libraries import EntryFunction, KernelBuild, Linker
from ...link.static import StaticArchives
from ...link.torch_library import torch_source
from ...link.tuning import EntrySet, EntryTable
from .compatibility import check_fit
from .contributions import ArchivedObjects, BuiltKernel, Contribution, File, HostCode, HostSupport, LinkedObjects
from .provenance import joined

__all__ = ["LinkerFor", "assemble"]

LinkerFor = Callable[[Host], Linker]


def assemble(contributions: Sequence[Contribution], staged: Path, linker_for: LinkerFor) -> Manifest:
    """Write a bundle of all that is contributed into an empty directory."""
    check_fit(contributions)
    contents = _joined(contributions)
    for path, file in contents.files().items():
        _take(file, staged / path, copy=path in contents.contracts)
    manifest = _description(contents)
    with ThreadPoolExecutor(max_workers=len(contents.hosts)) as pool:
        list(pool.map(lambda host: _write_host(contents, host, linker_for, staged, manifest), contents.hosts))
    _write_details(contents, staged)
    _write_tunings(contents, staged)
    write_headers(staged / "include", contents.name, manifest.kernels, sorted((staged / "details").iterdir()))
    files = linked_files(contents.provenance)
    (staged / layout.SBOM).write_text(sbom_text(contents.name, contents.toolchain, manifest.hosts, files))
    # Files that were taken were compared with their digests when they were.
    known = {path: file.record for path, file in contents.files().items()}
    return write_description(staged, manifest, known)


@dataclass(frozen=True)
class _Contents:
    """What a bundle will hold: contributions that fit together, as one."""

    name: str
    kernels: tuple[BuiltKernel, ...]  # by architecture, then by name: the order in which a bundle is built at once
    hosts: Mapping[str, HostSupport]
    contracts: Mapping[str, File]
    toolchain: Mapping[str, str]
    requires: Mapping[str, Any]
    provenance: tuple[Mapping[str, Any], ...]
    failures: tuple[Mapping[str, str], ...]
    tunings: tuple[Tuning, ...] = ()

    def files(self) -> dict[str, File]:
        """Everything that goes over byte for byte, by path in the bundle."""
        files: dict[str, File] = {}
        for name, host in self.hosts.items():
            for kernel in self.kernels:
                files[library_path(name, kernel.arch, kernel.name)] = kernel.code[name].library
            files[host.record.support] = host.library
            files.update(host.archives)
        for kernel in self.kernels:
            files.update(kernel.kept)
        return {**files, **self.contracts}


def _joined(contributions: Sequence[Contribution]) -> _Contents:
    given: dict[tuple[Any, str], list[BuiltKernel]] = {}
    for contribution in contributions:
        for (name, arch), kernel in contribution.kernels.items():
            given.setdefault((arch, name), []).append(kernel)
    last = contributions[-1]
    drivers = {arch: d for one in contributions for arch, d in one.requires.get("driver", {}).items()}
    used = {str(arch) for arch, _ in given}
    hosts = {host: support for one in contributions for host, support in one.hosts.items()}
    return _Contents(
        name=last.name,
        kernels=tuple(_one_kernel(given[key]) for key in sorted(given)),
        hosts=dict(sorted(hosts.items())),
        contracts={path: file for one in contributions for path, file in one.contracts.items()},
        toolchain=last.toolchain,
        requires={**last.requires, "driver": {arch: drivers[arch] for arch in sorted(drivers) if arch in used}},
        provenance=joined(one.provenance for one in contributions if one.kernels),
        failures=tuple(
            {json.dumps(dict(f), sort_keys=True): f for one in contributions for f in one.failures}.values()
        ),
        tunings=_tunings(contributions),
    )


def _tunings(contributions: Sequence[Contribution]) -> tuple[Tuning, ...]:
    """One for each device; of two tables of one kernel the last counts."""
    tables: dict[str, dict[Any, TunedKernel]] = {}
    devices: dict[str, TunedDevice] = {}
    for tuning in (tuning for one in contributions for tuning in one.tunings):
        name = str(tuning.device)
        tables.setdefault(name, {}).update({kernel.pair: kernel for kernel in tuning.kernels})
        if name not in devices or tuning.device.bandwidth:  # which older tables do not tell
            devices[name] = tuning.device
    return tuple(
        Tuning(devices[name], tuple(kernels[pair] for pair in sorted(kernels)))
        for name, kernels in sorted(tables.items())
        if kernels
    )


def _one_kernel(given: Sequence[BuiltKernel]) -> BuiltKernel:
    """A kernel that several contributions give, perhaps for different hosts and verified on different GPUs."""
    variants = []
    for same in zip(*(kernel.variants for kernel in given), strict=True):
        verified = sorted({run for variant in same for run in variant.verified_on})
        variants.append(replace(same[-1], verified_on=tuple(verified)))
    code: dict[str, HostCode] = {}
    for kernel in given:
        code.update(kernel.code)
    return replace(given[-1], variants=tuple(variants), code=code)


def _take(file: File, target: Path, *, copy: bool) -> None:
    """Link a file into the bundle, or copy it if that cannot be.

    What the author may edit is copied: editors that save in place would change the bundle with it.
    """
    source = file.checked()
    target.parent.mkdir(parents=True, exist_ok=True)
    if not copy:
        try:
            os.link(source, target)
            return
        except OSError:  # another file system, or one without links
            pass
    shutil.copyfile(source, target)
    shutil.copymode(source, target)


# What says which kernels there are.


def _description(contents: _Contents) -> Manifest:
    """All that the bundle says of itself but for the digests of its files."""
    return Manifest(
        name=contents.name,
        complete=not contents.failures,
        kernels={name: _kernel_record(contents, name) for name in sorted({k.name for k in contents.kernels})},
        hosts={name: host.record for name, host in contents.hosts.items()},
        failures=bounded_failures(contents.failures),
        toolchain=contents.toolchain,
        requires=contents.requires,
        provenance=contents.provenance,
    )


def _kernel_record(contents: _Contents, name: str) -> KernelRecord:
    own = [kernel for kernel in contents.kernels if kernel.name == name]
    built = {variant.function for kernel in own for variant in kernel.variants}
    functions = dict.fromkeys(f for kernel in own for f in kernel.signature.functions if f in built)
    signature = with_types(own[-1].signature, (variant for kernel in own for variant in kernel.variants))
    return signature.replace(
        captured=_captured(own),
        functions=tuple(functions),
        archs=tuple(kernel.arch for kernel in own),
        variants=sum(len(kernel.variants) for kernel in own),
    )


def _captured(own: Sequence[BuiltKernel]) -> dict[str, Any] | None:
    """The call that a kernel answers, with what tracing read for each of its architectures."""
    calls = [kernel.signature.captured for kernel in own]
    if calls[-1] is None:
        return None
    read = {arch: one for call in calls if call is not None for arch, one in call["reads"].items()}
    return {**calls[-1], "reads": {str(kernel.arch): read[str(kernel.arch)] for kernel in own}}


def _entry_functions(contents: _Contents) -> list[EntryFunction]:
    functions: dict[str, EntryFunction] = {}
    for kernel in contents.kernels:
        parameters = [parameter.name for parameter in kernel.signature.parameters]
        workspaces = tuple(at for at, one in enumerate(kernel.signature.parameters) if one.workspace is not None)
        for variant in kernel.variants:
            name = variant.function
            signature = f"{name}({', '.join(parameters)})"
            functions[name] = EntryFunction(
                name,
                kernel.name,
                signature,
                len(parameters),
                variant.uses_tensors,
                kernel.signature.doc,
                _entry_tables(contents.tunings, kernel.name, name),
                workspaces,
            )
    return [functions[name] for name in sorted(functions)]


def _entry_tables(tunings: Sequence[Tuning], kernel: str, function: str) -> tuple[EntryTable, ...]:
    """The tables of a public function of a kernel, for all devices and architectures."""
    found = []
    for tuning in tunings:
        for table in (table for table in tuning.kernels if table.kernel == kernel):
            own = [one for one in table.sets if one.function == function]
            sets = tuple(EntrySet(one.variants, one.bins, one.cells) for one in own)
            if sets:
                one = tuning.device
                device = (one.name, one.multiprocessors, one.capability, one.bandwidth)
                found.append(EntryTable(*device, table.measured_on, table.arch, sets))
    return tuple(found)


def _write_host(contents: _Contents, host: str, linker_for: LinkerFor, staged: Path, manifest: Manifest) -> None:
    """The entry library of a host, its note, the library for torch, and the archives with the bundle's own code."""
    support = contents.hosts[host]
    linker = linker_for(Host.of_record(host, support.record))
    builds: dict[str, list[KernelBuild]] = {}
    for kernel in contents.kernels:
        library = kernel.code[host].library.record
        driver = contents.requires.get("driver", {}).get(str(kernel.arch)) or ""
        build = KernelBuild(kernel.arch, f"{kernel.arch}/{kernel.name}.so", library.size, library.sha256, driver)
        builds.setdefault(kernel.name, []).append(build)
    functions = _entry_functions(contents)
    file = support.library.record
    opened_first = KernelBuild(
        contents.kernels[0].arch, PurePosixPath(support.record.support).name, file.size, file.sha256
    )
    entry, identity = staged / support.record.entry, manifest.identity(host)
    linker.entry(contents.name, functions, builds, opened_first, entry, identity)
    if offered := operators(manifest.kernels):
        source = torch_source(contents.name, offered)
        linker.torch(contents.name, source, staged / torch_library_path(host, contents.name))
    if support.archives:
        archives = StaticArchives(linker, contents.name)
        for kernel in contents.kernels:
            _add_objects(archives, kernel, kernel.code[host].objects)
        archives.write_code(functions, builds, entry.parent, identity)


def _add_objects(
    archives: StaticArchives, kernel: BuiltKernel, objects: LinkedObjects | ArchivedObjects | None
) -> None:
    assert objects is not None, f"{kernel.name} for {kernel.arch} has no objects"  # all have archives, or none
    if isinstance(objects, LinkedObjects):
        archives.add_kernel(kernel.name, kernel.arch, objects.files, objects.imports)
    else:
        archives.adopt_kernel(kernel.name, kernel.arch, objects.archive.checked().read_bytes(), objects.kernels)


def _write_details(contents: _Contents, staged: Path) -> None:
    (staged / "details").mkdir()
    for arch in dict.fromkeys(kernel.arch for kernel in contents.kernels):
        variants = [variant for kernel in contents.kernels if kernel.arch == arch for variant in kernel.variants]
        (staged / details_name(arch)).write_text(details_text(arch, variants))


def _write_tunings(contents: _Contents, staged: Path) -> None:
    for tuning in contents.tunings:
        path = staged / tuning_name(tuning.device)
        path.parent.mkdir(exist_ok=True)
        path.write_text(tuning_text(tuning))
