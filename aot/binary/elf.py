"""Shared libraries, read and never executed.

A file is untrusted input. Every table is measured against the file before it is walked, so that a truncated or
hostile file costs no more than time and memory in proportion to its size, and ends in one ``ElfError``.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aot_runtime.errors import AotError
from elftools.elf.elffile import ELFFile

from .segments import Segment, Stretch, code_outside, misplaced, names_of_tags, offset_of

__all__ = [
    "CodeSection",
    "ElfError",
    "Function",
    "SharedLibrary",
    "Symbol",
    "UndefinedSymbol",
    "read_bytes",
    "read_shared_library",
]

_MAX_FILE = 1 << 30
_MAX_NAME = 16 << 10  # mangled C++ names reach a few KB; without a limit, overlapping names cost quadratic time
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_SYMBOL_BYTES = 24
_SYMBOL = struct.Struct("<IBBHQQ")  # name, bind and type, visibility, section, value, size
_LOCAL, _GLOBAL, _WEAK, _UNIQUE = 0, 1, 2, 10  # binds
_TYPES = {0: "notype", 1: "object", 2: "func", 3: "section", 4: "file", 5: "common", 6: "tls", 10: "ifunc"}
_DEFAULT, _PROTECTED = 0, 3  # visibilities
_SHF_ALLOC, _SHF_EXECINSTR, _SHF_COMPRESSED = 0x2, 0x4, 0x800
_PF_X = 1
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SYMTAB = 0, 1, 5, 6
_DT_SONAME, _DT_RPATH, _DT_TEXTREL, _DT_RUNPATH, _DT_FLAGS = 14, 15, 22, 29, 30
_DF_TEXTREL = 0x4

_Marks = dict[int, list[tuple[int, bool]]]


class ElfError(AotError):
    """A file that cannot be read as what it should be."""

    def __init__(self, path: str | os.PathLike[str], what: str) -> None:
        hint = "build the file again; it is damaged or of another kind"
        super().__init__(f"`{os.fspath(path)}`: {what}", hint=hint)
        self.path = os.fspath(path)
        self.what = what


@dataclass(frozen=True)
class Symbol:
    """A symbol that other libraries can bind to."""

    name: str
    type: str  # func, object, tls, notype, ifunc
    size: int


@dataclass(frozen=True)
class UndefinedSymbol:
    """A symbol that another library must supply."""

    name: str
    version: str | None = None  # GLIBC_2.2.5
    library: str | None = None  # the library that has this version: libc.so.6
    weak: bool = False


@dataclass(frozen=True)
class Function:
    """A stretch of code with a name; size 0 when its assembler gave none."""

    name: str
    address: int
    size: int


@dataclass(frozen=True)
class CodeSection:
    """The bytes of one executable section."""

    name: str
    address: int
    data: bytes = field(repr=False)
    data_ranges: tuple[tuple[int, int], ...] = ()  # addresses that aarch64 mapping symbols ($d) mark as data


@dataclass(frozen=True)
class SharedLibrary:
    """What the dynamic loader will see, and the code that will run."""

    path: str
    machine: str  # x86_64 or aarch64
    soname: str | None
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    executable_stack: bool
    text_relocations: bool
    dynamic: tuple[str, ...]  # what the dynamic segment holds: NEEDED, FLAGS_1.NOW, ...
    writable_code: bool  # a segment is both writable and executable
    unmarked_code: tuple[tuple[int, int], ...]  # addresses that are executable and in no section of code
    exported: tuple[Symbol, ...]
    undefined: tuple[UndefinedSymbol, ...]
    versions_needed: tuple[tuple[str, str], ...]  # (library, version): the loader insists on each, used or not
    functions: tuple[Function, ...] = field(repr=False)  # by address; of several names for one, the shortest is last
    code: tuple[CodeSection, ...] = field(repr=False)
    local_objects: tuple[str, ...] = field(repr=False)  # names of data that only this library sees
    stripped: bool  # no .symtab: local functions have no names

    @property
    def glibc(self) -> tuple[int, ...] | None:
        """The highest glibc version needed, None when no symbol is bound to one."""
        return max((v for _, name in self.versions_needed if (v := glibc_version(name))), default=None)

    def function_at(self, address: int) -> Function | None:
        """The function that covers an address; one without a size reaches to the next function."""
        index = bisect_right(self.functions, address, key=lambda function: function.address) - 1
        if index < 0:
            return None
        found = self.functions[index]
        return found if found.size == 0 or address < found.address + found.size else None


def glibc_version(version: str) -> tuple[int, ...] | None:
    """``GLIBC_2.2.5`` as (2, 2, 5); None for anything else, ``GLIBC_PRIVATE`` included."""
    match = re.fullmatch(r"GLIBC_(\d{1,4}(?:\.\d{1,4}){1,3})", version)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def read_shared_library(path: str | os.PathLike[str]) -> SharedLibrary:
    """Read a shared library for x86_64 or aarch64."""
    data = read_bytes(path)
    with malformed_is_elf_error(path):
        return _library(open_elf(data, path), data, os.fspath(path))


def object_bytes(path: str | os.PathLike[str], name: str) -> bytes | None:
    """The content of a constant of a shared library, by its symbol; None if there is no such symbol."""
    return object_contents(path, lambda seen: seen == name).get(name)


def object_contents(path: str | os.PathLike[str], wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The contents of constants of a shared library, by their symbols."""
    data = read_bytes(path)
    found: dict[str, bytes] = {}
    with malformed_is_elf_error(path):
        elf = open_elf(data, path)
        segments = _segments(elf, data, os.fspath(path))
        for symbol in _symbols(elf, data, "SHT_SYMTAB", os.fspath(path)):
            if symbol.type == "object" and symbol.section and symbol.name not in found and wanted(symbol.name):
                start = _file_offset(segments, symbol.value, os.fspath(path))
                found[symbol.name] = data[start : start + symbol.size]
    return found


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file, at most 1 GiB."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ElfError(path, "is not a regular file")
            # As much as there is: a buffer of the limit's size would be more than many processes may have.
            data = file.read(min(status.st_size, _MAX_FILE) + 1)
    except OSError as error:
        raise ElfError(path, f"cannot be read: {error.strerror or error}") from error
    if len(data) > min(status.st_size, _MAX_FILE):
        raise ElfError(path, f"is larger than the limit of {_MAX_FILE} bytes, or grows while it is read")
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    # Opening a named pipe would otherwise wait for a writer, for ever.
    return os.open(path, flags | os.O_NONBLOCK)


@contextmanager
def malformed_is_elf_error(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever the parser trips over into an ``ElfError``."""
    try:
        yield
    except ElfError:
        raise
    except Exception as error:  # pyelftools raises what its parser met: construct errors, KeyError, TypeError ...
        raise ElfError(path, f"is not a well-formed ELF file ({type(error).__name__}: {error})") from error


def open_elf(data: bytes, path: str | os.PathLike[str]) -> Any:
    """An ``ELFFile`` whose section headers lie inside the file and describe no more than the file holds."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ElfError(path, f"is not a 64-bit little-endian ELF file: it begins with {data[:6].hex() or 'nothing'}")
    elf = _with_kept_sections(ELFFile(io.BytesIO(data)))
    if elf.num_sections() * 64 > len(data) or elf.num_segments() * 56 > len(data):
        raise ElfError(
            path, f"claims {elf.num_sections()} sections, {elf.num_segments()} segments in {len(data)} bytes"
        )
    if (elf.num_sections() and elf["e_shentsize"] != 64) or (elf.num_segments() and elf["e_phentsize"] != 56):
        raise ElfError(
            path, f"has header entries of {elf['e_shentsize']} and {elf['e_phentsize']} bytes, not 64 and 56"
        )
    _check_sections(list(elf.iter_sections()), data, path)
    return elf


def _with_kept_sections(elf: Any) -> Any:
    """The same file, whose sections are parsed once: the checks walk through all of them several times."""
    parse, kept = elf.get_section, {}

    def get_section(number: int, *accepted: Any, **named: Any) -> Any:
        if accepted or named:
            return parse(number, *accepted, **named)
        if number not in kept:
            kept[number] = parse(number)
        return kept[number]

    elf.get_section = get_section
    return elf


def _check_sections(sections: list[Any], data: bytes, path: str | os.PathLike[str]) -> None:
    total = 0
    met: Counter[tuple[int, int]] = Counter()  # how often each stretch of the file
    for section in sections:
        if section["sh_type"] in ("SHT_NOBITS", "SHT_NULL"):
            continue
        stretch = section["sh_offset"], section["sh_size"]
        met[stretch] += 1
        # NVIDIA's compiler keeps the text of PTX once for two sections.
        total += section["sh_size"] if met[stretch] != 2 else 0
        _check_section(section, data, path)
    if total > len(data):
        raise ElfError(path, f"has overlapping sections: {total} bytes of them in {len(data)}")


def _check_section(section: Any, data: bytes, path: str | os.PathLike[str]) -> None:
    start, size, name = section["sh_offset"], section["sh_size"], section.name[:80]
    if start + size > len(data):
        raise ElfError(path, f"is truncated: section {name!r} ends at {start + size} of {len(data)} bytes")
    if section["sh_flags"] & _SHF_COMPRESSED:
        raise ElfError(path, f"has a compressed section, {name!r}; its size when unpacked cannot be trusted")
    if section["sh_type"] in ("SHT_SYMTAB", "SHT_DYNSYM") and section["sh_entsize"] != _SYMBOL_BYTES:
        raise ElfError(path, f"has symbols of {section['sh_entsize']} bytes in {name!r}, not {_SYMBOL_BYTES}")
    if section["sh_type"] == "SHT_STRTAB":
        _check_strings(data[start : start + size], name, path)


def _check_strings(strings: bytes, name: str, path: str | os.PathLike[str]) -> None:
    if strings and strings[-1] != 0:
        raise ElfError(path, f"has a string table without an end, {name!r}")
    if max(map(len, strings.split(b"\0"))) > _MAX_NAME:
        raise ElfError(path, f"has a name of more than {_MAX_NAME} bytes in {name!r}")


def section_data(section: Any, data: bytes) -> bytes:
    """A section's bytes in the file; none for one that occupies memory only."""
    if section["sh_type"] in ("SHT_NOBITS", "SHT_NULL"):
        return b""
    return data[section["sh_offset"] : section["sh_offset"] + section["sh_size"]]


def is_data(section: Any) -> bool:
    """Whether the section's bytes are mapped and are not instructions."""
    return bool(section["sh_flags"] & _SHF_ALLOC) and not section["sh_flags"] & _SHF_EXECINSTR


def _library(elf: Any, data: bytes, path: str) -> SharedLibrary:
    machine = _MACHINES.get(elf["e_machine"])
    if machine is None or elf["e_type"] != "ET_DYN":
        raise ElfError(path, f"is {elf['e_type']} for {elf['e_machine']}, not a shared library for x86_64 or aarch64")
    segments = _segments(elf, data, path)
    tags = _dynamic_tags(elf, data, segments, path)
    strings = _DynamicStrings(data, _file_offset(segments, _one(tags, _DT_STRTAB), path), path)
    _check_agreement(elf, tags, path)
    versions = _versions_needed(elf, data, path)
    dynamic, static = _symbols(elf, data, "SHT_DYNSYM", path), _symbols(elf, data, "SHT_SYMTAB", path)
    return SharedLibrary(
        path=path,
        machine=machine,
        soname=next(iter(strings.all(tags, _DT_SONAME)), None),
        needed=strings.all(tags, _DT_NEEDED),
        rpath=strings.all(tags, _DT_RPATH),
        runpath=strings.all(tags, _DT_RUNPATH),
        executable_stack=_executable_stack(elf),
        text_relocations=_has_text_relocations(tags),
        dynamic=names_of_tags(tags),
        writable_code=any(segment.writable and segment.executable for segment in segments),
        unmarked_code=code_outside(segments, _code_stretches(elf), data),
        exported=_exported(dynamic),
        undefined=_undefined(dynamic, _symbol_versions(elf, data), versions),
        versions_needed=tuple(sorted(set(versions.values()))),
        functions=_functions([*dynamic, *static]),
        code=_code(elf, data, _mapping_marks(static)),
        local_objects=_local_objects(static),
        stripped=not static,
    )


def _sections(elf: Any, kind: str) -> list[Any]:
    return [section for section in elf.iter_sections() if section["sh_type"] == kind]


class _Entry(NamedTuple):
    """An entry of a symbol table. The number of its section is 0 if another library must supply it."""

    name: str
    type: str
    bind: int
    visibility: int
    section: int
    value: int
    size: int


def _symbols(elf: Any, data: bytes, kind: str, path: str) -> list[_Entry]:
    """The first table of a kind. pyelftools would take twenty times as long, which is most of reading a library."""
    tables = _sections(elf, kind)[:1]
    if not tables:
        return []
    strings = elf.get_section(tables[0]["sh_link"])
    if strings["sh_type"] != "SHT_STRTAB":
        raise ElfError(path, f"has symbols whose names are in {strings.name[:80]!r}, which is not a string table")
    raw, start = section_data(tables[0], data), strings["sh_offset"]
    entries = _SYMBOL.iter_unpack(raw[: len(raw) // _SYMBOL_BYTES * _SYMBOL_BYTES])
    return [
        _Entry(
            _symbol_name(data, start + name, path), _TYPES.get(info & 15, str(info & 15)), info >> 4, other & 7, *rest
        )
        for name, info, other, *rest in entries
    ]


def _symbol_name(data: bytes, start: int, path: str) -> str:
    end = data.find(b"\0", start, start + _MAX_NAME + 1)
    if end < 0:
        raise ElfError(path, f"has a symbol name at {start} without an end within {_MAX_NAME} bytes")
    return data[start:end].decode("utf-8", "replace")


def _segments(elf: Any, data: bytes, path: str) -> list[Segment]:
    """What a loader maps, in its order."""
    found = [
        Segment(s["p_flags"], s["p_offset"], s["p_vaddr"], s["p_filesz"], s["p_memsz"], s["p_align"])
        for s in elf.iter_segments()
        if s["p_type"] == "PT_LOAD"
    ]
    for segment in found:
        if segment.offset + segment.file_size > len(data):
            end = segment.offset + segment.file_size
            raise ElfError(path, f"is truncated: a segment ends at {end} of {len(data)} bytes")
    wrong = misplaced(found)
    if wrong is not None:
        raise ElfError(path, wrong)
    return found


def _dynamic_tags(elf: Any, data: bytes, mapped: list[Segment], path: str) -> list[tuple[int, int]]:
    """The dynamic segment, which is what the loader reads, up to its end mark."""
    segments = [s for s in elf.iter_segments() if s["p_type"] == "PT_DYNAMIC"]
    if len(segments) != 1:
        raise ElfError(path, f"has {len(segments)} dynamic segments; a shared library has one")
    start, size = segments[0]["p_offset"], segments[0]["p_filesz"]
    if start + size > len(data):
        raise ElfError(path, f"is truncated: its dynamic segment ends at {start + size} of {len(data)} bytes")
    if offset_of(mapped, segments[0]["p_vaddr"], size) != start:  # the loader goes by the address, tools by the offset
        raise ElfError(path, f"has its dynamic segment at {start:#x} of the file, and maps other bytes in its place")
    tags = list(struct.iter_unpack("<qQ", data[start : start + size - size % 16]))
    end = next((i for i, (tag, _) in enumerate(tags) if tag == _DT_NULL), len(tags))
    return tags[:end]


def _one(tags: list[tuple[int, int]], wanted: int) -> int | None:
    return next((value for tag, value in tags if tag == wanted), None)


def _file_offset(segments: list[Segment], address: int | None, path: str) -> int:
    offset = offset_of(segments, address) if address is not None else None
    if offset is None:
        raise ElfError(path, f"refers to address {address}, which no segment loads from the file")
    return offset


@dataclass(frozen=True)
class _DynamicStrings:
    data: bytes
    start: int
    path: str

    def all(self, tags: list[tuple[int, int]], wanted: int) -> tuple[str, ...]:
        return tuple(self._get(value) for tag, value in tags if tag == wanted)

    def _get(self, offset: int) -> str:
        return _string(self.data, self.start + offset, self.path)


def _string(data: bytes, start: int, path: str) -> str:
    end = data.find(b"\0", start, start + 4096) if start < len(data) else -1
    if end < 0:
        raise ElfError(path, f"has a string at {start} without an end within 4096 bytes")
    return data[start:end].decode("utf-8", "backslashreplace")


def _check_agreement(elf: Any, tags: list[tuple[int, int]], path: str) -> None:
    """Section headers are for tools, the dynamic segment is for the loader: a lie in the former would go unseen."""
    tables = _sections(elf, "SHT_DYNSYM")
    if len(tables) != 1 or len(_sections(elf, "SHT_SYMTAB")) > 1:
        raise ElfError(path, f"has {len(tables)} dynamic symbol tables among its sections; a shared library has one")
    seen = tables[0]["sh_addr"], elf.get_section(tables[0]["sh_link"])["sh_addr"]
    loaded = _one(tags, _DT_SYMTAB), _one(tags, _DT_STRTAB)
    if seen != loaded:
        raise ElfError(path, f"has symbols and strings at {seen} by its sections, at {loaded} by its dynamic segment")


def _executable_stack(elf: Any) -> bool:
    flags = [s["p_flags"] for s in elf.iter_segments() if s["p_type"] == "PT_GNU_STACK"]
    return not flags or any(flag & _PF_X for flag in flags)


def _has_text_relocations(tags: list[tuple[int, int]]) -> bool:
    return any(tag == _DT_TEXTREL or (tag == _DT_FLAGS and value & _DF_TEXTREL) for tag, value in tags)


def _versions_needed(elf: Any, data: bytes, path: str) -> dict[int, tuple[str, str]]:
    """Version index to (library, version), from the table of versions that the loader checks."""
    found: dict[int, tuple[str, str]] = {}
    for section in _sections(elf, "SHT_GNU_verneed")[:1]:
        table, names = section_data(section, data), elf.get_section(section["sh_link"])["sh_offset"]
        for file, index, name in _version_entries(table, path):
            found[index & 0x7FFF] = (_string(data, names + file, path), _string(data, names + name, path))
    return found


def _version_entries(table: bytes, path: str) -> Iterator[tuple[int, int, int]]:
    count = 0
    for offset, (_, _, file, first, _) in _chain(table, 0, "<HHIII"):
        for _, (_, _, index, name, _) in _chain(table, offset + first, "<IHHII"):
            count += 1
            if count * 16 > len(table):  # lists that share entries would cost quadratic time
                raise ElfError(path, f"has more than {count - 1} needed versions in a table of {len(table)} bytes")
            yield file, index, name


def _chain(table: bytes, offset: int, layout: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Entries linked by a last field that says how far the next one is; 0 ends, so each step goes forward."""
    while offset + 16 <= len(table):
        entry = struct.unpack_from(layout, table, offset)
        yield offset, entry
        if entry[-1] == 0:
            return
        offset += max(entry[-1], 16)


def _symbol_versions(elf: Any, data: bytes) -> list[int]:
    tables = _sections(elf, "SHT_GNU_versym")[:1]
    raw = section_data(tables[0], data) if tables else b""
    return [index & 0x7FFF for (index,) in struct.iter_unpack("<H", raw[: len(raw) // 2 * 2])]


def _exported(symbols: Iterable[_Entry]) -> tuple[Symbol, ...]:
    visible = (s for s in symbols if s.section and _is_exported(s))
    return tuple(sorted((Symbol(s.name, s.type, s.size) for s in visible), key=lambda s: s.name))


def _is_exported(symbol: _Entry) -> bool:
    # Protected symbols are found by dlsym like any other.
    return symbol.bind in (_GLOBAL, _WEAK, _UNIQUE) and symbol.visibility in (_DEFAULT, _PROTECTED)


def _undefined(
    symbols: list[_Entry], indices: list[int], versions: dict[int, tuple[str, str]]
) -> tuple[UndefinedSymbol, ...]:
    found = []
    for number, symbol in enumerate(symbols):
        if not symbol.section and symbol.name:
            index = indices[number] if number < len(indices) else 0
            library, version = versions.get(index, (None, None))
            found.append(UndefinedSymbol(symbol.name, version, library, symbol.bind == _WEAK))
    return tuple(sorted(found, key=lambda s: s.name))


def _functions(symbols: Iterable[_Entry]) -> tuple[Function, ...]:
    defined = (s for s in symbols if s.section and s.type in ("func", "ifunc"))
    found = {Function(s.name, s.value, s.size) for s in defined}
    # Compilers give private functions a second, longer name (`compiler_rt.x.__aarch64_cas8_acq`): the plain one names it.
    return tuple(sorted(found, key=lambda f: (f.address, f.size, -len(f.name), f.name)))


def _local_objects(symbols: Iterable[_Entry]) -> tuple[str, ...]:
    hidden = (s for s in symbols if s.type == "object" and s.section and not _is_exported(s))
    return tuple(sorted({symbol.name for symbol in hidden}))


def _code(elf: Any, data: bytes, marks: _Marks) -> tuple[CodeSection, ...]:
    found = []
    for index, section in enumerate(elf.iter_sections()):
        if _is_code(section):
            end = section["sh_addr"] + section["sh_size"]
            ranges = _data_ranges(sorted(marks.get(index, [])), end)
            found.append(CodeSection(section.name, section["sh_addr"], section_data(section, data), ranges))
    return tuple(found)


def _code_stretches(elf: Any) -> list[Stretch]:
    return [
        Stretch(section["sh_addr"], section["sh_offset"], section["sh_size"])
        for section in elf.iter_sections()
        if _is_code(section)
    ]


def _is_code(section: Any) -> bool:
    return bool(section["sh_flags"] & _SHF_EXECINSTR) and section["sh_type"] == "SHT_PROGBITS"


def _mapping_marks(symbols: Iterable[_Entry]) -> _Marks:
    """Per section, where the aarch64 ABI's mapping symbols switch between data ($d) and code ($x)."""
    marks: _Marks = {}
    for symbol in symbols:
        if symbol.name[:2] in ("$d", "$x") and symbol.bind == _LOCAL:
            marks.setdefault(symbol.section, []).append((symbol.value, symbol.name[1] == "d"))
    return marks


def _data_ranges(marks: list[tuple[int, bool]], end: int) -> tuple[tuple[int, int], ...]:
    stops = [address for address, _ in marks[1:]] + [end]
    return tuple(
        (start, stop) for (start, is_data), stop in zip(marks, stops, strict=False) if is_data and start < stop
    )
