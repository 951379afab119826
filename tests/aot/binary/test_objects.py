"""Objects and archives: symbols are read and renamed, and whatever is damaged ends in one error, soon."""

from __future__ import annotations

import random
import struct
import subprocess
import sys

import pytest

from aot.binary.objects import ObjectError, defined_symbols, members, rename_symbols

SOURCE = "int other(void); static int own(void) { return 1; } int entry(void) { return own() + other(); } int table[4];"
LONG = "a_name_that_is_longer_than_sixteen_bytes.o"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("object")
    (folder / "source.c").write_text(SOURCE)
    command = [sys.executable, "-m", "ziglang", "clang", "-target", "x86_64-linux-gnu", "-c", "source.c", "-o", "o.o"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / "o.o").read_bytes()


def member(name: str, content: bytes, size: str | None = None) -> bytes:
    size = str(len(content)) if size is None else size
    return f"{name:16}{0:<12}{0:<6}{0:<6}{644:<8}{size:10}`\n".encode() + content + b"\n" * (len(content) % 2)


def archive(*parts: bytes) -> bytes:
    return b"!<arch>\n" + b"".join(parts)


def test_symbols_that_others_can_refer_to(content: bytes) -> None:
    assert defined_symbols(content) == {"entry", "table"}


def test_renamed_symbols_are_found_under_their_new_names(content: bytes) -> None:
    renamed = rename_symbols(content, {"entry": "aot_k_entry", "own": "never"})
    assert defined_symbols(renamed) == {"aot_k_entry", "table"}


def test_members_have_their_short_and_long_names_and_the_index_is_left_out(content: bytes) -> None:
    names = member("//", f"{LONG}/\n".encode())
    whole = archive(member("/", b"index"), names, member("short.o/", content), member("/0", b"odd"))
    assert list(members(whole)) == [("short.o", content), (LONG, b"odd")]


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("size", ["-60", "-1", "+8", "1_0", "0x8", "", "9999999999", "8.0", "\u0663"])
def test_a_member_whose_size_is_not_a_size_ends_the_reading(size: str) -> None:
    """With -60 each step led back to where it began: 132 bytes were read for ever."""
    bad = f"{'/':16}{0:<12}{0:<6}{0:<6}{644:<8}".encode() + size.encode().ljust(10)[:10] + b"`\n" + bytes(64)
    with pytest.raises(ObjectError):
        list(members(archive(bad)))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"!<arch>\n" + b"x",
        archive(member("a.o/", b"x")[:-9]),
        archive(member("/7", b"x")),
        archive(member("//", b"no end"), member("/0", b"x")),
        archive(member("/name", b"x")),
        archive(member("/-1", b"x")),
        archive(member("a.o/", b"xx"), b"trailing bytes" * 8),
    ],
    ids=lambda bad: repr(bad[:24]),
)
def test_what_is_not_an_archive_is_one_error(bad: bytes) -> None:
    with pytest.raises(ObjectError):
        list(members(bad))


def patched(content: bytes, offset: int, layout: str, value: int) -> bytes:
    changed = bytearray(content)
    struct.pack_into(layout, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("offset", "layout", "value"),
    [(40, "<Q", 1 << 40), (40, "<Q", (1 << 64) - 1), (58, "<H", 0), (58, "<H", 1), (60, "<H", 0xFFFF), (60, "<H", 0)],
    ids=["far", "farther", "no size", "small size", "many", "none"],
)
def test_section_headers_that_are_not_in_the_file_are_one_error(
    content: bytes, offset: int, layout: str, value: int
) -> None:
    with pytest.raises(ObjectError):
        defined_symbols(patched(content, offset, layout, value))


def test_truncated_and_flipped_objects_raise_object_error_and_nothing_else(content: bytes) -> None:
    generator = random.Random(1)
    cases = [content[: len(content) * part // 64] for part in range(64)]
    for _ in range(2000):
        position = generator.randrange(len(content))
        cases.append(patched(content, position, "<B", generator.randrange(256)))
    refused = 0
    for case in cases:
        try:
            rename_symbols(case, {"entry": "other"})
        except ObjectError:
            refused += 1
    assert refused > 64
