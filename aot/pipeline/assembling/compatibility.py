"""Whether contributions fit together in one bundle; what does not fit is refused with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import KernelRecord
from aot_runtime.description.records import HostRecord

from ...bundle.contracts import contract_paths
from ...bundle.details import VariantDetails
from ...bundle.layout import library_path
from ...errors import BuildError
from .contributions import BuiltKernel, Contribution

__all__ = ["check_fit"]

# Parts of a toolchain that entry and kernel libraries must have in common.
_SHARED_TOOLCHAIN = ("cuda", "cute-aot")


def check_fit(contributions: Sequence[Contribution]) -> None:
    """Refuse contributions that cannot become one bundle. What several of them give must be the same."""
    kernels: dict[tuple[str, Arch], list[BuiltKernel]] = {}
    for contribution in contributions:
        for pair, kernel in contribution.kernels.items():
            kernels.setdefault(pair, []).append(kernel)
    if not kernels:
        raise BuildError("no kernel would be left", hint="see what there is with `python -m aot inspect`")
    for contribution in contributions[:-1]:
        _check_toolchain(contribution, contributions[-1])
    hosts = list(dict.fromkeys(host for contribution in contributions for host in contribution.hosts))
    for pair in sorted(kernels, key=lambda pair: (pair[1], pair[0])):
        _check_hosts(kernels[pair], hosts)
        _check_same(kernels[pair], hosts)
    _check_signatures(kernel for given in kernels.values() for kernel in given)
    _check_archives(contributions)
    _check_contracts(contributions)


def _check_toolchain(one: Contribution, other: Contribution) -> None:
    if one.name != other.name:
        raise BuildError(f"the bundles are called {one.name} and {other.name}", hint="build them with one `--name`")
    for part in _SHARED_TOOLCHAIN:
        if one.toolchain.get(part) != other.toolchain.get(part):
            versions = f"{one.toolchain.get(part)} and {other.toolchain.get(part)}"
            raise BuildError(f"{one.name}: made with {part} {versions}", hint="build both with the same")
    for host in one.hosts.keys() & other.hosts.keys():
        records = one.hosts[host].record, other.hosts[host].record
        if records[0] != records[1]:
            raise BuildError(f"{host}: {' and '.join(map(_floor, records))}")


def _floor(record: HostRecord) -> str:
    return f"glibc {record.glibc} with CUDA runtime {record.cudart}"


def _check_hosts(given: Sequence[BuiltKernel], hosts: Iterable[str]) -> None:
    """Every host of the bundle has every kernel."""
    name, arch = given[0].name, given[0].arch
    present = sorted({host for kernel in given for host in kernel.code})
    for host in hosts:
        if host not in present:
            raise BuildError(
                f"{name} for {arch} was built for {', '.join(present)}, but not for {host}",
                hint=f"build it with `--host {host} --arch {arch} --kernel {name}`",
            )


def _check_same(given: Sequence[BuiltKernel], hosts: Iterable[str]) -> None:
    """What several contributions give is the same code, with the same variants."""
    name, arch = given[0].name, given[0].arch
    for host in hosts:
        if len({kernel.code[host].library.record.sha256 for kernel in given if host in kernel.code}) > 1:
            path = library_path(host, arch, name)
            raise BuildError(f"{path} differs between the bundles", hint="prune it from one of them")
    if any(_comparable(kernel) != _comparable(given[0]) for kernel in given[1:]):
        raise BuildError(
            f"the bundles contain different variants of {name} for {arch}", hint="prune it from one of them"
        )


def _comparable(kernel: BuiltKernel) -> list[VariantDetails]:
    return [replace(variant, verified_on=()) for variant in kernel.variants]


def _check_signatures(kernels: Iterable[BuiltKernel]) -> None:
    """A kernel is called in one way, whatever the architecture."""
    first: dict[str, BuiltKernel] = {}
    for kernel in kernels:
        one, other = first.setdefault(kernel.name, kernel).signature, kernel.signature
        if _declared(one) != _declared(other):
            raise BuildError(
                f"the signature of {kernel.name} changed since the build for {', '.join(map(str, one.archs))}",
                hint=f"rebuild those too, or remove them: `python -m aot prune BUNDLE --kernel {kernel.name}`",
            )


def _declared(signature: KernelRecord) -> tuple[object, ...]:
    """What the author declared. What parameters take is derived from all variants, once these are joined."""
    return tuple(parameter.replace(type="", accepts=()) for parameter in signature.parameters), signature.choices


def _check_archives(contributions: Sequence[Contribution]) -> None:
    """Archives hold all kernels, or there are none."""
    without = [contribution for contribution in contributions if not contribution.has_archives]
    if without and len(without) < len(contributions):
        raise BuildError(
            f"{without[0].label} has no archives for static linking, and another of the bundles has",
            hint="build both with or both without `--no-archives`, or start over with `--replace`",
        )


def _check_contracts(contributions: Sequence[Contribution]) -> None:
    for path in sorted({path for contribution in contributions for path in contribution.contracts}):
        files = [contribution.contracts[path] for contribution in contributions if path in contribution.contracts]
        if len({file.record.sha256 for file in files}) > 1:
            raise BuildError(f"{path} differs between the bundles", hint="build both from the same source")
    places: dict[str, str] = {}
    for contribution in contributions:
        for kernel, path in contract_paths(contribution.contracts).items():
            if places.setdefault(kernel, path) != path:
                raise BuildError(
                    f"the contract of {kernel} is {places[kernel]} in one of the bundles and {path} in another",
                    hint="build both from the same source",
                )
