"""Shared libraries are read as the loader sees them, and damaged ones end in one clean error."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.errors import AotError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot.binary.elf import (
    ElfError,
    Function,
    SharedLibrary,
    Symbol,
    _check_sections,
    glibc_version,
    read_shared_library,
)

HOSTS = ("x86_64", "aarch64")
SOURCE = """
#include <string.h>
#include <stdlib.h>
__attribute__((visibility("default"))) int table[4] = {1, 2, 3, 4};
__attribute__((visibility("protected"))) int kept(void) { return 2; }
__attribute__((noinline)) static int inner(const char *text) { return (int)strlen(text) + table[1]; }
extern int TVMFFIGiven(int);
extern int perhaps(void) __attribute__((weak));
__attribute__((visibility("default"))) int entry(const char *text) {
  return TVMFFIGiven(inner(text)) + (perhaps ? perhaps() : 0) + (getenv("HOME") != 0);
}
int hidden(void) { return 1; }
"""


def zig_cc(folder: Path, source: str, *flags: str, host: str = "x86_64", name: str = "lib.so") -> Path:
    caches = {k: os.environ.get(k, str(folder.parent / "zig")) for k in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    (folder / "source.c").write_text(source)
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        f"{host}-linux-gnu.2.28",
        "-shared",
        "-O2",
        "-g0",
    ]
    command += ["-fPIC", "-fvisibility=hidden", "-o", name, *flags, "source.c"]
    subprocess.run(command, cwd=folder, env={**os.environ, **caches}, check=True, capture_output=True)
    return folder / name


@pytest.fixture(scope="module", params=HOSTS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("elf")
    return request.param, zig_cc(folder, SOURCE, "-Wl,-soname,libentry.so", host=request.param)


@pytest.fixture(scope="module")
def library(built: tuple[str, Path]) -> SharedLibrary:
    return read_shared_library(built[1])


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return zig_cc(tmp_path_factory.mktemp("image"), SOURCE).read_bytes()


def test_the_library_says_what_it_is(built: tuple[str, Path], library: SharedLibrary) -> None:
    assert (library.machine, library.soname, library.path) == (built[0], "libentry.so", str(built[1]))
    assert library.needed == ("libc.so.6",)
    assert library.rpath == library.runpath == ()
    assert not library.executable_stack
    assert not library.text_relocations


def test_exports_are_the_visible_symbols_with_type_and_size(library: SharedLibrary) -> None:
    by_name = {symbol.name: symbol for symbol in library.exported}
    assert set(by_name) == {"entry", "kept", "table"}
    assert by_name["table"] == Symbol("table", "object", 16)
    assert by_name["entry"].type == "func"
    assert by_name["entry"].size > 0


def test_undefined_symbols_carry_version_library_and_weakness(library: SharedLibrary) -> None:
    by_name = {symbol.name: symbol for symbol in library.undefined}
    oldest = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}[library.machine]
    assert (by_name["strlen"].version, by_name["strlen"].library) == (oldest, "libc.so.6")
    assert (by_name["TVMFFIGiven"].version, by_name["TVMFFIGiven"].weak) == (None, False)
    assert by_name["perhaps"].weak
    assert library.glibc == glibc_version(oldest)


def test_local_functions_name_code_addresses(library: SharedLibrary) -> None:
    inner = next(function for function in library.functions if function.name == "inner")
    assert library.function_at(inner.address + inner.size - 1) == inner
    assert library.function_at(0) is None
    text = next(section for section in library.code if section.name == ".text")
    assert text.address <= inner.address < text.address + len(text.data)


def test_a_stripped_library_says_so(tmp_path: Path) -> None:
    stripped = read_shared_library(zig_cc(tmp_path, SOURCE, "-s"))
    assert stripped.stripped
    assert "inner" not in {function.name for function in stripped.functions}


def test_run_paths_and_the_highest_glibc_are_seen(tmp_path: Path) -> None:
    source = '#include <math.h>\n__attribute__((visibility("default"))) float f(float x) { return expf(x); }'
    seen = read_shared_library(zig_cc(tmp_path, source, "-Wl,-rpath,/somewhere", "-lm"))
    assert seen.rpath + seen.runpath == ("/somewhere",)
    assert seen.glibc == (2, 27)  # expf has a version of its own since 2.27
    assert "libm.so.6" in seen.needed


@pytest.mark.parametrize("kind", ["executable", "absent"])
def test_a_stack_that_is_executable_or_not_mentioned_counts_as_executable(
    kind: str, image: bytes, tmp_path: Path
) -> None:
    changed = bytearray(image)
    start, count = int.from_bytes(image[32:40], "little"), int.from_bytes(image[56:58], "little")
    for header in range(start, start + 56 * count, 56):
        if int.from_bytes(image[header : header + 4], "little") == 0x6474E551:  # PT_GNU_STACK
            value = (0x6474E551, 7) if kind == "executable" else (0, 6)
            changed[header : header + 8] = struct.pack("<II", *value)
    assert _read(bytes(changed), tmp_path).executable_stack


def test_text_relocations_are_seen(image: bytes, tmp_path: Path) -> None:
    bind_now, text_relocations = struct.pack("<QQ", 30, 8), struct.pack("<QQ", 30, 12)  # DT_FLAGS
    assert bind_now in image
    assert _read(image.replace(bind_now, text_relocations), tmp_path).text_relocations


def test_a_function_without_a_size_reaches_to_the_next() -> None:
    functions = (Function("open", 16, 0), Function("closed", 64, 8))
    library = _library(functions)
    assert library.function_at(60) == functions[0]
    assert library.function_at(80) is None


def test_the_plain_name_wins_over_a_compilers_second_name(library: SharedLibrary) -> None:
    lengths = [(f.address, f.size, -len(f.name)) for f in library.functions]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("GLIBC_2.2.5", (2, 2, 5)),
        ("GLIBC_2.28", (2, 28)),
        ("GLIBC_PRIVATE", None),
        ("GLIBC_ABI_DT_RELR", None),
    ],
)
def test_glibc_versions_are_numbers(text: str, version: tuple[int, ...] | None) -> None:
    assert glibc_version(text) == version


def test_truncated_files_raise_elf_error_and_nothing_else(image: bytes, tmp_path: Path) -> None:
    for part in range(64):
        with pytest.raises(ElfError):
            _read(image[: len(image) * part // 64], tmp_path)


def test_flipped_bytes_raise_elf_error_and_nothing_else(image: bytes, tmp_path: Path) -> None:
    generator = random.Random(1)
    headers = [*range(64), *range(int.from_bytes(image[40:48], "little"), len(image))]
    elsewhere = generator.sample(range(len(image)), 120)
    for position in headers[:: max(1, len(headers) // 250)] + elsewhere:
        for value in (0xFF, image[position] ^ 1 << generator.randrange(8)):
            _read_or_elf_error(image[:position] + bytes([value]) + image[position + 1 :], tmp_path)


@settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cut=st.integers(0, 1 << 20), patch=st.binary(min_size=1, max_size=24))
def test_overwritten_stretches_raise_elf_error_and_nothing_else(
    image: bytes, tmp_path: Path, cut: int, patch: bytes
) -> None:
    start = cut % len(image)
    _read_or_elf_error(image[:start] + patch + image[start + len(patch) :], tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(200)])
def test_other_files_are_refused_with_what_was_seen(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ElfError, match="begins with"):
        _read(content, tmp_path)


def test_a_section_without_bytes_costs_no_memory(image: bytes, tmp_path: Path) -> None:
    """A section that occupies memory only may claim any size; it must not be allocated."""
    table, count = int.from_bytes(image[40:48], "little"), int.from_bytes(image[60:62], "little")
    changed = bytearray(image)
    for index in range(count):
        header = table + 64 * index
        if int.from_bytes(image[header + 4 : header + 8], "little") == 8:  # SHT_NOBITS
            changed[header + 32 : header + 40] = (1 << 60).to_bytes(8, "little")
    _read_or_elf_error(bytes(changed), tmp_path)


def test_sections_that_overlap_are_refused(image: bytes, tmp_path: Path) -> None:
    table, count = int.from_bytes(image[40:48], "little"), int.from_bytes(image[60:62], "little")
    changed = bytearray(image)
    for index in range(1, count):
        header = table + 64 * index
        if int.from_bytes(image[header + 4 : header + 8], "little") == 1:  # SHT_PROGBITS
            changed[header + 24 : header + 40] = (0).to_bytes(8, "little") + len(image).to_bytes(8, "little")
    with pytest.raises(ElfError, match="overlapping"):
        _read(bytes(changed), tmp_path)


@pytest.mark.parametrize(("sharing", "refused"), [(2, False), (3, True)])
def test_two_sections_may_be_the_same_bytes(sharing: int, refused: bool) -> None:
    stretch = {"sh_type": "SHT_PROGBITS", "sh_offset": 10, "sh_size": 60, "sh_flags": 0}
    sections = [_Section(stretch) for _ in range(sharing)]
    with pytest.raises(ElfError, match="overlapping") if refused else nullcontext():
        _check_sections(sections, bytes(100), "cubin")


class _Section(dict[str, Any]):
    name = ".nv_debug_ptx_txt"


@pytest.mark.usefixtures("ends")
def test_missing_files_folders_and_pipes_are_elf_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "absent.so", tmp_path, tmp_path / "pipe"):
        with pytest.raises(ElfError) as caught:
            read_shared_library(path)
        assert isinstance(caught.value, AotError)
        assert str(path) in str(caught.value)


def _read(content: bytes, folder: Path) -> SharedLibrary:
    path = folder / "damaged.so"
    path.write_bytes(content)
    return read_shared_library(path)


def _read_or_elf_error(content: bytes, folder: Path) -> None:
    try:
        _read(content, folder)
    except ElfError as error:
        assert error.what


def _library(functions: tuple[Function, ...]) -> SharedLibrary:
    return SharedLibrary(
        path="lib.so",
        machine="x86_64",
        soname=None,
        needed=(),
        rpath=(),
        runpath=(),
        executable_stack=False,
        text_relocations=False,
        dynamic=(),
        writable_code=False,
        unmarked_code=(),
        exported=(),
        undefined=(),
        versions_needed=(),
        functions=functions,
        code=(),
        local_objects=(),
        stripped=False,
    )


# What a loader maps, against what the sections say.


def segments(image: bytes, kind: int = 1) -> list[int]:
    """Where the headers of the segments of a kind lie; 1 is PT_LOAD, 2 is PT_DYNAMIC."""
    start, count = int.from_bytes(image[32:40], "little"), int.from_bytes(image[56:58], "little")
    headers = range(start, start + 56 * count, 56)
    return [header for header in headers if int.from_bytes(image[header : header + 4], "little") == kind]


def code_segment(image: bytes) -> int:
    return next(header for header in segments(image) if image[header + 4] & 1)


def section(image: bytes, address: int) -> int:
    """Where the header of the section at an address lies."""
    table, count = int.from_bytes(image[40:48], "little"), int.from_bytes(image[60:62], "little")
    headers = [table + 64 * index for index in range(1, count)]
    return next(h for h in headers if int.from_bytes(image[h + 16 : h + 24], "little") == address)


def number(image: bytes, offset: int) -> int:
    return int.from_bytes(image[offset : offset + 8], "little")


def patched(image: bytes, offset: int, layout: str, *values: int) -> bytes:
    changed = bytearray(image)
    struct.pack_into(layout, changed, offset, *values)
    return bytes(changed)


def test_a_sound_library_has_code_in_sections_alone_and_known_tags(library: SharedLibrary) -> None:
    assert not library.writable_code
    assert library.unmarked_code == ()
    assert {"NEEDED", "SONAME", "SYMTAB", "GNU_HASH"} <= set(library.dynamic)
    assert not {"AUXILIARY", "FILTER", "AUDIT"} & set(library.dynamic)


def test_a_segment_that_is_writable_and_executable_is_seen(image: bytes, tmp_path: Path) -> None:
    assert _read(patched(image, code_segment(image) + 4, "<I", 7), tmp_path).writable_code


@pytest.mark.parametrize(
    ("tag", "name"),
    [(0x7FFFFFFD, "AUXILIARY"), (0x7FFFFFFF, "FILTER"), (0x6FFFFEFC, "AUDIT"), (0x60000042, "0x60000042")],
)
def test_tags_that_lead_the_loader_elsewhere_are_named(tag: int, name: str, image: bytes, tmp_path: Path) -> None:
    hashes = struct.pack("<Q", 0x6FFFFEF5)  # DT_GNU_HASH; DT_HASH is there too
    assert image.count(hashes) == 1
    assert name in _read(image.replace(hashes, struct.pack("<Q", tag)), tmp_path).dynamic


def test_flags_are_named_one_by_one(image: bytes, tmp_path: Path) -> None:
    hashes = image.index(struct.pack("<Q", 0x6FFFFEF5))
    flagged = _read(patched(image, hashes, "<QQ", 0x6FFFFFFB, 0x401), tmp_path)
    assert {"FLAGS_1.NOW", "FLAGS_1.INTERPOSE"} <= set(flagged.dynamic)


@pytest.mark.parametrize("how", ["smaller", "no code", "other bytes"])
def test_code_that_no_section_describes_is_seen(how: str, image: bytes, tmp_path: Path) -> None:
    segment = code_segment(image)
    start, size = number(image, segment + 16), number(image, segment + 32)
    text = section(image, start)
    changed = {
        "smaller": patched(image, text + 32, "<Q", 4),
        "no code": patched(image, text + 8, "<Q", 2),
        "other bytes": patched(image, text + 24, "<Q", number(image, text + 24) - 16),
    }[how]
    assert all(start <= low < high <= start + size for low, high in _read(changed, tmp_path).unmarked_code)
    assert _read(changed, tmp_path).unmarked_code


def test_executable_memory_without_bytes_is_seen(image: bytes, tmp_path: Path) -> None:
    segment = code_segment(image)
    end = number(image, segment + 16) + number(image, segment + 32)
    grown = patched(image, segment + 40, "<Q", number(image, segment + 32) + 8)
    assert _read(grown, tmp_path).unmarked_code == ((end, end + 8),)


def test_segments_that_hide_part_of_another_are_refused(image: bytes, tmp_path: Path) -> None:
    first, second = segments(image)[:2]
    with pytest.raises(ElfError, match="share pages"):
        _read(patched(image, first + 40, "<Q", number(image, second + 16) + 8), tmp_path)


def test_a_dynamic_segment_that_is_mapped_from_elsewhere_is_refused(image: bytes, tmp_path: Path) -> None:
    (dynamic,) = segments(image, 2)
    with pytest.raises(ElfError, match="maps other bytes"):
        _read(patched(image, dynamic + 16, "<Q", number(image, dynamic + 16) + 16), tmp_path)
