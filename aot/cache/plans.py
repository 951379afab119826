"""What a source declared, remembered with the files that it came from.

Where none of these changed, a build is decided without importing the kernels or CuTe DSL. What is
compared are contents, never times: clocks jump.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch

from ..compile.closure import python_files
from ..compile.messages import Closure, KernelInfo, Options, VariantInfo
from ..files import sha256_of
from ..records import decode, encode
from . import keys
from .store import Store

__all__ = ["KernelPlan", "Outline", "Plan", "Request", "recall", "remember", "unchanged"]


@dataclass(frozen=True)
class Request:
    """What a build asks of a source, and who asks."""

    source: str
    archs: tuple[str, ...]
    select: tuple[str, ...]
    options: Options

    def key(self) -> str:
        place = str(Path(self.source).resolve()) if Path(self.source).exists() else f"module {self.source}"
        return keys.digest_of([
            place, self.archs, self.select, encode(self.options), keys.python_version(), keys.ourselves(),
            keys.cutlass_distributions(),
        ])  # fmt: skip


@dataclass(frozen=True)
class KernelPlan:
    """One kernel for one architecture: its variants, and the key of each."""

    info: KernelInfo
    arch: Arch
    variants: tuple[VariantInfo, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All that a source gives for a request; ``cuda`` is the backend that was loaded."""

    cuda: int
    kernels: tuple[KernelPlan, ...]


@dataclass(frozen=True)
class Outline:
    """What tells one plan from another, without its thousands of variants."""

    digest: str
    cuda: int
    contracts: Mapping[str, str]  # kernel -> the file that its checks are in


def remember(store: Store, request: Request, plan: Plan, closures: Sequence[Closure]) -> Outline:
    """Keep a plan and what it depends on."""
    data = encode(plan)
    contracts = {kernel.info.name: kernel.info.contract for kernel in plan.kernels if kernel.info.contract}
    outline = Outline(keys.digest_of(data), plan.cuda, contracts)
    store.put_json("plans", outline.digest, data)
    watched = [_watched(closure) for closure in closures]
    store.put_json("sources", request.key(), {"plan": encode(outline), "closures": watched})
    return outline


def _watched(closure: Closure) -> dict[str, Any]:
    return {
        "files": dict(closure.files),
        "folders": {folder: list(names) for folder, names in closure.folders.items()},
        "environment": dict(closure.environment),
        "distributions": dict(closure.distributions),
    }


def unchanged(store: Store, request: Request) -> Outline | None:
    """The plan that holds for a request, if one is remembered and nothing it came from changed."""
    record = store.get_json("sources", request.key())
    if not isinstance(record, dict) or not all(_holds(closure) for closure in record["closures"]):
        return None
    return decode(Outline, record["plan"])


def recall(store: Store, outline: Outline) -> Plan | None:
    data = store.get_json("plans", outline.digest)
    return decode(Plan, data) if data is not None else None


def _holds(closure: Mapping[str, Any]) -> bool:
    return (
        all(os.environ.get(name) == value for name, value in closure["environment"].items())
        and all(list(python_files(folder)) == names for folder, names in closure["folders"].items())
        and all(_version(name) == version for name, version in closure["distributions"].items())
        and all(_digest(path) == digest for path, digest in closure["files"].items())
    )


def _digest(path: str) -> str | None:
    try:
        return sha256_of(Path(path))
    except OSError:
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
