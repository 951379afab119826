"""Show what is in a bundle: kernels, variants, registers, shared memory, sizes, toolchain."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import KernelRecord
from aot_runtime.description.records import FileRecord, HostRecord

from ...bundle.build_records import BuildRecord, FailureRecord, Requires
from ...bundle.comparing.sizes import Share, shares
from ...bundle.comparing.staleness import Stale, known_stale, stale_text
from ...bundle.details import VariantDetails, read_details, shape_text
from ...bundle.globs import matching
from ...bundle.layout import details_name
from ...bundle.manifest import Manifest
from ...errors import UsageError, counted
from ...records import encode
from ..options import add_bundle_argument, add_kernel_argument, add_old_spelling
from ..report import first_line, fitted_table, human_size, print_json, print_wrapped
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]


class Verified(TypedDict):
    """How many variants of an architecture there are, and how many of them ran."""

    variants: int  # how many there are
    verified_on: Mapping[str, int]  # how many `check` verified, by GPU and date


@dataclass(frozen=True, kw_only=True)
class ArchVariant(VariantDetails):
    """One variant for one architecture, as `details/` describes it."""

    arch: str  # the architecture


KEYS = (
    Key("name", str, "name of the bundle"),
    Key("complete", bool, "whether everything that was asked of it was built"),
    Key("hosts", Mapping[str, HostRecord], "its libraries, by host"),
    Key("files", Mapping[str, FileRecord], "its files, by path"),
    Key("toolchain", Mapping[str, str], "versions that shaped the code, by name"),
    Key("requires", Requires, "what a machine must have to run it"),
    Key("provenance", tuple[BuildRecord, ...], "what each build was made of"),
    Key("failures", tuple[FailureRecord, ...], "what failed to build"),
    Key("stale", tuple[Stale, ...] | None, "kernels whose sources changed since; null: the sources are not here"),
    Key("verified", Mapping[str, Verified], "how many variants were verified, by architecture"),
    Key("variants", tuple[ArchVariant, ...], "every variant"),
    Key("sizes", tuple[Share, ...], "where the bytes are", "with --size"),
)

_Variants = Sequence[tuple[Arch, VariantDetails]]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_bundle_argument(parser)
    add_kernel_argument(parser, "only variants of kernels")
    parser.add_argument(
        "--source",
        dest="kernels",
        type=Path,
        metavar="PATH",
        help="compare the bundle with the sources there (default: with its sources, if they are beside it)",
    )
    add_old_spelling(parser, "--kernels", "kernels", Path)
    parser.add_argument("--size", action="store_true", help="show where the bytes are instead of the variants")


def execute(arguments: argparse.Namespace) -> int:
    manifest = Manifest.read(arguments.bundle)
    if arguments.kernels is not None and not arguments.kernels.exists():
        raise UsageError(f"`--source {arguments.kernels}` does not exist", hint="pass what the bundle was built from")
    named = matching(manifest.kernels, arguments.kernel)
    variants = list(_variants(arguments.bundle, manifest, named))
    sizes = [share for share in shares(manifest) if not arguments.kernel or share.kernel in named]
    stale = known_stale(arguments.bundle, manifest, arguments.kernels)
    if arguments.json:
        print_json({**_data(manifest, variants, stale), **({"sizes": encode(sizes)} if arguments.size else {})})
        return 0
    if arguments.size:
        _print_sizes(manifest, sizes)
        return 0
    if not arguments.kernel:
        _print_summary(arguments.bundle, manifest, stale or [])
        _print_archs(manifest, variants)
    for record in manifest.kernels.values():
        _print_kernel(record, [(arch, variant) for arch, variant in variants if variant.kernel == record.name])
    return 0


def _variants(bundle: Path, manifest: Manifest, kernels: list[str]) -> Iterator[tuple[Arch, VariantDetails]]:
    only = kernels[0] if len(kernels) == 1 else None  # what is known of one kernel is found without parsing the rest
    for arch in manifest.archs:
        for variant in read_details(bundle / details_name(arch), only):
            if variant.kernel in kernels:
                yield arch, variant


def _print_summary(bundle: Path, manifest: Manifest, stale: list[Stale]) -> None:
    size = sum(record.size for record in manifest.files.values())
    complete = "complete" if manifest.complete else f"INCOMPLETE, {counted(len(manifest.failures), 'failure')}"
    kernels = counted(len(manifest.kernels), "kernel")
    print(f"{manifest.name}: {complete}, {kernels}, {human_size(size)} in {counted(len(manifest.files), 'file')}")
    print(f"at {bundle}")
    for host, record in manifest.hosts.items():
        print(f"host {host}: glibc >= {record.glibc}, CUDA runtime {record.cudart}")
    for build in manifest.provenance:
        print_wrapped(_source_text(build))
    if stale:
        print_wrapped(f"STALE: {stale_text(stale)}")
    print_wrapped("built with " + ", ".join(f"{name} {version}" for name, version in manifest.toolchain.items()))
    for failure in manifest.failures:
        print(
            f"failed: {failure.get('arch')} {failure.get('variant') or failure.get('kernel')}: {failure.get('message')}"
        )
    print()


def _source_text(build: Mapping[str, Any]) -> str:
    source = build["source"]
    state = "" if source.get("clean", True) else ", with changes that are not committed"
    commit = f"commit {source['commit']}{state}" if "commit" in source else "files that no commit holds"
    return f"built from {commit} ({counted(len(source.get('files', {})), 'file')})"


def _print_archs(manifest: Manifest, variants: _Variants) -> None:
    drivers = manifest.requires.get("driver", {})
    rows = []
    for arch, (total, places) in _verified(variants).items():
        where = [f"{count} on {place}" for place, count in places.items()]
        portable = sum(one.is_portable(arch) for own, one in variants if own == arch)
        ran = "; ".join(where) or "never run on a GPU"
        rows.append((str(arch), drivers.get(str(arch), "-"), total, portable or "-", ran))
    columns = ("arch", "driver from", "variants", "portable code", "verified")
    print(fitted_table(columns, rows, optional=("portable code",)))


def _verified(variants: _Variants) -> dict[Arch, tuple[int, dict[str, int]]]:
    """By architecture: the number of variants, and how many of them were verified on each device."""
    verified: dict[Arch, tuple[int, dict[str, int]]] = {}
    for arch, variant in variants:
        total, places = verified.get(arch, (0, {}))
        for place in variant.verified_on:
            places[place] = places.get(place, 0) + 1
        verified[arch] = (total + 1, places)
    return verified


def _print_kernel(record: KernelRecord, variants: _Variants) -> None:
    if not variants:
        return
    summary = first_line(record.doc)
    print()
    print_wrapped(f"{record.name}: {summary}" if summary else record.name)
    axes = list(dict.fromkeys(axis for _, variant in variants for axis in variant.point))
    labels = any(_label(variant) for _, variant in variants)
    columns = ("arch", "code", *axes, *(["label"] if labels else []), *_RESOURCES, "run")
    rows = [
        (
            str(arch),
            "portable" if variant.is_portable(arch) else "-",
            *(_value(axis, variant.point.get(axis)) for axis in axes),
            *([_label(variant) or "-"] if labels else []),
            *_resources(variant),
            "yes" if variant.verified_on else "no",
        )
        for arch, variant in variants
    ]
    print(fitted_table(columns, rows, optional=("code", "cluster", "stack"), indent="  "))


def _value(axis: str, value: str | None) -> str:
    """A point on an axis as people say it: names of variants must be told apart, the column names the axis here."""
    if value is None:
        return "-"
    named = {axis: "yes", f"not_{axis}": "no"}
    return named.get(value) or value.removeprefix(axis) or value


def _label(variant: VariantDetails) -> str:
    """What the name of a variant says beside the kernel and its place on the axes."""
    rest = variant.name.removeprefix(variant.kernel).split("__")
    for value in variant.point.values():
        if value in rest:
            rest.remove(value)
    return " ".join(filter(None, rest))


_RESOURCES = ("registers", "shared", "block", "cluster", "stack", "cubin")


def _resources(variant: VariantDetails) -> tuple[object, ...]:
    launch = variant.launches[0]
    dynamic = launch.dynamic_shared_memory
    return (
        launch.registers,
        "at run time" if dynamic is None else launch.static_shared_memory + dynamic,
        shape_text(launch.block),
        shape_text(launch.cluster),
        launch.local_memory or "-",
        human_size(variant.cubin_bytes),
    )


def _print_sizes(manifest: Manifest, found: Sequence[Share]) -> None:
    total = sum(share.size for share in found)
    for title, key in (("purpose", "purpose"), ("architecture", "arch"), ("kernel", "kernel")):
        by_name: dict[str, list[Share]] = {}
        for share in found:
            if key != "kernel" or share.kernel:
                by_name.setdefault(getattr(share, key) or "all", []).append(share)
        sums = {name: sum(share.size for share in own) for name, own in by_name.items()}
        rows = [
            (name, sum(share.files for share in by_name[name]), human_size(size), f"{100 * size / max(total, 1):.1f}%")
            for name, size in sorted(sums.items(), key=lambda item: -item[1])
        ]
        print(fitted_table((title, "files", "size", "share"), rows))
        print()
    print(f"{manifest.name}: {human_size(total)} in {counted(sum(share.files for share in found), 'file')}")


def _data(manifest: Manifest, variants: _Variants, stale: Sequence[Stale] | None) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "complete": manifest.complete,
        "hosts": encode(manifest.hosts),
        "files": encode(manifest.files),
        "toolchain": dict(manifest.toolchain),
        "requires": dict(manifest.requires),
        "provenance": list(manifest.provenance),
        "failures": [dict(failure) for failure in manifest.failures],
        "stale": encode(tuple(stale)) if stale is not None else None,
        "verified": {
            str(arch): {"variants": total, "verified_on": places}
            for arch, (total, places) in _verified(variants).items()
        },
        "variants": [{**encode(variant), "arch": str(arch)} for arch, variant in variants],
    }
