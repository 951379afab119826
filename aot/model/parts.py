"""GPUs as they are sold: what a model has to know of a device that is not there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ..bundle.tables.tuning import TunedDevice
from ..errors import UsageError
from ..records import decode

__all__ = ["Part", "find_part", "known_parts", "named_parts"]

ALIKE = 1.05  # bandwidths that differ by less have one table


@dataclass(frozen=True)
class Part:
    """A GPU, or a slice of one."""

    name: str  # as its driver gives it
    capability: str  # compute capability, such as 9.0
    multiprocessors: int
    bandwidth: int  # of memory, in GB/s
    clock: int  # of the multiprocessors, in MHz
    rate: float = 1.0  # of the tensor cores, as a share of what the architecture has

    @property
    def device(self) -> TunedDevice:
        return TunedDevice(self.name, self.multiprocessors, self.capability, self.bandwidth)

    def is_like(self, other: Part) -> bool:
        """Whether a table for the one is a table for the other."""
        low, high = sorted((self.bandwidth, other.bandwidth))
        same = (self.capability, self.multiprocessors, self.rate)
        return same == (other.capability, other.multiprocessors, other.rate) and high < ALIKE * low


@cache
def known_parts() -> tuple[Part, ...]:
    data = json.loads(files("aot").joinpath("data/parts.json").read_text())
    return tuple(decode(Part, part) for part in data["parts"])


def find_part(text: str) -> Part | None:
    """The part that is meant by ``H100 PCIe``, or by a compute capability, of which the first stands for all."""
    words = set(text.lower().removeprefix("nvidia ").split())
    matching = (part for part in known_parts() if text == part.capability or words <= set(part.name.lower().split()))
    return next(matching, None)


def named_parts(names: Sequence[str], capability: str) -> list[Part]:
    """The parts of these names, or all of a compute capability: one of those that are alike, the first."""
    known = [part for part in known_parts() if part.capability == capability]
    missing = [name for name in names if name not in {part.name for part in known}]
    if missing:
        listed = ", ".join(part.name for part in known)
        raise UsageError(f"not a known GPU of compute capability {capability}: {missing[0]!r}", hint=f"known: {listed}")
    found: list[Part] = []
    for part in known:
        if (not names or part.name in names) and not any(part.is_like(other) for other in found):
            found.append(part)
    return found
