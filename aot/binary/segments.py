"""What a loader maps of a library, and whether the sections describe it: tools read sections, loaders read segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Segment", "Stretch", "code_outside", "misplaced", "names_of_tags", "offset_of"]

_X, _W = 1, 2
_PAGE = 4096
_PADDING = 64  # bytes of zeros between two sections: no section of code is aligned to more


@dataclass(frozen=True)
class Segment:
    """A stretch of the file that is mapped to memory."""

    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int
    alignment: int

    @property
    def executable(self) -> bool:
        return bool(self.flags & _X)

    @property
    def writable(self) -> bool:
        return bool(self.flags & _W)


@dataclass(frozen=True)
class Stretch:
    """A section: where it says that its bytes lie in memory and in the file."""

    address: int
    offset: int
    size: int


def misplaced(segments: Sequence[Segment]) -> str | None:
    """Why these segments cannot be read with certainty: one that shares pages with another would hide part of it."""
    for segment in segments:
        if segment.alignment < _PAGE or segment.alignment & (segment.alignment - 1):
            return f"has a segment that is aligned to {segment.alignment} bytes"
        if segment.file_size > segment.memory_size:
            return f"has a segment of {segment.file_size} bytes in the file and {segment.memory_size} in memory"
        if (segment.address - segment.offset) % segment.alignment:
            return f"has a segment at {segment.address:#x} that cannot be mapped from {segment.offset:#x} of the file"
    for before, after in pairwise(segments):
        end = before.address + before.memory_size
        if after.address // after.alignment * after.alignment < -(-end // _PAGE) * _PAGE:
            return f"has segments that share pages: one ends at {end:#x}, the next begins at {after.address:#x}"
    return None


def offset_of(segments: Iterable[Segment], address: int, size: int = 1) -> int | None:
    """Where in the file the bytes lie that are mapped to an address; None if they are not all mapped."""
    for segment in segments:
        if segment.address <= address and address + size <= segment.address + segment.file_size:
            return address - segment.address + segment.offset
    return None


def code_outside(segments: Iterable[Segment], sections: Sequence[Stretch], data: bytes) -> tuple[tuple[int, int], ...]:
    """Ranges of executable addresses that lie in no section. Padding between sections does not count."""
    found = []
    for segment in (segment for segment in segments if segment.executable):
        at, end = segment.address, segment.address + segment.memory_size
        for section in sorted(sections, key=lambda section: section.address):
            if not _lies_in(section, segment):
                continue
            if not _is_padding(data, segment, at, section.address):
                found.append((at, section.address))
            at = max(at, section.address + section.size)
        if at < end:
            found.append((at, end))
    return tuple(found)


def _lies_in(section: Stretch, segment: Segment) -> bool:
    """Whether the section is part of the segment, with the bytes that the segment maps there."""
    inside = section.address - segment.address
    return 0 <= inside <= inside + section.size <= segment.file_size and section.offset - segment.offset == inside


def _is_padding(data: bytes, segment: Segment, start: int, end: int) -> bool:
    first = start - segment.address + segment.offset
    gap = data[first : first + max(0, end - start)]
    return len(gap) < _PADDING and not any(gap)


_TAGS = {
    1: "NEEDED", 2: "PLTRELSZ", 3: "PLTGOT", 4: "HASH", 5: "STRTAB", 6: "SYMTAB", 7: "RELA", 8: "RELASZ", 9: "RELAENT",
    10: "STRSZ", 11: "SYMENT", 12: "INIT", 13: "FINI", 14: "SONAME", 15: "RPATH", 16: "SYMBOLIC", 17: "REL",
    18: "RELSZ", 19: "RELENT", 20: "PLTREL", 21: "DEBUG", 22: "TEXTREL", 23: "JMPREL", 24: "BIND_NOW",
    25: "INIT_ARRAY", 26: "FINI_ARRAY", 27: "INIT_ARRAYSZ", 28: "FINI_ARRAYSZ", 29: "RUNPATH", 30: "FLAGS",
    32: "PREINIT_ARRAY", 33: "PREINIT_ARRAYSZ", 35: "RELRSZ", 36: "RELR", 37: "RELRENT", 0x6FFFFEF5: "GNU_HASH",
    0x6FFFFEFA: "CONFIG", 0x6FFFFEFB: "DEPAUDIT", 0x6FFFFEFC: "AUDIT", 0x6FFFFFF0: "VERSYM", 0x6FFFFFF9: "RELACOUNT",
    0x6FFFFFFA: "RELCOUNT", 0x6FFFFFFB: "FLAGS_1", 0x6FFFFFFC: "VERDEF", 0x6FFFFFFD: "VERDEFNUM",
    0x6FFFFFFE: "VERNEED", 0x6FFFFFFF: "VERNEEDNUM", 0x7FFFFFFD: "AUXILIARY", 0x7FFFFFFF: "FILTER",
}  # fmt: skip
_FLAGS = {
    "FLAGS": ("ORIGIN", "SYMBOLIC", "TEXTREL", "BIND_NOW", "STATIC_TLS"),
    "FLAGS_1": (
        "NOW", "GLOBAL", "GROUP", "NODELETE", "LOADFLTR", "INITFIRST", "NOOPEN", "ORIGIN", "DIRECT", "TRANS", "INTERPOSE",
        "NODEFLIB", "NODUMP", "CONFALT", "ENDFILTEE", "DISPRELDNE", "DISPRELPND", "NODIRECT", "IGNMULDEF", "NOKSYMS",
        "NOHDR", "EDITED", "NORELOC", "SYMINTPOSE", "GLOBAUDIT", "SINGLETON", "STUB", "PIE",
    ),
}  # fmt: skip


def names_of_tags(tags: Iterable[tuple[int, int]]) -> tuple[str, ...]:
    """What the dynamic segment holds, by name; flags as ``FLAGS_1.NOW``, what has no name by its number."""
    found = set()
    for tag, value in tags:
        name = _TAGS.get(tag, hex(tag))
        if name not in _FLAGS:
            found.add(name)
            continue
        for bit in range(64):
            if value >> bit & 1:
                named = _FLAGS[name][bit : bit + 1]
                found.add(f"{name}.{named[0] if named else hex(1 << bit)}")
    return tuple(sorted(found))
