"""The readers of finished binaries: libraries, GPU code, archives and their objects."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterator
from pathlib import Path

from aot_runtime.errors import AotError
from elftools.elf.elffile import ELFFile

from aot.binary.cubin import cubins_in_bytes, cubins_in_library, cubins_in_llvm_ir
from aot.binary.elf import read_shared_library
from aot.binary.objects import ObjectError, defined_symbols, members, rename_symbols

from .corpus import Corpus
from .engine import ACCEPTED, REFUSED, Target, Undetected
from .mutate import changed_bytes, write_anew

__all__ = ["make"]


def make(corpus: Corpus, folder: Path) -> list[Target]:
    return [_libraries(corpus, folder), _cubins(corpus), _newer_cubins(corpus), _launchers(corpus), _archives(corpus)]


def _libraries(corpus: Corpus, folder: Path) -> Target:
    image = corpus.library().read_bytes()
    path = folder / "library.so"
    table = int.from_bytes(image[40:48], "little")  # the section headers, at the end; segments are at the beginning
    heads = (range(600), range(table, len(image)))

    def case(rng: random.Random) -> str:
        write_anew(path, changed_bytes(image, rng, rng.choice(heads)))
        try:
            read_shared_library(path)
            cubins_in_library(path)
        except AotError:
            return REFUSED
        return ACCEPTED

    return Target("libraries", 0.002, case)


def _fatbin(corpus: Corpus) -> bytes:
    image = corpus.library().read_bytes()
    start = image.index((0xBA55ED50).to_bytes(4, "little"))
    return image[start : start + 16 + int.from_bytes(image[start + 8 : start + 16], "little")]


def _cubins(corpus: Corpus) -> Target:
    fatbin = _fatbin(corpus)

    def case(rng: random.Random) -> str:
        try:
            cubins_in_bytes(changed_bytes(fatbin, rng, range(200)))
        except AotError:
            return REFUSED
        return ACCEPTED

    return Target("cubins", 0.005, case)


def _newer_cubins(corpus: Corpus) -> Target:
    """As CUDA 13 writes them: `.nv.compat` says whether the code is for one chip alone, and the entry must say so too."""
    fatbin = _fatbin(corpus)
    elf = fatbin.index(b"\x7fELF")
    section = ELFFile(io.BytesIO(fatbin[elf:])).get_section_by_name(".nv.callgraph")  # becomes `.nv.compat`
    table = elf + section["sh_offset"]

    def case(rng: random.Random) -> str:
        image = bytearray(fatbin.replace(b".nv.callgraph\0", b".nv.compat\0\0\0\0"))
        image[elf + 8] = 8  # the version of the ABI
        struct.pack_into("<I", image, elf + 48, 90 << 8)
        records, is_for_one_chip = _compat(rng, section["sh_size"])
        image[table : table + len(records)] = records
        entry_says_so = rng.random() < 0.5
        struct.pack_into("<Q", image, 16 + 40, entry_says_so << 20)
        try:
            cubins_in_bytes(bytes(image))
        except AotError:
            if not is_for_one_chip or entry_says_so:
                raise
            return REFUSED
        if is_for_one_chip and not entry_says_so:
            raise Undetected(f"code for one chip alone in an entry for others: {records.hex()}")
        return ACCEPTED

    return Target("newer cubins", 0.005, case)


def _compat(rng: random.Random, size: int) -> tuple[bytes, bool]:
    """Records of that many bytes: a kind, an attribute, a value of one or two bytes or behind its length."""
    records, is_for_one_chip = b"", False
    while len(records) < size:
        kind, attribute, value = rng.choice((2, 3, 4)), rng.choice((9, 9, 5)), rng.randrange(3)
        if kind == 4:
            length = rng.randrange(0, size - len(records), 4)
            records += bytes((kind, attribute)) + length.to_bytes(2, "little") + bytes([value]) * length
        else:  # what is behind a value of one byte means nothing
            records += bytes((kind, attribute, value, rng.randrange(2)))
            is_for_one_chip |= (kind, attribute, value) == (2, 9, 1)
    return records, is_for_one_chip


def _launchers(corpus: Corpus) -> Target:
    text = min(corpus.kept.rglob("*.ll")).read_bytes()
    start = text.index(b"kernels_binary")
    literal = text[start : text.index(b"\n", start)]
    hot = range(text.index(literal), text.index(literal) + 200)

    def case(rng: random.Random) -> str:
        try:
            cubins_in_llvm_ir(changed_bytes(text, rng, hot).decode("utf-8", "surrogateescape"))
        except AotError:
            return REFUSED
        return ACCEPTED

    return Target("launchers", 0.002, case)


def _archives(corpus: Corpus) -> Target:
    archive = min(corpus.bundle.glob("lib/*/*.a"), key=lambda path: path.stat().st_size).read_bytes()

    # The header of a member, and the ELF header after it.
    heads = [range(at, min(at + 60 + 64, len(archive))) for at, _ in _sizes(archive)]
    ends = (range(300), range(len(archive) - 200, len(archive)))

    def case(rng: random.Random) -> str:
        altered = changed_bytes(archive, rng, rng.choice((*heads, *ends)))
        try:
            for name, content in members(altered):
                rename_symbols(content, dict.fromkeys(defined_symbols(content), f"other_{name}"))
        except ObjectError:
            return REFUSED
        _check_sizes(altered)
        return ACCEPTED

    return Target("archives", 0.006, case)


def _check_sizes(archive: bytes) -> None:
    """Every member of an archive that was accepted lies inside it."""
    for at, size in _sizes(archive):
        if at + 60 + size > len(archive):
            raise Undetected(f"a member of {size} bytes at {at} of {len(archive)}")


def _sizes(archive: bytes) -> Iterator[tuple[int, int]]:
    """Where each member of an archive begins, and how many bytes it says to have."""
    at = 8
    while at < len(archive):
        size = int(archive[at + 48 : at + 58])
        yield at, size
        at += 60 + size + size % 2
