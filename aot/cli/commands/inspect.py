"""Show what is in a bundle: kernels, variants, registers, shared memory, sizes, toolchain."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.manifest import Manifest

from ...bundle.details import VariantDetails, read_details
from ...bundle.layout import details_name
from ...errors import UsageError, counted
from ...records import encode
from ..options import add_bundle_argument
from ..report import human_size, print_json, print_table
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("name", "string", "name of the bundle"),
    Key("complete", "boolean", "whether everything that was asked of it was built"),
    Key("hosts", "object", "by CPU: glibc, and how the CUDA runtime is linked"),
    Key("files", "object", "by path: size and SHA-256"),
    Key("toolchain", "object", "versions by name"),
    Key("requires", "object", "the lowest driver by architecture, glibc, apache-tvm-ffi"),
    Key("provenance", "list of object", "what each build was made of"),
    Key("failures", "list of object", "what failed to build"),
    Key("verified", "object", "by architecture: number of variants, and how many were verified on each GPU"),
    Key("variants", "list of object", "arch, and everything that `details/` has of it"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_bundle_argument(parser)
    parser.add_argument("--kernel", metavar="NAME", help="only this kernel's variants")


def execute(arguments: argparse.Namespace) -> int:
    manifest = Manifest.read(arguments.bundle)
    if arguments.kernel is not None and arguments.kernel not in manifest.kernels:
        raise UsageError(f"no kernel is called {arguments.kernel!r}", hint=f"there are: {', '.join(manifest.kernels)}")
    variants = list(_variants(arguments.bundle, manifest, arguments.kernel))
    if arguments.json:
        print_json(_data(manifest, variants))
        return 0
    _print_summary(arguments.bundle, manifest)
    _print_verified(variants)
    _print_variants(variants)
    return 0


def _variants(bundle: Path, manifest: Manifest, kernel: str | None) -> Iterator[tuple[Arch, VariantDetails]]:
    for arch in manifest.archs:
        for variant in read_details(bundle / details_name(arch), kernel):
            yield arch, variant


def _print_summary(bundle: Path, manifest: Manifest) -> None:
    size = sum(record.size for record in manifest.files.values())
    complete = "complete" if manifest.complete else f"INCOMPLETE, {counted(len(manifest.failures), 'failure')}"
    print(f"{manifest.name}: {complete}, {human_size(size)} in {counted(len(manifest.files), 'file')}, at {bundle}")
    for host, record in manifest.hosts.items():
        print(f"host {host}: glibc >= {record.glibc}, CUDA runtime {record.cudart}")
    for arch, driver in manifest.requires.get("driver", {}).items():
        print(f"{arch}: driver >= {driver}")
    for build in manifest.provenance:
        print(_source_text(build))
    print("built with " + ", ".join(f"{name} {version}" for name, version in manifest.toolchain.items()))
    for failure in manifest.failures:
        print(
            f"failed: {failure.get('arch')} {failure.get('variant') or failure.get('kernel')}: {failure.get('message')}"
        )
    rows = [
        (k.name, k.variants, ", ".join(map(str, k.archs)), (k.doc.splitlines() or [""])[0])
        for k in manifest.kernels.values()
    ]
    print_table(("kernel", "variants", "architectures", "what it computes"), rows)
    print()


def _source_text(build: Mapping[str, Any]) -> str:
    source = build["source"]
    state = "" if source.get("clean", True) else ", with changes that are not committed"
    commit = f"commit {source['commit']}{state}" if "commit" in source else "files that no commit holds"
    return f"built from {commit} ({counted(len(source.get('files', {})), 'file')})"


def _print_verified(variants: list[tuple[Arch, VariantDetails]]) -> None:
    for arch, (total, places) in _verified(variants).items():
        where = [f"{count} of {counted(total, 'variant')} verified on {place}" for place, count in places.items()]
        never = f"none of {counted(total, 'variant')} was ever checked on a GPU"
        print(f"{arch}: {'; '.join(where) or never}")
    print()


def _verified(variants: list[tuple[Arch, VariantDetails]]) -> dict[Arch, tuple[int, dict[str, int]]]:
    """By architecture: the number of variants, and how many of them were verified on each device."""
    verified: dict[Arch, tuple[int, dict[str, int]]] = {}
    for arch, variant in variants:
        total, places = verified.get(arch, (0, {}))
        for place in variant.verified_on:
            places[place] = places.get(place, 0) + 1
        verified[arch] = (total + 1, places)
    return verified


def _print_variants(variants: list[tuple[Arch, VariantDetails]]) -> None:
    columns = ("arch", "variant", "registers", "shared memory", "block", "cluster", "stack", "cubin", "verified on")
    print_table(columns, [_row(arch, variant) for arch, variant in variants])


def _row(arch: Arch, variant: VariantDetails) -> tuple[object, ...]:
    launch = variant.launches[0]
    dynamic = launch.dynamic_shared_memory
    memory = "at run time" if dynamic is None else launch.static_shared_memory + dynamic
    return (
        arch,
        variant.name,
        launch.registers,
        memory,
        _shape(launch.block),
        _shape(launch.cluster),
        launch.local_memory,
        human_size(variant.cubin_bytes),
        ", ".join(variant.verified_on) or "never run",
    )


def _shape(sizes: tuple[int, ...] | None) -> str:
    return "x".join(map(str, sizes)) if sizes else "-"


def _data(manifest: Manifest, variants: list[tuple[Arch, VariantDetails]]) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "complete": manifest.complete,
        "hosts": encode(manifest.hosts),
        "files": encode(manifest.files),
        "toolchain": dict(manifest.toolchain),
        "requires": dict(manifest.requires),
        "provenance": list(manifest.provenance),
        "failures": [dict(failure) for failure in manifest.failures],
        "verified": {
            str(arch): {"variants": total, "verified_on": places}
            for arch, (total, places) in _verified(variants).items()
        },
        "variants": [{"arch": str(arch), **encode(variant)} for arch, variant in variants],
    }
