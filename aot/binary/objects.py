"""Giving the symbols of our own object files other names, so that several bundles link into one binary.

An object file is compiled once, for the shared library; for a static archive its symbols get the bundle's
name. Only names change: a new string table is appended, symbols point into it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..errors import BuildError

__all__ = ["Symbol", "defined_symbols", "members", "rename_symbols"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _RELOCATABLE = 2, 1
_LOCAL, _HIDDEN = 0, 2
_AR_MAGIC = b"!<arch>\n"


@dataclass(frozen=True)
class Symbol:
    offset: int  # of its entry in the file
    name: str
    binding: int
    defined: bool


@dataclass(frozen=True)
class _Tables:
    symbols: tuple[Symbol, ...]
    strings: bytes
    strings_header: int  # where the section header of the string table lies


def _tables(content: bytes) -> _Tables:
    if content[:6] != b"\x7fELF\x02\x01" or len(content) < _HEADER.size:
        raise BuildError("not a 64-bit little-endian ELF object")
    header = _HEADER.unpack_from(content)
    if header[1] != _RELOCATABLE:
        raise BuildError("not a relocatable object")
    table, entry_size, count = header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(content, table + i * entry_size) for i in range(count)]
    found = next((section for section in sections if section[1] == _SYMTAB), None)
    if found is None:
        raise BuildError("an object without symbols")
    strings_section = sections[found[6]]
    strings = content[strings_section[4] : strings_section[4] + strings_section[5]]
    symbols = []
    for offset in range(found[4], found[4] + found[5], _SYMBOL.size):
        name, info, _, section, _, _ = _SYMBOL.unpack_from(content, offset)
        symbols.append(Symbol(offset, _text(strings, name), info >> 4, section != 0))
    return _Tables(tuple(symbols), strings, table + found[6] * entry_size)


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()


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
        raise BuildError("not an archive")
    at, long_names = 8, b""
    while at + 60 <= len(archive):
        name = archive[at : at + 16].decode().rstrip()
        size = int(archive[at + 48 : at + 58])
        content = archive[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
        if name == "//":
            long_names = content
        elif name not in ("/", "/SYM64/"):
            if name.startswith("/"):
                start = int(name[1:])
                name = long_names[start : long_names.index(b"\n", start)].decode()
            yield name.rstrip("/"), content
