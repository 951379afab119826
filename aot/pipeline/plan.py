"""The plan of a build: which variants of which kernels are compiled for which architectures, and their keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aot_runtime.arch import Arch
from aot_runtime.description.records import is_name

from ..cache.entries import EntryError, read_shared
from ..compile.messages import KernelInfo, KernelSources, VariantInfo

__all__ = ["KernelPlan", "Plan", "read_plan"]


@dataclass(frozen=True)
class KernelPlan:
    """One kernel for one architecture: its variants, and the key of each."""

    info: KernelInfo
    arch: Arch
    variants: tuple[VariantInfo, ...]
    keys: tuple[str, ...]
    sources: KernelSources = field(default_factory=KernelSources)
    left_out: tuple[str, ...] = ()  # variants that only `--tilings all` builds


@dataclass(frozen=True)
class Plan:
    """All that a source gives for a request; ``cuda`` is the backend that was loaded."""

    cuda: int
    kernels: tuple[KernelPlan, ...]
    declared: Mapping[str, tuple[Arch, ...]] = field(default_factory=dict)  # every kernel -> what it is written for


def read_plan(content: bytes) -> Plan:
    """A plan out of an entry of the cache. Kernels and variants give files their names, and contracts are copied."""
    plan = read_shared(Plan, content)
    for kernel in plan.kernels:
        if len(kernel.variants) != len(kernel.keys):
            raise EntryError(f"{kernel.info.name} has {len(kernel.variants)} variants and {len(kernel.keys)} keys")
        names = (kernel.info.name, *(variant.table.name for variant in kernel.variants))
        if wrong := [name for name in names if not is_name(name)]:
            raise EntryError(f"{wrong[0][:80]!a} is not the name of a kernel or variant")
        if kernel.info.contract and not kernel.info.contract.endswith(".py"):
            raise EntryError(f"the contract of {kernel.info.name} is no file of Python: {kernel.info.contract[:80]!a}")
    return plan
