"""The readers of finished binaries: libraries, GPU code, archives and their objects."""

from __future__ import annotations

import random
from pathlib import Path

from aot_runtime.errors import AotError

from aot.binary.cubin import cubins_in_bytes, cubins_in_library, cubins_in_llvm_ir
from aot.binary.elf import read_shared_library
from aot.binary.objects import ObjectError, defined_symbols, members, rename_symbols

from .corpus import Corpus
from .engine import ACCEPTED, REFUSED, Target, Undetected
from .mutate import changed_bytes, write_anew

__all__ = ["make"]


def make(corpus: Corpus, folder: Path) -> list[Target]:
    return [_libraries(corpus, folder), _cubins(corpus), _launchers(corpus), _archives(corpus)]


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


def _cubins(corpus: Corpus) -> Target:
    image = corpus.library().read_bytes()
    start = image.index((0xBA55ED50).to_bytes(4, "little"))
    fatbin = image[start : start + 16 + int.from_bytes(image[start + 8 : start + 16], "little")]

    def case(rng: random.Random) -> str:
        try:
            cubins_in_bytes(changed_bytes(fatbin, rng, range(200)))
        except AotError:
            return REFUSED
        return ACCEPTED

    return Target("cubins", 0.005, case)


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

    def case(rng: random.Random) -> str:
        altered = changed_bytes(archive, rng, rng.choice((range(300), range(len(archive) - 200, len(archive)))))
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
    at = 8
    while at < len(archive):
        size = int(archive[at + 48 : at + 58])
        if at + 60 + size > len(archive):
            raise Undetected(f"a member of {size} bytes at {at} of {len(archive)}")
        at += 60 + size + size % 2
