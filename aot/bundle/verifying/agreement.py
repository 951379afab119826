"""Details and headers of a bundle against its kernels: all three describe the same variants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from aot_runtime.arch import Arch
from aot_runtime.description.records import FileRecord, read_bounded
from aot_runtime.errors import BundleError

from ...records import RecordError
from ..details import MAX_DETAILS_BYTES, VariantDetails, details_text, parse_details
from ..headers import header_texts
from ..layout import SBOM, details_name
from ..manifest import Manifest
from ..sbom import linked_files, sbom_text
from ..split import absent_parts
from ..types import function_kinds

__all__ = ["AllDetails", "header_problems", "read_all_details", "sbom_problems"]

AllDetails = Mapping[Arch, Mapping[str, list[VariantDetails]]]  # by architecture and kernel


def read_all_details(bundle: Path, manifest: Manifest) -> tuple[AllDetails, list[str]]:
    """The details of every architecture that is installed, and what is wrong with them."""
    absent = absent_parts(bundle, manifest)
    found: dict[Arch, dict[str, list[VariantDetails]]] = {}
    problems: list[str] = []
    for arch in (arch for arch in manifest.archs if str(arch) not in absent):
        name = details_name(arch)
        try:
            content = read_bounded(str(bundle / name), MAX_DETAILS_BYTES, BundleError)
            variants = parse_details(content)
        except BundleError as error:
            problems.append(f"{name}: {error.message}")
            continue
        except RecordError as error:
            problems.append(f"{name}: it is not well-formed: {error}")
            continue
        if details_text(arch, variants).encode() != content:
            problems.append(f"{name} is not as a build writes it: the same content would have other bytes")
        found[arch] = _by_kernel(variants)
        problems += _disagreements(name, arch, found[arch], manifest)
    if not absent and not problems:
        problems += _counts(found, manifest)
    return found, problems


def _by_kernel(variants: list[VariantDetails]) -> dict[str, list[VariantDetails]]:
    kernels: dict[str, list[VariantDetails]] = {}
    for variant in variants:
        kernels.setdefault(variant.kernel, []).append(variant)
    return kernels


def _disagreements(
    name: str, arch: Arch, found: Mapping[str, list[VariantDetails]], manifest: Manifest
) -> Iterator[str]:
    expected = {kernel.name for kernel in manifest.kernels.values() if arch in kernel.archs}
    if expected != found.keys():
        yield f"{name} describes {sorted(found)}, the manifest says {sorted(expected)}"
        return
    for kernel, variants in found.items():
        unknown = {variant.function for variant in variants} - set(manifest.kernels[kernel].functions)
        if unknown:
            yield f"{name} describes {', '.join(sorted(unknown))}, which {kernel} does not have"


def _counts(found: AllDetails, manifest: Manifest) -> Iterator[str]:
    for kernel in manifest.kernels.values():
        count = sum(len(kernels.get(kernel.name, ())) for kernels in found.values())
        if count != kernel.variants:
            yield f"the details describe {count} variants of {kernel.name}, the manifest says {kernel.variants}"


def header_problems(manifest: Manifest, details: AllDetails) -> Iterator[str]:
    """Headers that are not the ones that follow from the kernels and details."""
    every = (variant for kernels in details.values() for variants in kernels.values() for variant in variants)
    for name, text in header_texts(manifest.name, manifest.kernels, function_kinds(every)).items():
        path = f"include/{name}"
        if path not in manifest.files:
            yield f"{path} is missing"
        elif manifest.files[path] != FileRecord.of(text.encode()):
            yield f"{path} is not the header that follows from the kernels"


def sbom_problems(manifest: Manifest) -> Iterator[str]:
    """An SBOM that does not follow from the toolchain. Wheels have theirs elsewhere."""
    if SBOM not in manifest.files:
        return
    written = sbom_text(manifest.name, manifest.toolchain, manifest.hosts, linked_files(manifest.provenance))
    earlier = sbom_text(manifest.name, manifest.toolchain, manifest.hosts)  # earlier documents name no files
    if manifest.files[SBOM] not in (FileRecord.of(written.encode()), FileRecord.of(earlier.encode())):
        yield f"{SBOM} is not the document that follows from the toolchain"
