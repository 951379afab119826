"""Checking a bundle's static archives: all there, every kernel in them, no symbol that could clash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from aot_runtime.arch import Arch
from aot_runtime.description.records import HostRecord

from ...binary.cubin import digests_in_bytes
from ...binary.elf import ElfError, read_bytes
from ...binary.objects import ObjectError, defined_symbols, members
from ..details import VariantDetails
from ..layout import anchor_symbol, archive_names, call_symbol, kernel_symbol
from ..manifest import Manifest
from .agreement import AllDetails

__all__ = ["archive_problems"]


def archive_problems(
    bundle: Path, manifest: Manifest, host: str, record: HostRecord, details: AllDetails
) -> Iterator[str]:
    """Sentences about what is wrong; none if the bundle was built without archives."""
    folder = f"lib/{host}/"
    present = {name for name in manifest.files if name.startswith(folder) and name.endswith(".a")}
    if not present:
        return
    expected = {
        folder + name for name in archive_names(manifest.name, manifest.archs, cudart=record.cudart == "static")
    }
    yield from (f"{name} is missing, though other archives are there" for name in sorted(expected - present))
    yield from (f"{name} is an archive of nothing that the manifest names" for name in sorted(present - expected))
    functions = [name for kernel in manifest.kernels.values() for name in kernel.functions]
    entry = [f"aot_{manifest.name}_core", f"aot_{manifest.name}_interface"]
    wanted = {f"lib{manifest.name}.a": {*entry, *(call_symbol(manifest.name, name) for name in functions)}}
    wanted |= {f"lib{manifest.name}_{arch}.a": _kernel_symbols(manifest, arch) for arch in manifest.archs}
    for name, symbols in wanted.items():
        if folder + name in present & expected:
            yield from _contents(bundle / folder / name, folder + name, manifest.name, symbols)
    for arch, kernels in details.items():
        name = f"{folder}lib{manifest.name}_{arch}.a"
        if name in present & expected:
            yield from _code_problems(bundle / name, name, (one for variants in kernels.values() for one in variants))


def _code_problems(path: Path, name: str, variants: Iterable[VariantDetails]) -> Iterator[str]:
    """An archive holds the GPU code of the libraries, which the details name."""
    try:
        found = set().union(*(digests_in_bytes(content, source=name) for _, content in members(read_bytes(path))))
    except (ElfError, ObjectError):
        return  # told above
    expected = {digest for variant in variants for digest in variant.cubin_sha256}
    if found != expected:
        yield f"{name} does not hold the GPU code of the libraries: {len(found ^ expected)} cubins differ"


def _kernel_symbols(manifest: Manifest, arch: Arch) -> set[str]:
    kernels = [kernel.name for kernel in manifest.kernels.values() if arch in kernel.archs]
    return {anchor_symbol(manifest.name, arch), *(kernel_symbol(manifest.name, name, arch) for name in kernels)}


def _contents(path: Path, name: str, bundle: str, wanted: set[str]) -> Iterator[str]:
    try:
        defined = [symbol for _, content in members(read_bytes(path)) for symbol in defined_symbols(content)]
    except (ElfError, ObjectError) as error:
        yield f"{name} cannot be read: {error.message}"
        return
    foreign = [symbol for symbol in defined if not symbol.startswith(f"aot_{bundle}_")]
    if foreign:
        yield f"{name} defines {', '.join(sorted(foreign)[:5])}, which other bundles may define too"
    yield from (f"{name} lacks {symbol}" for symbol in sorted(wanted - set(defined)))
    if len(set(defined)) != len(defined):
        yield f"{name} defines a symbol twice"
