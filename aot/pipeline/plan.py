"""The plan of a build: which variants of which kernels are compiled for which architectures, and their keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aot_runtime.arch import Arch

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
    """A plan out of an entry of the cache."""
    plan = read_shared(Plan, content)
    for kernel in plan.kernels:
        if len(kernel.variants) != len(kernel.keys):
            raise EntryError(f"{kernel.info.name} has {len(kernel.variants)} variants and {len(kernel.keys)} keys")
    return plan
