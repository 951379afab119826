"""How people name architectures: ``sm90``, ``sm_90a``, the name of a GPU, a compute capability, ``native``, ``all``.

``sm_90a`` is exact. A GPU such as ``H100``, or a compute capability such as ``9.0``, stands for the best code that the
kernels at hand can be built for and that runs there. ``native`` is the GPU of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from aot_runtime.arch import Arch, ArchError, Capability
from aot_runtime.gpus import GPUS, NATIVE, find_gpu, native_capability

from ..errors import UsageError
from ..targets import accepted_archs, arch_facts, builds_for, ranked_archs

__all__ = ["ALL", "Gpu", "Wanted", "best_arch", "built_archs", "exact_archs", "parse_archs", "parse_wanted", "targets"]

ALL = "all"
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)")


@dataclass(frozen=True)
class Gpu:
    """A device to build for, as it was named."""

    text: str
    capability: Capability

    def __str__(self) -> str:
        number = "{}.{}".format(*self.capability)
        return f"compute capability {number}" if self.text == number else f"{self.text} (compute capability {number})"


Wanted = Arch | Gpu | str  # the only string is ``all``


def parse_archs(texts: Iterable[str], available: Collection[Arch]) -> tuple[Arch, ...]:
    """``["sm90,sm_80"]`` -> exact architectures, in order, each once; ``all`` -> all that are available.

    A GPU stands for the best of the available architectures. If none is given, it stands for all that the chip can do.
    """
    return exact_archs(parse_wanted(texts), available)


def exact_archs(wanted: Iterable[Wanted], available: Collection[Arch] = ()) -> tuple[Arch, ...]:
    """The same for what is parsed already."""
    return tuple(dict.fromkeys(arch for one in wanted for arch in _exact(one, available)))


def targets(wanted: Iterable[Wanted], written_for: Mapping[str, Collection[Arch]]) -> dict[Arch, set[str]]:
    """The kernels to build for each architecture, in the order in which these are wanted.

    ``written_for`` says what each kernel is written for.
    """
    found: dict[Arch, set[str]] = {}
    for one in wanted:
        own = _built_for(one, written_for)
        if not any(own.values()):
            known = sorted({arch for archs in written_for.values() for arch in archs})
            raise UsageError(
                f"no kernel is written for {one}", hint="they are written for " + ", ".join(map(str, known))
            )
        for arch, names in own.items():
            found.setdefault(arch, set()).update(names)
    return found


def _built_for(wanted: Wanted, written_for: Mapping[str, Collection[Arch]]) -> dict[Arch, set[str]]:
    """The kernels that one word of ``--arch`` selects, by the architecture to build them for."""
    if isinstance(wanted, Gpu):
        found: dict[Arch, set[str]] = {}
        for name, archs in written_for.items():
            best = best_arch(archs, wanted.capability)
            if best is not None:
                found.setdefault(best, set()).add(name)
        return found
    every = sorted({arch for archs in written_for.values() for arch in archs})
    return {
        arch: {name for name, archs in written_for.items() if builds_for(archs, arch)}
        for arch in ([wanted] if isinstance(wanted, Arch) else every)
    }


def _exact(wanted: Wanted, available: Collection[Arch]) -> list[Arch]:
    if isinstance(wanted, Arch):
        return [wanted]
    if not isinstance(wanted, Gpu):
        return sorted(available)
    best = best_arch(available, wanted.capability) if available else _full_arch(wanted.capability)
    if best is None:
        there = f"there are: {', '.join(map(str, sorted(available)))}" if available else None
        raise ArchError(f"nothing runs on {wanted}", hint=there)
    return [best]


def built_archs(wanted: Wanted, built: Collection[Arch]) -> list[Arch]:
    """The architectures of a bundle that are named; a GPU stands for all that run on it."""
    if isinstance(wanted, Gpu):
        found = [arch for arch in sorted(built) if arch.runs_on(wanted.capability)]
    else:
        found = [arch for arch in _exact(wanted, built) if arch in built]
    if not found:
        raise ArchError(f"the bundle has no code for {wanted}", hint=f"it has {', '.join(map(str, sorted(built)))}")
    return found


def parse_wanted(texts: Iterable[Wanted]) -> tuple[Wanted, ...]:
    """What ``--arch`` names, in order; comma lists are taken apart, and values stay."""
    parts = [part for item in texts for part in (item.split(",") if isinstance(item, str) else (item,))]
    return tuple(_parse(part.strip()) if isinstance(part, str) else part for part in parts)


def best_arch(written_for: Collection[Arch], device: Capability) -> Arch | None:
    """The architecture to build a kernel for, so that the device runs the best of it; None if it cannot run there."""
    running = ranked_archs(written_for, device)
    if running:
        return running[0]
    portable = [arch for arch in accepted_archs() if not arch.suffix and arch.runs_on(device)]
    buildable = [arch for arch in portable if builds_for(written_for, arch)]
    return max(buildable, default=None, key=lambda arch: arch.minor)


def _full_arch(device: Capability) -> Arch | None:
    return best_arch([Arch.parse(text) for text in arch_facts()["spellings"].values()], device)


def _parse(text: str) -> Wanted:
    facts = arch_facts()
    exact = facts["spellings"].get(text, text)
    if exact in facts["accepted"]:
        return Arch.parse(exact)
    if text == ALL:
        return ALL
    gpu = _parse_gpu(text)
    if gpu is None:
        raise ArchError(f"unknown architecture: {text!r}", hint=_hint(text))
    oldest = min(accepted_archs()).capability
    if gpu.capability < oldest:
        raise ArchError(
            f"CuTe DSL cannot compile for {gpu}", hint="the oldest is compute capability {}.{}".format(*oldest)
        )
    if _full_arch(gpu.capability) is None:
        raise ArchError(f"CuTe DSL cannot compile for {gpu}", hint=f"known: {_known()}")
    return gpu


def _parse_gpu(text: str) -> Gpu | None:
    """``NVIDIA H100 80GB HBM3``, ``rtx4090``, ``9.0``, ``native`` -> the GPU."""
    if text == NATIVE:  # by its number: what is remembered holds elsewhere, too
        text = "{}.{}".format(*native_capability())
    number = _CAPABILITY.fullmatch(text)
    if number is not None:
        return Gpu(text, (int(number[1]), int(number[2])))
    name = find_gpu(text)
    return Gpu(name, GPUS[name]) if name is not None else None


def _bare(name: str) -> str:
    return name.upper().replace(" ", "")


@cache
def _known() -> str:
    facts = arch_facts()
    gpus = [name for name, capability in GPUS.items() if "{}.{}".format(*capability) in facts["capabilities"]]
    return ", ".join([*facts["spellings"], *facts["accepted"], ALL, NATIVE, *gpus])


def _hint(text: str) -> str:
    family = arch_facts()["families"].get(text.lower(), "").replace(".", "")
    number = re.fullmatch(r"(?:sm|compute)?[\s_-]*(\d{2,3})([a-z]?)", family or text.lower())
    if number is not None and int(number[1]) < 80:
        return f"CuTe DSL cannot compile for compute capabilities below 8.0; known: {_known()}"
    meant = _numbered(number[1], number[2]) if number is not None else _near(text.lower())
    return f"did you mean `{meant}`? known: {_known()}" if meant else f"known: {_known()}"


def _numbered(digits: str, suffix: str) -> str | None:
    """The name nearest to ``sm_<digits><suffix>``: that number if there is one, else the one below it."""
    facts = arch_facts()
    if f"sm{digits}" in facts["spellings"]:
        full = str(facts["spellings"][f"sm{digits}"])
        exact = f"sm_{digits}{suffix}"
        return (exact if exact in facts["accepted"] else full) if suffix else f"sm{digits}"
    below = [text for text in facts["spellings"] if int(text[2:]) < int(digits)]
    return max(below, key=lambda text: int(text[2:]), default=None)


def _near(text: str) -> str | None:
    """The name that is written most like a text, if one is."""
    facts = arch_facts()
    names = {name: name for name in facts["spellings"]} | {_bare(name).lower(): name for name in GPUS}
    close = get_close_matches(text.replace(" ", ""), names, n=1, cutoff=0.7)
    return names[close[0]] if close else None
