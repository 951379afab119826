"""Fatbins as small as the stand-in accepts them: kernel names and an architecture, no code.

For tests that need no compiler. ``layout="old"`` is how CUDA 12 writes cubins up to sm_90, ``"new"`` how it writes later
ones and CUDA 13 writes all.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

__all__ = ["make_fatbin"]

_ELF_HEADER, _SECTION_HEADER = 64, 64
_SUFFIX_FLAGS = {"": 0, "a": 0x100000, "f": 0x200000}


def make_fatbin(arch: str, kernels: Sequence[str], *, layout: str = "new", shared_memory: int = 0) -> bytes:
    """A fatbin for ``arch`` (like ``sm_90a``) whose kernels have that much static shared memory."""
    match = re.fullmatch(r"sm_(\d+)([af]?)", arch)
    if match is None:
        raise ValueError(f"not an architecture: {arch!r}")
    number, suffix = int(match[1]), match[2]
    return _wrap(_cubin(number, kernels, layout, shared_memory), number, _SUFFIX_FLAGS[suffix])


def _wrap(cubin: bytes, number: int, flags: int) -> bytes:
    entry = struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, len(cubin), 0, 0, 8, 1, number, 0, 0, flags | 0x11, 0, 0)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry) + len(cubin)) + entry + cubin


def _cubin(number: int, kernels: Sequence[str], layout: str, shared_memory: int) -> bytes:
    sections = [("", 0)]
    for kernel in kernels:
        sections += [(f".text.{kernel}", 0), (f".nv.shared.{kernel}", shared_memory)]
    return _elf([*sections, (".shstrtab", 0)], number, layout)


def _elf(sections: list[tuple[str, int]], number: int, layout: str) -> bytes:
    """Section headers right after the ELF header, their names at the end; the last section is the names."""
    names = b"".join(name.encode() + b"\0" for name, _ in sections)
    names_at = _ELF_HEADER + _SECTION_HEADER * len(sections)
    headers, name_at = b"", 0
    for name, size in sections:
        headers += struct.pack("<IIQQQQIIQQ", name_at, 1, 0, 0, names_at, size, 0, 0, 1, 0)
        name_at += len(name) + 1
    unpadded = _elf_header(number, layout, len(sections)) + headers + names
    return unpadded + bytes(-len(unpadded) % 8)


def _elf_header(number: int, layout: str, sections: int) -> bytes:
    osabi, flags = (0x33, 0x500 | number | number << 16) if layout == "old" else (0x41, 0x6000002 | number << 8)
    identity = b"\x7fELF" + bytes([2, 1, 1, osabi]) + bytes(8)
    fields = (2, 190, 1, 0, 0, _ELF_HEADER, flags, _ELF_HEADER, 0, 0, _SECTION_HEADER, sections, sections - 1)
    return identity + struct.pack("<HHIQQQIHHHHHH", *fields)
