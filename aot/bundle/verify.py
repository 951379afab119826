"""Checking a bundle against its own manifest, on any machine, without executing any of it.

Each check returns sentences; no sentence means that it holds.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.errors import BundleError, SignatureError
from aot_runtime.manifest import FILE_NAME, HostRecord, Manifest, reads_alike

from ..binary.cubin import cubins_in_library
from ..binary.elf import ElfError, SharedLibrary, read_shared_library
from ..binary.policy import PolicyError, load_policy, violations
from . import layout
from .archives import archive_problems
from .details import read_details
from .integrity import damaged_files
from .layout import SUPPORT_EXPORTS, details_name, entry_exports
from .signature import signature_check, signature_problems
from .split import absent_parts

__all__ = ["verify"]


def verify(bundle: Path, keys: Sequence[bytes] = ()) -> list[str]:
    """Every way in which the bundle is not what its manifest says; an empty list for a sound one.

    If keys are given, the manifest must be signed by one of them.
    """
    try:
        manifest = Manifest.read(bundle, signature_check(bundle, keys))
    except SignatureError as error:
        return [error.message]  # nothing that such a manifest says counts
    if not reads_alike(bundle):  # what follows would not be what a loader sees
        return [f"{FILE_NAME} is not as a build writes it: read by lines it differs from what it is as JSON"]
    problems = [*signature_problems(bundle), *damaged_files(bundle, manifest)]
    if problems:
        return problems  # what follows reads those files
    for host, record in manifest.hosts.items():
        try:
            problems += _Host(bundle, manifest, host, record).check()
        except PolicyError as error:
            problems.append(f"host {host}: {error.message}")
    return problems


class _Host:
    """The libraries of one host."""

    def __init__(self, bundle: Path, manifest: Manifest, host: str, record: HostRecord) -> None:
        self.bundle, self.manifest, self.host, self.record = bundle, manifest, host, record
        self.policy = load_policy(host)
        major, minor = record.glibc.split(".")
        self.glibc = (int(major), int(minor))
        self.problems: list[str] = []

    def check(self) -> list[str]:
        functions = [name for kernel in self.manifest.kernels.values() for name in kernel.functions]
        self._check_repeated("function", functions)
        self._check_library(self.record.entry, entry_exports(self.manifest.name, functions))
        self._check_note()
        self.problems += archive_problems(self.bundle, self.manifest, self.host, self.record)
        support = self._check_support()
        absent = absent_parts(self.bundle, self.manifest)
        archs = {arch for kernel in self.manifest.kernels.values() for arch in kernel.archs}
        for arch in sorted(arch for arch in archs if str(arch) not in absent):
            for name, variants in self._details(arch).items():
                self._check_kernel(arch, name, variants, support)
        return self.problems

    def _check_library(
        self, name: str, exports: frozenset[str], *, extra: frozenset[str] = frozenset()
    ) -> SharedLibrary | None:
        library = self._read(name)
        if library is not None:
            found = violations(library, self.policy, exports=exports, glibc=self.glibc, extra_needed=extra)
            self.problems += [f"{name}: {sentence}" for sentence in found]
        return library

    def _check_note(self) -> None:
        """What C programs read instead of the manifest says the same."""
        name = f"lib/{self.host}/{layout.ENTRY_NOTE}"
        entry = PurePosixPath(self.record.entry).name
        expected = layout.entry_note(self.manifest.name, entry, self.manifest.files[self.record.entry])
        if name not in self.manifest.files:
            self.problems.append(f"{name} is missing: C programs cannot open this bundle")
        elif (self.bundle / name).read_bytes() != expected.encode():
            self.problems.append(f"{name} does not say what the manifest says of {self.record.entry}")

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

    def _details(self, arch: Arch) -> dict[str, list[dict[str, Any]]]:
        """The variants of an architecture, by kernel."""
        name = details_name(arch)
        by_kernel: dict[str, list[dict[str, Any]]] = {}
        try:
            variants = read_details(self.bundle / name)
        except BundleError as error:
            self.problems.append(f"{name}: {error}")
            return {}
        for variant in variants:
            by_kernel.setdefault(variant["kernel"], []).append(variant)
        expected = {kernel.name for kernel in self.manifest.kernels.values() if arch in kernel.archs}
        if expected != by_kernel.keys():
            self.problems.append(f"{name} describes {sorted(by_kernel)}, the manifest says {sorted(expected)}")
        return by_kernel

    def _check_kernel(self, arch: Arch, kernel: str, variants: list[dict[str, Any]], support: frozenset[str]) -> None:
        name = f"lib/{self.host}/{arch}/{kernel}.so"
        symbols = [variant["symbol"] for variant in variants]
        self._check_repeated("symbol", symbols)
        library = self._check_library(name, frozenset({"aot_kernel_library", *symbols}))
        if library is None:
            return
        for symbol in library.local_objects:
            if symbol.startswith(layout.IMPORT) and symbol.removeprefix(layout.IMPORT) not in support:
                self.problems.append(
                    f"{name} needs {symbol.removeprefix(layout.IMPORT)}, which {self.record.support} does not provide"
                )
        self._check_cubins(name, arch, variants)

    def _check_cubins(self, name: str, arch: Arch, variants: list[dict[str, Any]]) -> None:
        try:
            cubins = cubins_in_library(self.bundle / name)
        except ElfError as error:
            self.problems.append(str(error))
            return
        for cubin in cubins:
            if cubin.architecture != str(arch):
                self.problems.append(f"{name} holds code for {cubin.architecture}, the manifest says {arch}")
        # Identical cubins of two variants may share their bytes in the library.
        expected = {digest for variant in variants for digest in variant["cubin_sha256"]}
        found = {cubin.sha256 for cubin in cubins}
        if expected != found:
            self.problems.append(
                f"{name} holds {len(found - expected)} cubins that its details do not name, and lacks {len(expected - found)}"
            )

    def _check_repeated(self, what: str, names: list[str]) -> None:
        self.problems += [
            f"{what} {name} is there {count} times" for name, count in Counter(names).items() if count > 1
        ]
