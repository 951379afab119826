"""What a device of each architecture reports, for code that asks a GPU while it is traced.

The facts are data (``data/devices.json``): one model per compute capability. Libraries that read the architecture
from variables of their own are data there too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from aot_runtime.arch import Arch, Capability

from ...targets import Target, limits_of

__all__ = ["Device", "library_variables", "names_of_library_variables"]


@dataclass(frozen=True)
class Device:
    """A model that stands for all devices of its compute capability."""

    capability: Capability
    model: str
    multiprocessors: int
    l2_cache: int  # bytes
    shared_memory: int  # bytes that one block may use, opt-in included
    shared_memory_per_multiprocessor: int  # bytes
    memory: int  # bytes
    proven: bool  # whether these numbers were compared with a device

    @classmethod
    def of(cls, arch: Arch) -> Device:
        name = ".".join(map(str, arch.capability))
        facts = _facts()["devices"][name]
        shared_memory, proven = Target.of(arch).shared_memory, name in _facts()["proven"]
        return cls(arch.capability, shared_memory=shared_memory, proven=proven, **facts)

    @property
    def threads_per_multiprocessor(self) -> int:
        return int(limits_of(self.capability)["sm"]["threads"])

    def active_clusters(self, blocks: int) -> int:
        """How many clusters of that many blocks run at once if each block fills a multiprocessor, at most.

        Clusters do not cross groups of multiprocessors, whose sizes differ between single devices of one model. So a
        device may run a few less.
        """
        return self.multiprocessors // blocks


@cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(files("aot").joinpath("data/devices.json").read_text())
    return facts


def names_of_library_variables() -> frozenset[str]:
    """Environment variables from which libraries learn the architecture, or how to cache."""
    return frozenset(_facts()["variables"])


def library_variables(arch: Arch) -> dict[str, str]:
    """What those variables hold for an architecture."""
    device = Device.of(arch)
    major, minor = device.capability
    words = {"major": major, "minor": minor, "multiprocessors": device.multiprocessors}
    return {name: text.format(**words) for name, text in _facts()["variables"].items()}
