"""Checking a bundle against its own manifest, on any machine, without executing any of it.

Each check returns sentences; no sentence means that it holds.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from aot_runtime.arch import Arch
from aot_runtime.description.records import HostRecord
from aot_runtime.errors import SignatureError

from ...binary.cubin import cubins_in_library
from ...binary.elf import ElfError, SharedLibrary, object_bytes, read_shared_library
from ...binary.policy import CONSTRUCTORS, PolicyError, load_policy, violations
from ...errors import BuildError
from ...hosts import parse_glibc
from .. import layout
from ..details import VariantDetails
from ..layout import IDENTITY, SUPPORT_EXPORTS, TORCH_IDENTITY, entry_exports, torch_exports, torch_library_path
from ..manifest import Manifest
from ..operators import operators, operators_digest
from ..signature import signature_check, signature_problems
from ..split import absent_parts
from .agreement import AllDetails, header_problems, read_all_details, sbom_problems
from .archives import archive_problems
from .compiled import compiled_problems
from .integrity import damaged_files, description_problems

__all__ = ["missing_kernels", "refuse_unsound", "verify"]


def verify(bundle: Path, keys: Sequence[bytes] = (), *, any_signature: bool = False) -> list[str]:
    """Every way in which the bundle is not what its manifest says; an empty list for a sound one.

    If keys are given, the manifest must be signed by one of them. ``any_signature``: what is in the place of the signature
    does not matter, as it will be replaced.
    """
    try:
        manifest = Manifest.read(bundle, signature_check(bundle, keys))
    except SignatureError as error:
        return [error.message]  # nothing that such a manifest says counts
    problems = description_problems(bundle, manifest)
    if not problems:
        problems = [*([] if any_signature else signature_problems(bundle)), *damaged_files(bundle, manifest)]
    if problems:
        return problems  # what follows reads those files
    details, problems = read_all_details(bundle, manifest)
    if not problems and not absent_parts(bundle, manifest):
        problems += header_problems(manifest, details)
    problems += sbom_problems(manifest)
    for host, record in manifest.hosts.items():
        try:
            problems += _Host(bundle, manifest, host, record, details).check()
        except PolicyError as error:
            problems.append(f"host {host}: {error.message}")
    return problems


def refuse_unsound(bundle: Path, outcome: str, *, any_signature: bool = False) -> None:
    """Raise :class:`BuildError` for a bundle in which :func:`verify` finds anything; ``outcome`` says what was not done."""
    if problems := verify(bundle, any_signature=any_signature):
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise BuildError(f"`{bundle}` is not sound, and {outcome}:\n{listed}", hint="rebuild it")


def missing_kernels(bundle: Path) -> list[str]:
    """What failed to build: a bundle without it may be sound as far as it goes, and is not complete."""
    manifest = Manifest.read(bundle)
    if manifest.complete:
        return []
    failed = [
        f"incomplete: {failure.get('variant') or failure.get('kernel') or 'a file'} failed to build for "
        f"{failure.get('arch') or 'any architecture'}: {failure.get('message', '')}"
        for failure in manifest.failures
    ]
    return failed or ["incomplete, without a failure that would say why"]


class _Host:
    """The libraries of one host."""

    def __init__(self, bundle: Path, manifest: Manifest, host: str, record: HostRecord, details: AllDetails) -> None:
        self.bundle, self.manifest, self.host, self.record = bundle, manifest, host, record
        self.details = details
        self.policy = load_policy(host)
        self.glibc = parse_glibc(record.glibc)
        self.problems: list[str] = []

    def check(self) -> list[str]:
        functions = [name for kernel in self.manifest.kernels.values() for name in kernel.functions]
        self._check_repeated("function", functions)
        self._check_library(self.record.entry, entry_exports(self.manifest.name, functions, self.manifest.protocol))
        self._check_identity()
        self._check_compiled()
        self._check_torch()
        self.problems += archive_problems(self.bundle, self.manifest, self.host, self.record, self.details)
        support = self._check_support()
        for arch, kernels in self.details.items():
            for name, variants in kernels.items():
                self._check_kernel(arch, name, variants, support)
        return self.problems

    def _check_library(
        self, name: str, exports: frozenset[str], *, extra: frozenset[str] = frozenset(), constructors: bool = True
    ) -> SharedLibrary | None:
        library = self._read(name)
        if library is not None:
            found = violations(library, self.policy, exports=exports, glibc=self.glibc, extra_needed=extra)
            if not constructors:
                found += [
                    f"It has {tag}: code that runs when it is opened." for tag in library.dynamic if tag in CONSTRUCTORS
                ]
            self.problems += [f"{name}: {sentence}" for sentence in found]
        return library

    def _check_identity(self) -> None:
        """The entry library was built with this manifest: loaders compare the same."""
        if not self._carries(self.record.entry, IDENTITY, self.manifest.identity(self.host)):
            self.problems.append(f"{self.record.entry} was built with another manifest or other kernels.json")

    def _check_compiled(self) -> None:
        """The files are those that the entry library opens."""
        try:
            self.problems += compiled_problems(self.bundle, self.manifest, self.host, self.record)
        except ElfError as error:
            self.problems.append(str(error))

    def _check_torch(self) -> None:
        """The library for torch registers the operators that follow from the kernels. Older bundles have no such library."""
        name = torch_library_path(self.host, self.manifest.name)
        if name not in self.manifest.files:
            return
        self._check_library(name, frozenset(torch_exports(self.manifest.name)))
        if not self._carries(name, TORCH_IDENTITY, operators_digest(operators(self.manifest.kernels))):
            self.problems.append(f"{name} does not register the operators that follow from the kernels")

    def _carries(self, name: str, symbol: str, text: str) -> bool:
        """Whether a library's constant of that name is this text; a library that cannot be read is a problem by itself."""
        try:
            return object_bytes(self.bundle / name, symbol) == f"{text}\0".encode()
        except ElfError as error:
            self.problems.append(str(error))
            return True

    def _read(self, name: str) -> SharedLibrary | None:
        try:
            return read_shared_library(self.bundle / name)
        except ElfError as error:
            self.problems.append(str(error))
            return None

    def _check_support(self) -> frozenset[str]:
        """The support library; returns what it provides to kernel libraries."""
        library = self._read(self.record.support)
        if library is None:
            return frozenset()
        exported = frozenset(symbol.name for symbol in library.exported)
        allowed = frozenset(
            name for name in exported if any(fnmatch.fnmatchcase(name, glob) for glob in SUPPORT_EXPORTS)
        )
        extra = frozenset() if self.record.cudart == "static" else frozenset({self.record.cudart})
        self._check_library(self.record.support, allowed, extra=extra)
        return exported

    def _check_kernel(self, arch: Arch, kernel: str, variants: list[VariantDetails], support: frozenset[str]) -> None:
        name = f"lib/{self.host}/{arch}/{kernel}.so"
        # Variants of the same code may share their launcher.
        symbols = [symbol for symbol, _ in dict.fromkeys((one.symbol, one.cubin_sha256) for one in variants)]
        self._check_repeated("variant", [one.name for one in variants])
        self._check_repeated("symbol", symbols)
        library = self._check_library(name, frozenset({"aot_kernel_library", *symbols}), constructors=False)
        if library is None:
            return
        for symbol in library.local_objects:
            if symbol.startswith(layout.IMPORT) and symbol.removeprefix(layout.IMPORT) not in support:
                self.problems.append(
                    f"{name} needs {symbol.removeprefix(layout.IMPORT)}, which {self.record.support} does not provide"
                )
        self._check_cubins(name, arch, variants)

    def _check_cubins(self, name: str, arch: Arch, variants: list[VariantDetails]) -> None:
        try:
            cubins = cubins_in_library(self.bundle / name)
        except ElfError as error:
            self.problems.append(str(error))
            return
        for cubin in cubins:
            if cubin.architecture != str(arch):
                self.problems.append(f"{name} holds code for {cubin.architecture}, the manifest says {arch}")
        # Identical cubins of two variants may share their bytes in the library.
        expected = {digest for variant in variants for digest in variant.cubin_sha256}
        found = {cubin.sha256 for cubin in cubins}
        if expected != found:
            self.problems.append(
                f"{name} holds {len(found - expected)} cubins that its details do not name, and lacks {len(expected - found)}"
            )

    def _check_repeated(self, what: str, names: list[str]) -> None:
        self.problems += [
            f"{what} {name} is there {count} times" for name, count in Counter(names).items() if count > 1
        ]
