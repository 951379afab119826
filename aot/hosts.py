"""Hosts: the CPU and C library that a bundle's native code runs on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from aot_runtime.description.records import HostRecord

from .errors import UsageError

__all__ = ["CPUS", "DEFAULT_GLIBC", "Host", "available_cores", "parse_glibc", "parse_hosts"]

CPUS = ("x86_64", "aarch64")
DEFAULT_GLIBC = (2, 28)
LOWEST_GLIBC = (2, 17)
HIGHEST_GLIBC = (2, 44)  # the newest that zig knows; zig silently uses it for newer ones
_SPELLINGS = {"amd64": "x86_64", "arm64": "aarch64"}
# The head of an LLVM module for each host.
_DATA_LAYOUTS = {
    "x86_64": "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128",
    "aarch64": "e-m:e-p270:32:32-p271:32:32-p272:64:64-i8:8:32-i16:16:32-i64:64-i128:128-n32:64-S128-Fn32",
}


@dataclass(frozen=True, order=True)
class Host:
    """``x86_64-linux-gnu`` with the lowest glibc it must run on."""

    cpu: str
    glibc: tuple[int, int] = DEFAULT_GLIBC

    @classmethod
    def native(cls, glibc: tuple[int, int] = DEFAULT_GLIBC) -> Host:
        return cls.parse(platform.machine(), glibc)

    @classmethod
    def parse(cls, text: str, glibc: tuple[int, int] = DEFAULT_GLIBC) -> Host:
        cpu = text.removesuffix("-linux-gnu")
        cpu = _SPELLINGS.get(cpu, cpu)
        if cpu not in CPUS:
            close = get_close_matches(text, [*CPUS, *_SPELLINGS], n=1, cutoff=0.6)
            start = f"did you mean `{close[0]}`? known: " if close else "known: "
            raise UsageError(f"unknown host: {text!r}", hint=f"{start}{', '.join(CPUS)}, all")
        if not LOWEST_GLIBC <= glibc <= HIGHEST_GLIBC:
            known = " to ".join(f"{major}.{minor}" for major, minor in (LOWEST_GLIBC, HIGHEST_GLIBC))
            wrong = "too old" if glibc < LOWEST_GLIBC else "not known"
            raise UsageError(f"glibc {glibc[0]}.{glibc[1]} is {wrong}", hint=f"{known} are supported")
        return cls(cpu, glibc)

    @classmethod
    def of_record(cls, name: str, record: HostRecord) -> Host:
        """The host that a bundle was built for, from its record in the manifest."""
        return cls.parse(name, parse_glibc(record.glibc))

    @property
    def name(self) -> str:
        return f"{self.cpu}-linux-gnu"

    @property
    def glibc_text(self) -> str:
        return f"{self.glibc[0]}.{self.glibc[1]}"

    @property
    def zig_target(self) -> str:
        return f"{self.name}.{self.glibc_text}"

    @property
    def llvm_triple(self) -> str:
        return f"{self.cpu}-unknown-linux-gnu"

    @property
    def llvm_data_layout(self) -> str:
        return _DATA_LAYOUTS[self.cpu]

    def __str__(self) -> str:
        return self.name


def parse_glibc(text: str) -> tuple[int, int]:
    """``"2.28"`` -> ``(2, 28)``."""
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", text)
    if match is None:
        raise UsageError(f"not a glibc version: {text!r}", hint="write it like 2.28")
    return int(match[1]), int(match[2])


def parse_hosts(texts: Iterable[str], glibc: tuple[int, int]) -> tuple[Host, ...]:
    """``["x86_64", "all"]`` -> hosts, each once; an empty list -> the native host."""
    hosts: dict[Host, None] = {}
    for text in (part.strip() for item in texts for part in item.split(",")):
        names = CPUS if text == "all" else (text,)
        hosts.update({Host.parse(name, glibc): None for name in names})
    return tuple(hosts) or (Host.native(glibc),)


def available_cores() -> int:
    """Cores that this process may use: a container, a scheduler or `taskset` may grant fewer than the machine has."""
    return len(os.sched_getaffinity(0))
