"""Making a bundle out of others: growing, slimming, joining. Kernel libraries go over byte for byte.

Only what says which kernels there are is made again: the entry libraries and their notes, the headers, the
details, the manifest. Static archives are made again of the objects in the old ones.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import aot_runtime.manifest as manifest_module
from aot_runtime.arch import Arch
from aot_runtime.manifest import FileRecord, HostRecord, KernelRecord, Manifest

from ..bundle import layout
from ..bundle.details import details_text, read_details
from ..bundle.headers import write_headers
from ..bundle.layout import CONTRACTS, archive_names, details_name, library_path
from ..bundle.split import absent_parts
from ..errors import BuildError
from ..files import sha256_of
from ..hosts import Host
from ..link.libraries import NO_IDENTITY, EntryFunction, KernelBuild, Linker, describe_file
from ..link.static import StaticArchives

__all__ = ["Member", "compose"]

# Parts of a toolchain that entry and kernel libraries must have in common.
_SHARED_TOOLCHAIN = ("cuda", "cute-aot")


@dataclass(frozen=True)
class Member:
    """A bundle to take from, and which of its kernels: all where absent."""

    path: Path
    takes: Callable[[str, Arch], bool] = lambda kernel, arch: True

    @cached_property
    def manifest(self) -> Manifest:
        return Manifest.read(self.path)

    @cached_property
    def pairs(self) -> tuple[tuple[str, Arch], ...]:
        kernels = self.manifest.kernels.values()
        return tuple((k.name, arch) for k in kernels for arch in k.archs if self.takes(k.name, arch))

    @cached_property
    def details(self) -> dict[tuple[str, Arch], list[dict[str, Any]]]:
        found: dict[tuple[str, Arch], list[dict[str, Any]]] = {}
        for arch in sorted({arch for _, arch in self.pairs}):
            for variant in read_details(self.path / details_name(arch)):
                found.setdefault((variant["kernel"], arch), []).append(variant)
        return found

    @cached_property
    def has_archives(self) -> bool:
        return any(path.endswith(".a") for path in self.manifest.files)

    @cached_property
    def contracts(self) -> frozenset[str]:
        """The files that check the kernels taken, with what those files share."""
        paths = {path for path in self.manifest.files if PurePosixPath(path).parent == PurePosixPath(CONTRACTS)}
        own = paths & {f"{CONTRACTS}/{kernel}.py" for kernel, _ in self.pairs}
        shared = {path for path in paths if PurePosixPath(path).name.startswith("_")}
        return frozenset(own | shared) if own else frozenset()


def compose(
    members: Sequence[Member], staged: Path, linker: Callable[[Host], Linker], *, later_wins: bool = False
) -> Manifest:
    """Write a bundle of all that the members give; where two differ, the later wins or it is refused."""
    composition = _Composition(members, later_wins)
    composition.check()
    return composition.write(staged, linker)


def _check_parts(member: Member) -> None:
    """What was split into distributions can be taken from where they are installed."""
    absent = absent_parts(member.path, member.manifest) & {str(arch) for _, arch in member.pairs}
    for arch in sorted(absent):
        raise BuildError(
            f"`{member.path}` lacks its code for {arch}: that part is not installed",
            hint=f"`pip install {member.manifest.parts[arch]}`, or go without it: `python -m aot prune {member.path} --arch {arch}`",
        )


class _Composition:
    def __init__(self, members: Sequence[Member], later_wins: bool) -> None:
        self.members, self.later_wins = members, later_wins
        self.name = members[-1].manifest.name
        self.hosts = {name: record for member in members for name, record in member.manifest.hosts.items()}
        self.pairs = sorted({pair for member in members for pair in member.pairs}, key=lambda p: (p[1], p[0]))

    # What speaks against it.

    def check(self) -> None:
        if not self.pairs:
            raise BuildError("no kernel would be left", hint="see what there is with `python -m aot inspect`")
        for member in self.members:
            _check_parts(member)
        for member in self.members[:-1]:
            self._check_toolchain(member.manifest, self.members[-1].manifest)
        for pair in self.pairs:
            self._check_pair(*pair)
        for kernel in {kernel for kernel, _ in self.pairs}:
            self._check_signature(kernel)
        self._check_archives()
        self._check_contracts()

    def _check_archives(self) -> None:
        """Archives are of all kernels or of none; a later member that has none takes those of the others away."""
        wanted = self.members[-1].has_archives
        for member in self.members:
            if member.has_archives != wanted and (wanted or not self.later_wins):
                without = next(m for m in self.members if not m.has_archives)
                raise BuildError(
                    f"`{without.path}` has no archives for static linking, what it is joined with has",
                    hint="build both with or both without `--no-archives`, or begin anew with `--replace`",
                )

    def _check_contracts(self) -> None:
        for path in sorted({path for member in self.members for path in member.contracts}):
            holders = [member for member in self.members if path in member.contracts]
            if len({holder.manifest.files[path].sha256 for holder in holders}) > 1 and not self.later_wins:
                raise BuildError(f"{path} differs between the bundles", hint="build both from the same source")

    def _check_toolchain(self, one: Manifest, other: Manifest) -> None:
        if one.name != other.name:
            raise BuildError(f"the bundles are called {one.name} and {other.name}", hint="build them with one `--name`")
        for part in _SHARED_TOOLCHAIN:
            if one.toolchain.get(part) != other.toolchain.get(part):
                versions = f"{one.toolchain.get(part)} and {other.toolchain.get(part)}"
                raise BuildError(f"{one.name}: made with {part} {versions}", hint="build both with the same")
        for host in one.hosts.keys() & other.hosts.keys():
            if one.hosts[host] != other.hosts[host]:
                raise BuildError(f"{host}: {_floor(one.hosts[host])} and {_floor(other.hosts[host])}")

    def _check_pair(self, kernel: str, arch: Arch) -> None:
        for host in self.hosts:
            holders = self._holders(kernel, arch, host)
            if not holders:
                raise BuildError(
                    f"{kernel} for {arch} is there for {', '.join(self._hosts_of(kernel, arch))}, but not for {host}",
                    hint=f"build it with `--host {host} --arch {arch} --kernel {kernel}`",
                )
            path = library_path(host, arch, kernel)
            digests = {holder.manifest.files[path].sha256 for holder in holders}
            if len(digests) > 1 and not self.later_wins:
                raise BuildError(f"{path} differs between the bundles", hint="prune it from one of them")
        details = [_comparable(member.details[kernel, arch]) for member in self._givers(kernel, arch)]
        if any(other != details[0] for other in details) and not self.later_wins:
            raise BuildError(f"{kernel} for {arch} has other variants in the one than in the other bundle")

    def _check_signature(self, kernel: str) -> None:
        records = [m.manifest.kernels[kernel] for m in self.members if any(k == kernel for k, _ in self._own(m))]
        for record in records[1:]:
            if (record.parameters, record.choices) != (records[0].parameters, records[0].choices):
                raise BuildError(
                    f"{kernel} takes other parameters for {', '.join(map(str, records[0].archs))} than now",
                    hint=f"build those again too, or take them out: `python -m aot prune BUNDLE --kernel {kernel}`",
                )

    def _own(self, member: Member) -> list[tuple[str, Arch]]:
        """The pairs that really come from this member."""
        return [pair for pair in member.pairs if self._givers(*pair)[-1] is member or not self.later_wins]

    def _givers(self, kernel: str, arch: Arch) -> list[Member]:
        return [member for member in self.members if (kernel, arch) in member.pairs]

    def _holders(self, kernel: str, arch: Arch, host: str) -> list[Member]:
        return [member for member in self._givers(kernel, arch) if host in member.manifest.hosts]

    def _hosts_of(self, kernel: str, arch: Arch) -> list[str]:
        return sorted({host for member in self._givers(kernel, arch) for host in member.manifest.hosts})

    # Writing it.

    def write(self, staged: Path, linker: Callable[[Host], Linker]) -> Manifest:
        hosts = {host: self._write_host(staged, host, linker) for host in sorted(self.hosts)}
        self._write_details(staged)
        self._write_contracts(staged)
        kernels = {kernel: self._record(kernel) for kernel in sorted({kernel for kernel, _ in self.pairs})}
        write_headers(staged / "include", self.name, kernels, sorted((staged / "details").iterdir()))
        failures = self._failures()
        last = self.members[-1].manifest
        manifest = Manifest(
            name=self.name,
            complete=not failures,
            kernels=kernels,
            hosts=hosts,
            files=_file_records(staged),
            failures=failures,
            toolchain=last.toolchain,
            source=last.source if self.later_wins or self._same_source() else {},
            requires={**last.requires, "driver": self._drivers()},
        )
        (staged / manifest_module.FILE_NAME).write_text(manifest.to_json())
        return manifest

    def _write_host(self, staged: Path, host: str, linker: Callable[[Host], Linker]) -> HostRecord:
        record = self.hosts[host]
        builds: dict[str, list[KernelBuild]] = {}
        for kernel, arch in self.pairs:
            path = library_path(host, arch, kernel)
            _take(self._holders(kernel, arch, host)[-1], path, staged)
            builds.setdefault(kernel, []).append(describe_file(staged / path, f"{arch}/{kernel}.so", arch))
        last = [member for member in self.members if host in member.manifest.hosts][-1]
        _take(last, record.support, staged)
        support = staged / record.support
        support_file = describe_file(support, support.name, self.pairs[0][1])
        major, minor = record.glibc.split(".")
        host_linker = linker(Host.parse(host, (int(major), int(minor))))
        entry = staged / record.entry
        host_linker.entry(self.name, self._functions(), builds, support_file, entry, NO_IDENTITY)
        note = layout.entry_note(self.name, entry.name, FileRecord(sha256_of(entry), entry.stat().st_size))
        (entry.parent / layout.ENTRY_NOTE).write_text(note)
        if self.members[-1].has_archives:
            self._write_archives(host_linker, last, builds, staged)
        return record

    def _write_archives(self, linker: Linker, last: Member, builds: dict[str, list[KernelBuild]], staged: Path) -> None:
        host = linker.host.name
        archives = StaticArchives(linker, self.name)
        for kernel, arch in self.pairs:
            holder = self._holders(kernel, arch, host)[-1]
            name = f"lib/{host}/lib{self.name}_{arch}.a"
            archives.adopt_kernel(kernel, arch, _read(holder, name), holder.manifest.kernels)
        archives.write_code(self._functions(), builds, staged / "lib" / host, NO_IDENTITY)
        for name in archive_names(self.name, (), cudart=self.hosts[host].cudart == "static")[1:]:
            _take(last, f"lib/{host}/{name}", staged)

    def _write_contracts(self, staged: Path) -> None:
        """Of each kernel, the contract of the last member that gives it; shared files of the last that has them."""
        givers = {kernel: member for member in self.members for kernel, _ in member.pairs}
        wanted: dict[str, Member] = {}
        for member in self.members:
            for path in member.contracts:
                kernel = PurePosixPath(path).stem
                if kernel not in givers or givers[kernel] is member or not self.later_wins:
                    wanted[path] = member
        if any(PurePosixPath(path).stem in givers for path in wanted):
            for path in sorted(wanted):
                _take(wanted[path], path, staged)

    def _functions(self) -> list[EntryFunction]:
        functions: dict[str, EntryFunction] = {}
        for kernel, arch in self.pairs:
            giver = self._givers(kernel, arch)[-1]
            parameters = giver.manifest.kernels[kernel].parameters
            names = ", ".join(parameter.name for parameter in parameters)
            for variant in giver.details[kernel, arch]:
                name = variant["function"]
                if "uses_tensors" not in variant:
                    raise BuildError(f"`{giver.path}` was made by an older cute-aot", hint="build it again")
                functions[name] = EntryFunction(
                    name,
                    kernel,
                    f"{name}({names})",
                    len(parameters),
                    variant["uses_tensors"],
                    giver.manifest.kernels[kernel].doc,
                )
        return [functions[name] for name in sorted(functions)]

    def _write_details(self, staged: Path) -> None:
        (staged / "details").mkdir()
        for arch in sorted({arch for _, arch in self.pairs}):
            variants = [v for kernel, a in self.pairs if a == arch for v in self._variants(kernel, arch, staged)]
            (staged / details_name(arch)).write_text(details_text(arch, variants))

    def _variants(self, kernel: str, arch: Arch, staged: Path) -> list[dict[str, Any]]:
        """The variants of a kernel; what ``--keep`` kept of them comes along."""
        givers = self._givers(kernel, arch)
        kept = [path for path in givers[-1].manifest.files if path.startswith(f"kept/{arch}/")]
        result = []
        for number, variant in enumerate(givers[-1].details[kernel, arch]):
            for path in kept:
                if path.startswith(f"kept/{arch}/{variant['name']}."):
                    _take(givers[-1], path, staged)
            if not self.later_wins:
                runs = [run for giver in givers for run in giver.details[kernel, arch][number]["verified_on"]]
                variant = {**variant, "verified_on": sorted(set(runs))}
            result.append(variant)
        return result

    def _record(self, kernel: str) -> KernelRecord:
        pairs = [pair for pair in self.pairs if pair[0] == kernel]
        record = self._givers(*pairs[-1])[-1].manifest.kernels[kernel]
        givers = [self._givers(*pair)[-1] for pair in pairs]
        built = {v["function"] for pair, giver in zip(pairs, givers, strict=True) for v in giver.details[pair]}
        named = dict.fromkeys(f for giver in givers for f in giver.manifest.kernels[kernel].functions if f in built)
        return KernelRecord(
            name=kernel,
            doc=record.doc,
            parameters=record.parameters,
            choices=record.choices,
            functions=tuple(named),
            archs=tuple(arch for _, arch in pairs),
            variants=sum(len(giver.details[pair]) for pair, giver in zip(pairs, givers, strict=True)),
        )

    def _failures(self) -> tuple[dict[str, str], ...]:
        """What is missing, unless another member has it; failures without a kernel's name are the later's alone."""
        found: dict[str, dict[str, str]] = {}
        for member in self.members:
            for failure in member.manifest.failures:
                owners = [
                    m
                    for m in self.members
                    if any(str(a) == failure["arch"] and k == failure["kernel"] for k, a in m.pairs)
                ]
                stale = self.later_wins and member is not (owners or self.members)[-1]
                if not stale:
                    found[json.dumps(dict(failure), sort_keys=True)] = dict(failure)
        return tuple(found.values())

    def _drivers(self) -> dict[str, Any]:
        drivers = {arch: d for m in self.members for arch, d in m.manifest.requires.get("driver", {}).items()}
        used = {str(arch) for _, arch in self.pairs}
        return {arch: drivers[arch] for arch in sorted(drivers) if arch in used}

    def _same_source(self) -> bool:
        return all(member.manifest.source == self.members[-1].manifest.source for member in self.members)


def _floor(record: HostRecord) -> str:
    return f"glibc {record.glibc} with CUDA runtime {record.cudart}"


def _comparable(variants: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in variant.items() if key != "verified_on"} for variant in variants]


def _sound(member: Member, path: str) -> Path:
    """Where a file of a bundle lies; what is damaged is refused."""
    source, record = (member.path / path).resolve(), member.manifest.files.get(path)
    if record is None or not source.is_file() or sha256_of(source) != record.sha256:
        raise BuildError(f"`{member.path}`: {path} is not what its manifest says", hint="build that bundle again")
    return source


def _read(member: Member, path: str) -> bytes:
    return _sound(member, path).read_bytes()


def _take(member: Member, path: str, staged: Path) -> None:
    """Link a file over, or copy it where that cannot be; what is damaged is refused."""
    source, target = _sound(member, path), staged / path
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        shutil.copymode(source, target)


def _file_records(staged: Path) -> dict[str, FileRecord]:
    records = {}
    for path in sorted(path for path in staged.rglob("*") if path.is_file()):
        records[path.relative_to(staged).as_posix()] = FileRecord(sha256_of(path), path.stat().st_size)
    return records
