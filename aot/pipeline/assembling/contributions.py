"""What a bundle is assembled from: kernels with their files, freshly linked or out of a bundle that exists.

A contribution is data. It says where each file lies and what its digest must be; nothing is copied before all
contributions of a bundle are known to fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import KernelRecord
from aot_runtime.description.records import FileRecord, HostRecord

from ...bundle.contracts import contract_paths, shared_paths
from ...bundle.description import check_schema
from ...bundle.details import VariantDetails, read_details
from ...bundle.layout import archive_names, details_name, library_path
from ...bundle.manifest import Manifest
from ...bundle.split import absent_parts
from ...bundle.tables.tuning import TUNING, Tuning, read_tuning
from ...errors import BuildError
from ...files import sha256_of
from .provenance import only

__all__ = [
    "ArchivedObjects",
    "BuiltKernel",
    "Contribution",
    "File",
    "HostCode",
    "HostSupport",
    "LinkedObjects",
    "bundle_contribution",
    "not_settled",
    "remaining",
    "still_missing",
    "with_verified",
]


@dataclass(frozen=True)
class File:
    """A file that goes into a bundle byte for byte."""

    path: Path
    record: FileRecord  # what the file must be when it is taken

    @classmethod
    def at(cls, path: Path) -> File:
        return cls(path, FileRecord(sha256_of(path), path.stat().st_size))

    def checked(self) -> Path:
        """Where the file lies; a damaged file is refused."""
        path = self.path.resolve()
        if not path.is_file() or sha256_of(path) != self.record.sha256:
            raise BuildError(f"`{self.path}` is not what its manifest says", hint="rebuild that bundle")
        return path


@dataclass(frozen=True)
class LinkedObjects:
    """The objects of a kernel library that was linked just now, and what it imports from the support library."""

    files: tuple[str, ...]
    imports: frozenset[str]


@dataclass(frozen=True)
class ArchivedObjects:
    """The objects of a kernel in an archive that an earlier build wrote; ``kernels`` are all kernels in there."""

    archive: File
    kernels: Collection[str]


@dataclass(frozen=True)
class HostCode:
    """One kernel for one architecture, linked for one host."""

    library: File
    objects: LinkedObjects | ArchivedObjects | None  # for the archives of the bundle, if it has archives
    kept: Mapping[str, File] = field(default_factory=dict)  # by name: the objects that ``--keep`` asked for


@dataclass(frozen=True)
class BuiltKernel:
    """One kernel for one architecture."""

    signature: KernelRecord  # its ``archs`` and ``variants`` are those of the whole contribution
    arch: Arch
    variants: tuple[VariantDetails, ...]
    code: Mapping[str, HostCode]  # by host
    kept: Mapping[str, File]  # by path in the bundle: what ``--keep`` asked for

    @property
    def name(self) -> str:
        return self.signature.name


@dataclass(frozen=True)
class HostSupport:
    """What all kernels of a host share: NVIDIA's launch support and the CUDA runtime."""

    record: HostRecord
    library: File
    archives: Mapping[str, File]  # by path in the bundle; empty if the contribution has no archives


@dataclass(frozen=True)
class Contribution:
    """Everything that one build, or one bundle, gives to a bundle."""

    label: str  # how errors name it
    name: str
    kernels: Mapping[tuple[str, Arch], BuiltKernel]
    hosts: Mapping[str, HostSupport]
    contracts: Mapping[str, File]  # by path in the bundle
    toolchain: Mapping[str, str]
    requires: Mapping[str, Any]
    provenance: tuple[Mapping[str, Any], ...] = ()
    failures: tuple[Mapping[str, str], ...] = ()
    tunings: tuple[Tuning, ...] = ()  # at most one per device

    @property
    def has_archives(self) -> bool:
        return any(host.archives for host in self.hosts.values())


def bundle_contribution(
    bundle: Path, takes: Callable[[str, Arch], bool] = lambda kernel, arch: True, manifest: Manifest | None = None
) -> Contribution:
    """What a bundle gives: the kernels that ``takes`` accepts for an architecture, by default all of them."""
    manifest = manifest or Manifest.read(bundle)
    check_schema(bundle, manifest)
    pairs = [(k.name, arch) for k in manifest.kernels.values() for arch in k.archs if takes(k.name, arch)]
    archs = sorted({arch for _, arch in pairs})
    _check_installed(bundle, manifest, archs)
    details = _details(bundle, manifest, archs)
    for name, arch in pairs:
        if (name, arch) not in details:
            raise BuildError(f"`{bundle}`: {details_name(arch)} does not describe {name}", hint="rebuild that bundle")
    return Contribution(
        label=f"`{bundle}`",
        name=manifest.name,
        kernels={(name, arch): _kernel(bundle, manifest, arch, details[name, arch]) for name, arch in pairs},
        hosts={host: _support(bundle, manifest, host) for host in manifest.hosts},
        contracts=_contracts(bundle, manifest, {name for name, _ in pairs}),
        toolchain=manifest.toolchain,
        requires=manifest.requires,
        provenance=only(manifest.provenance, pairs),
        failures=tuple(failure for failure in manifest.failures if _is_taken(failure, takes)),
        tunings=_tunings(bundle, manifest, pairs),
    )


def _is_taken(failure: Mapping[str, str], takes: Callable[[str, Arch], bool]) -> bool:
    """Whether a failure is of a kernel that is taken. A file that could not be read may hold any kernel."""
    kernel, arch = _pair(failure)
    return not (kernel and arch) or takes(kernel, Arch.parse(arch))


def _pair(failure: Mapping[str, str]) -> tuple[str, str]:
    """The kernel and the architecture of a failure. Both are empty if a file could not be read."""
    return failure.get("kernel", ""), failure.get("arch", "")


def _check_installed(bundle: Path, manifest: Manifest, archs: Sequence[Arch]) -> None:
    """The architectures of a bundle that was split into distributions can be taken if these are installed."""
    absent = absent_parts(bundle, manifest)
    for arch in map(str, archs):
        if arch in absent:
            raise BuildError(
                f"`{bundle}` lacks its code for {arch}: that part is not installed",
                hint=f"`pip install {manifest.distributions[arch]}`",
            )


def _details(
    bundle: Path, manifest: Manifest, archs: Sequence[Arch]
) -> dict[tuple[str, Arch], tuple[VariantDetails, ...]]:
    found: dict[tuple[str, Arch], tuple[VariantDetails, ...]] = {}
    for arch in archs:
        variants = sorted(read_details(_file(bundle, manifest, details_name(arch)).checked()), key=attrgetter("kernel"))
        found.update({(kernel, arch): tuple(own) for kernel, own in groupby(variants, key=attrgetter("kernel"))})
    return found


def _kernel(bundle: Path, manifest: Manifest, arch: Arch, variants: tuple[VariantDetails, ...]) -> BuiltKernel:
    name = variants[0].kernel
    own = tuple(f"kept/{arch}/{variant.name}." for variant in variants)
    return BuiltKernel(
        signature=manifest.kernels[name],
        arch=arch,
        variants=variants,
        code={host: _code(bundle, manifest, host, name, arch) for host in manifest.hosts},
        kept={path: _file(bundle, manifest, path) for path in manifest.files if path.startswith(own)},
    )


def _code(bundle: Path, manifest: Manifest, host: str, kernel: str, arch: Arch) -> HostCode:
    library = _file(bundle, manifest, library_path(host, arch, kernel))
    archive = f"lib/{host}/lib{manifest.name}_{arch}.a"
    if archive not in manifest.files:
        return HostCode(library, None)
    return HostCode(library, ArchivedObjects(_file(bundle, manifest, archive), manifest.kernels))


def _support(bundle: Path, manifest: Manifest, host: str) -> HostSupport:
    record = manifest.hosts[host]
    shared = archive_names(manifest.name, (), cudart=record.cudart == "static")[1:]  # all but the bundle's own code
    archives = [path for name in shared if (path := f"lib/{host}/{name}") in manifest.files]
    files = {path: _file(bundle, manifest, path) for path in archives}
    # The entry library is linked again: what is said of the old one does not count.
    return HostSupport(record.replace(file=None), _file(bundle, manifest, record.support), files)


def _contracts(bundle: Path, manifest: Manifest, kernels: Set[str]) -> dict[str, File]:
    """The files that check these kernels, with the files that those share."""
    own = [path for kernel, path in contract_paths(manifest.files).items() if kernel in kernels]
    return {path: _file(bundle, manifest, path) for path in (*own, *shared_paths(manifest.files, own))}


def _tunings(bundle: Path, manifest: Manifest, pairs: Sequence[tuple[str, Arch]]) -> tuple[Tuning, ...]:
    """The measured tables of these kernels."""
    paths = [path for path in manifest.files if PurePosixPath(path).parent == PurePosixPath(TUNING)]
    tunings = [read_tuning(_file(bundle, manifest, path).checked()).only(pairs) for path in paths]
    return tuple(tuning for tuning in tunings if tuning.kernels)


def _file(bundle: Path, manifest: Manifest, path: str) -> File:
    if path not in manifest.files:
        raise BuildError(f"`{bundle}`: its manifest does not name {path}", hint="rebuild that bundle")
    return File(bundle / path, manifest.files[path])


def remaining(old: Contribution, new: Contribution) -> Contribution:
    """What stays of a bundle when a build adds to it: all that the build does not give itself."""
    kernels = {pair: kernel for pair, kernel in old.kernels.items() if pair not in new.kernels}
    rebuilt = {name for name, _ in new.kernels}
    own = [path for kernel, path in contract_paths(old.contracts).items() if kernel not in rebuilt]
    contracts = {path: old.contracts[path] for path in (*own, *shared_paths(old.contracts, own))}
    left = replace(
        old,
        kernels=kernels,
        contracts={path: file for path, file in contracts.items() if path not in new.contracts},
        provenance=only(old.provenance, kernels),
        failures=(),  # what is still missing, the build says with its own failures: see ``still_missing``
        tunings=tuple(tuning.only(kernels) for tuning in old.tunings),
    )
    return left if new.has_archives else _without_archives(left)


def with_verified(new: Contribution, bundle: Path, manifest: Manifest) -> Contribution:
    """What was built, with the GPUs that ran the very same code when the bundle that it replaces was checked."""
    kernels = dict(new.kernels)
    archs = [arch for arch in manifest.archs if _is_whole(bundle, manifest, arch)]
    for (name, arch), old in _details(bundle, manifest, archs).items():
        built = new.kernels.get((name, arch))
        if built is not None and _is_same_code(built, manifest):
            runs = {variant.name: variant.verified_on for variant in old}
            variants = [replace(one, verified_on=runs.get(one.name, ())) for one in built.variants]
            kernels[name, arch] = replace(built, variants=tuple(variants))
    return replace(new, kernels=kernels)


def _is_whole(bundle: Path, manifest: Manifest, arch: Arch) -> bool:
    """Whether the details of an architecture are as the manifest says: what was altered is no proof of anything."""
    path, record = bundle / details_name(arch), manifest.files.get(details_name(arch))
    return record is not None and path.is_file() and sha256_of(path) == record.sha256


def _is_same_code(built: BuiltKernel, manifest: Manifest) -> bool:
    paths = {library_path(host, built.arch, built.name): code.library.record for host, code in built.code.items()}
    shared = [path for path in paths if path in manifest.files]
    return bool(shared) and all(manifest.files[path] == paths[path] for path in shared)


def still_missing(old: Manifest, new: Contribution, *, is_all: bool) -> tuple[Mapping[str, str], ...]:
    """The failures of a bundle that a build has left as they were, because it did not try those kernels again.

    ``is_all``: the build selected every kernel of its source. A file that could not be read may hold any kernel for
    any architecture. It counts as missing until such a build replaces everything that the bundle holds.
    """
    tried = {(kernel, str(arch)) for kernel, arch in new.kernels} | {_pair(failure) for failure in new.failures}
    held = {(kernel.name, str(arch)) for kernel in old.kernels.values() for arch in kernel.archs}
    is_replaced = is_all and held <= tried
    return tuple(f for f in old.failures if (_pair(f) not in tried if _pair(f)[0] else not is_replaced))


def not_settled(contributions: Sequence[Contribution]) -> list[Contribution]:
    """Bundles that are joined, without the failures of kernels that another of them holds whole."""
    failed = [{_pair(failure) for failure in one.failures} for one in contributions]
    whole = {
        (kernel, str(arch))
        for one, own in zip(contributions, failed, strict=True)
        for kernel, arch in one.kernels
        if (kernel, str(arch)) not in own
    }
    return [replace(one, failures=tuple(f for f in one.failures if _pair(f) not in whole)) for one in contributions]


def _without_archives(contribution: Contribution) -> Contribution:
    """A build without archives removes those of the bundle that it adds to, which would lack its kernels."""
    kernels = {
        pair: replace(kernel, code={host: replace(code, objects=None) for host, code in kernel.code.items()})
        for pair, kernel in contribution.kernels.items()
    }
    hosts = {name: replace(host, archives={}) for name, host in contribution.hosts.items()}
    return replace(contribution, kernels=kernels, hosts=hosts)
