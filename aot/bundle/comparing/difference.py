"""What differs between two bundles: kernels, signatures, variants, resources, code, sizes, hosts, toolchain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot_runtime.description.kernel_records import KernelRecord

from ...errors import counted
from ..details import VariantDetails, read_details
from ..layout import details_name
from ..manifest import Manifest
from .sizes import shares

__all__ = ["KINDS", "Change", "differences"]

KINDS = ("bundle", "hosts", "toolchain", "kernels", "signatures", "variants", "resources", "selection", "code", "sizes")

_Variants = Mapping[tuple[str, str], VariantDetails]  # by architecture and name


@dataclass(frozen=True)
class Change:
    """One thing that is not the same; None: it is not there."""

    kind: str  # one of the kinds of `diff --only`
    what: str  # what differs: a kernel, a variant, a file, a version
    before: str | None  # null: it is not in the first bundle
    after: str | None  # null: it is not in the second bundle


def differences(a: Path, b: Path) -> Iterator[Change]:
    """Everything in which bundle ``b`` differs from ``a``, in the order of :data:`KINDS`."""
    before, after = Manifest.read(a), Manifest.read(b)
    yield from _facts("bundle", _bundle_facts(before), _bundle_facts(after))
    yield from _facts("hosts", _host_facts(before), _host_facts(after))
    yield from _facts("toolchain", before.toolchain, after.toolchain)
    yield from _facts("kernels", _kernel_facts(before), _kernel_facts(after))
    yield from _signatures(before.kernels, after.kernels)
    yield from _variants(_read_variants(a, before), _read_variants(b, after))
    yield from _facts("sizes", _size_facts(before), _size_facts(after))


def _facts(kind: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for what in {**before, **after}:
        if before.get(what) != after.get(what):
            yield Change(kind, what, before.get(what), after.get(what))


def _bundle_facts(manifest: Manifest) -> dict[str, str]:
    drivers = manifest.requires.get("driver", {})
    complete = "yes" if manifest.complete else f"no, {counted(len(manifest.failures), 'failure')}"
    lowest = {f"lowest driver for {arch}": str(driver) for arch, driver in drivers.items()}
    return {"name": manifest.name, "complete": complete, **lowest}


def _host_facts(manifest: Manifest) -> dict[str, str]:
    return {name: f"glibc >= {record.glibc}, CUDA runtime {record.cudart}" for name, record in manifest.hosts.items()}


def _kernel_facts(manifest: Manifest) -> dict[str, str]:
    return {name: ", ".join(map(str, record.archs)) for name, record in manifest.kernels.items()}


def _signatures(before: Mapping[str, KernelRecord], after: Mapping[str, KernelRecord]) -> Iterator[Change]:
    for name in (name for name in before if name in after):
        yield from _facts("signatures", {name: _signature(before[name])}, {name: _signature(after[name])})


def _signature(kernel: KernelRecord) -> str:
    """What callers write, defaults and the shapes of outputs included."""
    words = [_parameter(parameter) for parameter in kernel.parameters]
    for choice in kernel.choices:
        words.append(f"{choice.name}: {'|'.join(choice.values)}{f' = {choice.default}' if choice.default else ''}")
    return f"({', '.join(words)})"


def _parameter(parameter: Any) -> str:
    text = f"{parameter.name}: {parameter.type}" if parameter.type else str(parameter.name)
    if parameter.has_default:
        text += f" = {parameter.default!r}"
    return f"{text} -> {parameter.dtype}[{parameter.shape}]" if parameter.output else text


def _read_variants(bundle: Path, manifest: Manifest) -> _Variants:
    return {
        (str(arch), variant.name): variant
        for arch in manifest.archs
        for variant in read_details(bundle / details_name(arch))
    }


def _variants(before: _Variants, after: _Variants) -> Iterator[Change]:
    names = {key: f"{key[0]} {key[1]}" for key in {**before, **after}}
    present = [{names[key]: "present" for key in side} for side in (before, after)]
    yield from _facts("variants", *present)
    both = [key for key in before if key in after]
    for key in both:
        yield from _resources(names[key], before[key], after[key])
    for key in both:
        old_calls, new_calls = _requirements(before[key]), _requirements(after[key])
        if old_calls != new_calls:
            yield Change("selection", names[key], *(_only(*pair) for pair in _both_ways(old_calls, new_calls)))
    for key in both:
        old, new = before[key], after[key]
        if old.cubin_sha256 != new.cubin_sha256:
            yield Change("code", names[key], f"{old.cubin_bytes} bytes", f"{new.cubin_bytes} bytes")


def _resources(name: str, before: VariantDetails, after: VariantDetails) -> Iterator[Change]:
    for number in range(max(len(before.launches), len(after.launches))):
        label = name if number == 0 else f"{name} (launch {number + 1})"
        yield from _facts("resources", _resource_facts(label, before, number), _resource_facts(label, after, number))


def _resource_facts(label: str, variant: VariantDetails, number: int) -> dict[str, str]:
    if number >= len(variant.launches):
        return {}
    launch = variant.launches[number]
    dynamic = launch.dynamic_shared_memory
    memory = "at run time" if dynamic is None else str(launch.static_shared_memory + dynamic)
    facts = {"registers": str(launch.registers), "shared memory": memory, "stack": str(launch.local_memory)}
    shapes = {"block": _shape(launch.block), "cluster": _shape(launch.cluster)}
    return {f"{label}: {what}": text for what, text in {**facts, **shapes}.items()}


def _shape(sizes: tuple[int, ...] | None) -> str:
    return "x".join(map(str, sizes)) if sizes else "-"


def _requirements(variant: VariantDetails) -> tuple[str, ...]:
    """What a call must satisfy: calls may be answered by other variants if it changes."""
    return tuple(
        f"{item.operation} {item.label} {item.parameter} in [{item.low}, {item.high}]" for item in variant.requirements
    )


def _both_ways(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    return (a, b), (b, a)


def _only(own: tuple[str, ...], other: tuple[str, ...]) -> str | None:
    return "; ".join(item for item in own if item not in other) or None


def _size_facts(manifest: Manifest) -> dict[str, str]:
    by_purpose: dict[str, int] = {}
    for share in shares(manifest):
        by_purpose[share.purpose] = by_purpose.get(share.purpose, 0) + share.size
    total = sum(by_purpose.values())
    return {**{purpose: f"{size} bytes" for purpose, size in by_purpose.items()}, "all files": f"{total} bytes"}
