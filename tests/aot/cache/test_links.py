"""A linked library out of the cache is what was linked, and can be written nowhere else."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from aot.cache.entries import EntryError, pack
from aot.cache.links import pack_library, unpack_library


def test_a_library_and_its_objects_come_back_in_their_order(tmp_path: Path) -> None:
    for name, content in (("k.so", b"library"), ("b.o", b"first"), ("a.o", b"second")):
        (tmp_path / name).write_bytes(content)
    packed = unpack_library(pack_library(tmp_path / "k.so", [str(tmp_path / "b.o"), str(tmp_path / "a.o")]))
    work = tmp_path / "work"
    work.mkdir()
    objects = packed.write(work / "k.so", work)
    assert objects == [str(work / "b.o"), str(work / "a.o")]
    assert [Path(path).read_bytes() for path in objects] == [b"first", b"second"]
    assert (work / "k.so").read_bytes() == b"library"
    assert (work / "k.so").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "head",
    [
        b'{"999999//home/u/.bashrc": 1, "library": 0}',
        b'{"000000/../../x": 1, "library": 0}',
        b'{"/x": 1, "library": 0}',
    ],
)
def test_an_entry_that_names_a_place_is_refused(head: bytes) -> None:
    with pytest.raises(EntryError, match="not a plain file name"):
        unpack_library(zlib.compress(head + b"\nx"))


@pytest.mark.parametrize("name", ["a.o", "000000a.o", "000000-", "000000-.o", "000000-..", "00000-a.o"])
def test_an_object_is_numbered_and_has_a_plain_name(name: str) -> None:
    with pytest.raises(EntryError, match="not the name of an object"):
        unpack_library(pack({"library": b"", name: b"x"}))


def test_an_entry_without_a_library_is_refused() -> None:
    with pytest.raises(EntryError, match="holds no library"):
        unpack_library(pack({"000000-a.o": b"x"}))
