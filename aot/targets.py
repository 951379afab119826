"""Architectures for the builder: which there are, and the limits of each. How people name them: ``pipeline.spellings``.

The facts are data (``data/archs.json``), because a build machine has no device to ask.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from aot_runtime.arch import Arch, Capability
from aot_runtime.gpus import GPUS, find_gpu

__all__ = [
    "Target",
    "accepted_archs",
    "arch_facts",
    "builds_for",
    "cuda_of_driver",
    "limits_of",
    "lowest_driver",
    "parse_arch",
    "ranked_archs",
    "serves",
]

_PREFERENCE = {"a": 2, "f": 1, "": 0}
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_BLOCK = 65536


@dataclass(frozen=True)
class Target:
    """What a declaration may ask about the architecture it is built for."""

    arch: Arch
    written_for: str  # the architecture whose code serves this one, as the declaration names it: "sm_80"
    shared_memory: int  # bytes one block may use, opt-in included
    max_cluster: int  # in blocks; 1 if this architecture, or the one that the code was written for, has no clusters
    max_threads: int = MAX_THREADS_PER_BLOCK
    max_registers: int = MAX_REGISTERS_PER_BLOCK

    @classmethod
    def of(cls, arch: Arch, written_for: Arch | None = None) -> Target:
        code = written_for or arch
        own, earlier = (limits_of(one.capability) for one in (arch, code))
        return cls(arch, str(code), own["shared_memory"], min(own["max_cluster"], earlier["max_cluster"]))

    @property
    def capability(self) -> Capability:
        return self.arch.capability


@cache
def arch_facts() -> dict[str, Any]:
    """``data/archs.json``, checked."""
    facts: dict[str, Any] = json.loads(files("aot").joinpath("data/archs.json").read_text())
    known = set(facts["accepted"])
    for spelling, arch in facts["spellings"].items():
        assert arch in known, f"{spelling} stands for {arch}, which is not accepted"
    for arch in known:
        assert _dotted(Arch.parse(arch).capability) in facts["capabilities"], f"no limits for {arch}"
    for capability, limits in facts["capabilities"].items():
        unknown = set(limits["driver"].values()) - set(facts["drivers"])
        assert not unknown, f"{capability} names drivers whose CUDA version is not listed: {unknown}"
    return facts


def limits_of(capability: Capability) -> dict[str, Any]:
    """The limits of a block and of a multiprocessor."""
    found: dict[str, Any] = arch_facts()["capabilities"][_dotted(capability)]
    return found


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def accepted_archs() -> tuple[Arch, ...]:
    return tuple(Arch.parse(text) for text in arch_facts()["accepted"])


def parse_arch(text: str) -> Arch | None:
    """One architecture, however it is named: ``sm_90a``, ``sm90``, ``H100``, ``9.0``. A GPU stands for all that it can do.

    What depends on this machine, ``native``, names none.
    """
    facts, gpu = arch_facts(), find_gpu(text)
    dotted = _dotted(GPUS[gpu]) if gpu is not None else text
    short = f"sm{dotted.replace('.', '')}" if dotted.count(".") == 1 else text
    exact = facts["spellings"].get(short, text)
    return Arch.parse(exact) if exact in facts["accepted"] else None


def builds_for(written_for: Iterable[Arch], arch: Arch) -> bool:
    """Whether a kernel written for those architectures can be built for another.

    Code for a portable architecture uses nothing that later ones lack. So sm_80 code can be built as sm_90, and checked
    without a device of compute capability 8.0.
    """
    written_for = tuple(written_for)
    earlier = (own for own in written_for if not own.suffix and own.capability <= arch.capability)
    return arch in written_for or (not arch.suffix and any(earlier))


def serves(written_for: Arch, arch: Arch) -> bool:
    """Whether code that was written for one architecture may be declared for another.

    Each chip has all that portable code uses of an earlier one, and all that code for its family uses.
    """
    if written_for.suffix == "f":
        in_family = arch.major == written_for.major and arch.minor >= written_for.minor
        return written_for == arch or (in_family and arch.suffix != "")
    return written_for == arch or (not written_for.suffix and written_for.capability <= arch.capability)


def ranked_archs(archs: Iterable[Arch], device: Capability) -> list[Arch]:
    """The architectures whose code runs on a device, best first, as ``aot_arch_rank`` in C ranks them."""
    running = [arch for arch in archs if arch.runs_on(device)]
    return sorted(running, key=lambda arch: (_PREFERENCE[arch.suffix], arch.minor), reverse=True)


def lowest_driver(arch: Arch, cuda: int) -> str | None:
    """The lowest driver that runs code of that CUDA backend for ``arch``; None if the backend cannot compile for it."""
    driver: str | None = limits_of(arch.capability)["driver"].get(str(cuda))
    return driver


def cuda_of_driver(driver: str) -> int:
    """The CUDA version that came with a driver of :func:`lowest_driver`, as ``cuDriverGetVersion`` counts: 12080."""
    major, minor = arch_facts()["drivers"][driver].split(".")
    return 1000 * int(major) + 10 * int(minor)
