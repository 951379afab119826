"""Relocatable objects and the archives that hold them: which symbols they define, and objects with other names.

An object file is compiled once, for the shared library; for a static archive its symbols get the bundle's
name. Only names change: a new string table is appended, symbols point into it.

A file is untrusted input here too: every size and offset is measured against the file before it is used, each step
through an archive goes forward, and whatever is wrong ends in one :class:`ObjectError`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..errors import BuildError

__all__ = ["ObjectError", "Symbol", "defined_symbols", "members", "rename_symbols"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _STRTAB, _RELOCATABLE = 2, 3, 1
_LOCAL, _HIDDEN = 0, 2
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60
_MAX_NAME = 16 << 10  # as for libraries: without a limit, names that overlap cost quadratic time
_AR_SIZE = re.compile(rb"(\d{1,10}) *")
_LONG_NAME = re.compile(r"/(\d{1,15})")


class ObjectError(BuildError):
    """Not an object or archive, or a damaged one."""


@dataclass(frozen=True)
class Symbol:
    offset: int  # of its entry in the file
    name: str
    binding: int
    defined: bool


@dataclass(frozen=True)
class _Section:
    header: int  # where its header lies in the file
    kind: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True)
class _Tables:
    symbols: tuple[Symbol, ...]
    strings: bytes
    strings_header: int  # where the section header of the string table lies


def _tables(content: bytes) -> _Tables:
    sections = _sections(content)
    found = next((section for section in sections if section.kind == _SYMTAB), None)
    if found is None:
        raise ObjectError("an object without symbols")
    if found.link >= len(sections) or sections[found.link].kind != _STRTAB:
        raise ObjectError(f"an object whose symbols have their names in section {found.link}, which holds no strings")
    strings = sections[found.link]
    text = _bytes(content, strings)
    symbols = []
    for at, (name, info, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(_bytes(content, found, _SYMBOL.size))):
        offset = found.offset + at * _SYMBOL.size
        symbols.append(Symbol(offset, _text(text, name), info >> 4, section != 0))
    return _Tables(tuple(symbols), text, strings.header)


def _sections(content: bytes) -> list[_Section]:
    if content[:6] != b"\x7fELF\x02\x01" or len(content) < _HEADER.size:
        raise ObjectError("not a 64-bit little-endian ELF object")
    header = _HEADER.unpack_from(content)
    if header[1] != _RELOCATABLE:
        raise ObjectError("not a relocatable object")
    table, entry_size, count = header[6], header[11], header[12]
    if entry_size != _SECTION.size or table + count * entry_size > len(content):
        raise ObjectError(f"an object of {len(content)} bytes with {count} section headers of {entry_size} at {table}")
    found = []
    for start in range(table, table + count * entry_size, entry_size):
        section = _SECTION.unpack_from(content, start)
        found.append(_Section(start, section[1], section[4], section[5], section[6]))
    return found


def _bytes(content: bytes, section: _Section, unit: int = 1) -> bytes:
    if section.offset + section.size > len(content) or section.size % unit:
        raise ObjectError(f"an object of {len(content)} bytes with a section of {section.size} at {section.offset}")
    return content[section.offset : section.offset + section.size]


def _text(strings: bytes, offset: int) -> str:
    end = strings.find(b"\0", offset, offset + _MAX_NAME)
    if end < 0:
        raise ObjectError(f"an object with a name at {offset} that has no end")
    return strings[offset:end].decode("utf-8", "backslashreplace")


def defined_symbols(content: bytes) -> frozenset[str]:
    """The symbols that other objects can refer to."""
    return frozenset(symbol.name for symbol in _tables(content).symbols if symbol.defined and symbol.binding != _LOCAL)


def rename_symbols(content: bytes, names: Mapping[str, str]) -> bytes:
    """The object with those global symbols renamed, references included, and hidden from other libraries."""
    tables = _tables(content)
    strings = bytearray(tables.strings)
    result = bytearray(content)
    for symbol in tables.symbols:
        if symbol.binding == _LOCAL or symbol.name not in names:
            continue
        struct.pack_into("<I", result, symbol.offset, len(strings))
        strings += names[symbol.name].encode() + b"\0"
        if symbol.defined:
            result[symbol.offset + 5] = result[symbol.offset + 5] & ~3 | _HIDDEN
    result += bytes(-len(result) % 8)
    header = list(_SECTION.unpack_from(result, tables.strings_header))
    header[4], header[5] = len(result), len(strings)
    _SECTION.pack_into(result, tables.strings_header, *header)
    return bytes(result + strings)


def members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """The members of an ``ar`` archive by name, without its symbol index."""
    if archive[:8] != _AR_MAGIC:
        raise ObjectError("not an archive")
    at, long_names = 8, b""
    while at < len(archive):
        name, size = _member(archive, at)
        content = archive[at + _AR_HEADER : at + _AR_HEADER + size]
        at += _AR_HEADER + size + size % 2
        if name == "//":
            long_names = content
        elif name not in ("/", "/SYM64/"):
            yield _member_name(name, long_names), content


def _member(archive: bytes, at: int) -> tuple[str, int]:
    """The name and size that a member's header says."""
    header = archive[at : at + _AR_HEADER]
    size = _AR_SIZE.fullmatch(header[48:58])
    if len(header) < _AR_HEADER or header[58:] != b"`\n" or size is None:
        raise ObjectError(f"an archive of {len(archive)} bytes with something at {at} that is no member")
    if at + _AR_HEADER + int(size[1]) > len(archive):
        raise ObjectError(f"an archive of {len(archive)} bytes with a member of {int(size[1])} at {at}")
    return header[:16].decode("utf-8", "backslashreplace").rstrip(), int(size[1])


def _member_name(name: str, long_names: bytes) -> str:
    if not name.startswith("/"):
        return name.rstrip("/")
    start = _LONG_NAME.fullmatch(name)
    end = long_names.find(b"\n", int(start[1]), int(start[1]) + _MAX_NAME) if start is not None else -1
    if start is None or end < 0:
        raise ObjectError(f"an archive with a member whose name is not there: {name!a}")
    return long_names[int(start[1]) : end].decode("utf-8", "backslashreplace").rstrip("/")
