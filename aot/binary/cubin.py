"""GPU code inside host files: find the fatbins, read the cubins' own facts.

A fatbin is a 16-byte header and entries; an entry is a header and, in what CuTe DSL writes, a raw ELF file (a
cubin). Where the facts are:

- the SM number and ELF flags differ by ABI version: up to 7 the number is in bits 0-7 and 0x800 means ``a``; from
  8 (Blackwell, and everything that CUDA 13 compiles) the number is in bits 8-15 and 0x8 means ``a``;
- CUDA 13 no longer sets the ``a`` flag: attribute 9 of ``.nv.compat`` says it instead;
- only the fatbin's entry header tells ``f`` from a portable build.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .elf import ElfError, is_data, malformed_is_elf_error, open_elf, read_bytes, section_data

__all__ = ["Cubin", "KernelFacts", "cubins_in_bytes", "cubins_in_library", "cubins_in_llvm_ir", "digests_in_bytes"]

_MAGIC = struct.pack("<I", 0xBA55ED50)
_HEADER = struct.Struct("<IHHQ")  # magic, version, header size, size of the entries
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")  # kind, version, header size, payload size, ..., SM number, ..., flags
_KIND_ELF = 2
_ENTRY_ACCELERATED, _ENTRY_FAMILY = 1 << 20, 1 << 21

_NEW_ABI = 8
_COMPAT_ACCELERATED = 0x09
_MAX_THREADS, _REQUIRED_THREADS, _FRAME_SIZE, _REGISTERS = 0x05, 0x10, 0x11, 0x2F
_ENTRY_POINT = 0x10  # in a symbol's st_other: a kernel, not a device function
_RESERVED_SHARED = 1024  # from 9.0 on, .nv.shared begins with the KB that CUDA keeps for itself

_LLVM_CONSTANT = re.compile(r'\n@[^\n=]{1,4096}= [^\n\["]{0,256}constant \[(\d{1,12}) x i8\] c"([^"\n]*)"')


@dataclass(frozen=True)
class KernelFacts:
    """What the compiler wrote down about one kernel."""

    name: str
    registers: int | None  # per thread
    required_threads: tuple[int, int, int] | None  # the only block shape it may be launched with
    max_threads: int | None  # threads per block that it was compiled for, at most
    static_shared_memory: int  # bytes that the kernel declares, without what CUDA reserves
    stack_bytes: int | None  # per thread in local memory: arrays and spilled registers


@dataclass(frozen=True)
class Cubin:
    """Machine code for one GPU architecture."""

    elf: bytes = field(repr=False)
    sha256: str
    major: int
    minor: int
    suffix: str  # "a", "f" or "", as the fatbin entry says
    kernels: tuple[KernelFacts, ...]

    @property
    def architecture(self) -> str:
        return f"sm_{self.major}{self.minor}{self.suffix}"


def cubins_in_llvm_ir(text: str, *, source: str = "LLVM IR") -> tuple[Cubin, ...]:
    """The cubins in the string constants of a module, in its order."""
    found: list[Cubin] = []
    for length, literal in _LLVM_CONSTANT.findall(f"\n{text}"):
        try:
            data = _unescape(literal)
        except UnicodeDecodeError as error:
            raise ElfError(source, f"holds a constant that LLVM does not write: {error.reason}") from None
        if _MAGIC not in data:
            continue
        if len(data) != int(length):
            raise ElfError(source, f"holds a constant of {len(data)} bytes that is declared with {length}")
        found += cubins_in_bytes(data, source=source)
    return tuple(found)


def _unescape(literal: str) -> bytes:
    # LLVM writes a backslash as two, everything unprintable and the quotation mark as two hexadecimal digits. A codec of
    # Python that knows such digits behind `\\x` takes a twentieth of the time of a pattern.
    raw = literal.encode("utf-8", "surrogateescape")
    return raw.replace(rb"\\", rb"\5C").replace(b"\\", rb"\x").decode("unicode_escape").encode("latin-1")


def cubins_in_library(path: str | os.PathLike[str]) -> tuple[Cubin, ...]:
    """The cubins in the mapped data of a linked library or object, by section and offset; symbols are not needed."""
    data = read_bytes(path)
    with malformed_is_elf_error(path):
        sections = [section_data(s, data) for s in open_elf(data, path).iter_sections() if is_data(s)]
    return tuple(cubin for section in sections for cubin in cubins_in_bytes(section, source=os.fspath(path)))


def cubins_in_bytes(data: bytes, *, source: str = "bytes") -> tuple[Cubin, ...]:
    """The cubins of every fatbin in the bytes, at any alignment."""
    return tuple(
        _cubin(*entry, source) for start, end in _fatbins(data) for entry in _entries(data, start, end, source)
    )


def digests_in_bytes(data: bytes, *, source: str = "bytes") -> set[str]:
    """The digests of the same cubins, without a look inside, which takes most of the time."""
    entries = (entry for start, end in _fatbins(data) for entry in _entries(data, start, end, source))
    return {hashlib.sha256(elf).hexdigest() for elf, _, _ in entries}


def _fatbins(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the entries of each fatbin begin and end; the magic number by itself may be anything."""
    at = data.find(_MAGIC)
    while at >= 0:
        following = at + 1
        if at + _HEADER.size <= len(data):
            _, version, header, size = _HEADER.unpack_from(data, at)
            end = at + header + size
            if version == 1 and header == _HEADER.size and size > 0 and end <= len(data):
                yield at + header, end
                following = end
        at = data.find(_MAGIC, following)


def _entries(data: bytes, at: int, end: int, source: str) -> Iterator[tuple[bytes, int, int]]:
    """The cubins of a fatbin, with the SM number and the flags that it has for each."""
    while at + _ENTRY.size <= end:
        kind, _, header, size, *_, number, _, _, flags = _ENTRY.unpack_from(data, at)
        payload = at + header
        if header < _ENTRY.size or payload + size > end:
            seen = f"{header} + {size} bytes where {end - at} are left"
            raise ElfError(source, f"holds a fatbin entry of {seen}")
        if kind == _KIND_ELF:
            yield data[payload : payload + size], number, flags
        at = payload + size


def _cubin(elf: bytes, number: int, flags: int, source: str) -> Cubin:
    if not elf.startswith(b"\x7fELF"):
        raise ElfError(source, "holds a compressed cubin; only uncompressed ones can be read")
    with malformed_is_elf_error(source):
        return _parse(elf, number, flags, source)


def _parse(data: bytes, number: int, flags: int, source: str) -> Cubin:
    elf = open_elf(data, source)
    if elf["e_machine"] != "EM_CUDA":
        raise ElfError(source, f"holds a fatbin entry for {elf['e_machine']}, not EM_CUDA")
    sm, accelerated = _architecture(elf, data)
    suffix = _suffix(flags)
    if sm != number or (accelerated and suffix != "a"):
        seen = f"sm_{sm}{'a' if accelerated else ''}"
        raise ElfError(source, f"holds a cubin for {seen} in a fatbin entry for sm_{number}{suffix}")
    kernels = tuple(_kernels(elf, data, sm))
    return Cubin(data, hashlib.sha256(data).hexdigest(), sm // 10, sm % 10, suffix, kernels)


def _architecture(elf: Any, data: bytes) -> tuple[int, bool]:
    """The SM number and whether the code is for that chip alone, as far as the ELF file tells."""
    flags = elf["e_flags"]
    if elf["e_ident"]["EI_ABIVERSION"] < _NEW_ABI:
        return flags & 0xFF, bool(flags & 0x800)
    compat = _attributes(_named(elf, data, ".nv.compat"))
    return flags >> 8 & 0xFF, bool(flags & 0x8) or (_COMPAT_ACCELERATED, b"\x01") in compat


def _suffix(entry_flags: int) -> str:
    if entry_flags & _ENTRY_ACCELERATED:
        return "a"
    return "f" if entry_flags & _ENTRY_FAMILY else ""


def _named(elf: Any, data: bytes, name: str) -> bytes:
    section = elf.get_section_by_name(name)
    return b"" if section is None else section_data(section, data)


def _attributes(table: bytes) -> list[tuple[int, bytes]]:
    """Records of .nv.info and .nv.compat: a format, an attribute, and a value of 1 or 2 bytes or behind a length."""
    found, at = [], 0
    while at + 4 <= len(table):
        kind, attribute, length = struct.unpack_from("<BBH", table, at)
        start, size = (at + 4, length) if kind == 4 else (at + 2, 1 if kind == 2 else 2)
        found.append((attribute, table[start : start + size]))
        at = max(at + 4, start + size)
    return found


def _kernels(elf: Any, data: bytes, sm: int) -> Iterator[KernelFacts]:
    per_symbol = _attributes(_named(elf, data, ".nv.info"))
    registers, frames = _by_symbol(per_symbol, _REGISTERS), _by_symbol(per_symbol, _FRAME_SIZE)
    sections = {section.name: section for section in elf.iter_sections()}
    for index, name in _entry_points(elf, data):
        if f".text.{name}" in sections:
            own, shared = sections.get(f".nv.info.{name}"), sections.get(f".nv.shared.{name}")
            launch = _attributes(section_data(own, data) if own is not None else b"")
            required, most = _shape(launch, _REQUIRED_THREADS), _shape(launch, _MAX_THREADS)
            threads = math.prod(required or most or ()) if required or most else None
            size = _static_shared(shared["sh_size"] if shared is not None else 0, sm)
            yield KernelFacts(name, registers.get(index), required, threads, size, frames.get(index))


def _entry_points(elf: Any, data: bytes) -> Iterator[tuple[int, str]]:
    table = elf.get_section_by_name(".symtab")
    if table is None:
        return
    raw = section_data(table, data)
    for index, symbol in enumerate(table.iter_symbols()):
        if raw[index * 24 + 5] & _ENTRY_POINT:  # st_other; pyelftools drops this bit
            yield index, symbol.name


def _static_shared(size: int, sm: int) -> int:
    return max(0, size - _RESERVED_SHARED) if sm >= 90 else size


def _by_symbol(attributes: list[tuple[int, bytes]], wanted: int) -> dict[int, int]:
    pairs = (struct.unpack("<II", value) for attribute, value in attributes if attribute == wanted and len(value) == 8)
    return dict(pairs)


def _shape(attributes: list[tuple[int, bytes]], wanted: int) -> tuple[int, int, int] | None:
    for attribute, value in attributes:
        if attribute == wanted and len(value) == 12:
            x, y, z = struct.unpack("<III", value)
            return x, y, z
    return None
