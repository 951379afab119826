"""A linked library out of the cache is what was linked, and can be written nowhere else."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aot.cache import keys
from aot.cache.entries import EntryError, pack
from aot.cache.links import CachingLinker, pack_library, unpack_library
from aot.cache.store import Store
from aot.hosts import Host
from aot.link.libraries import Linker
from aot.link.nvidia import NvidiaLibraries
from aot.link.zig import Zig


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
        b'{"000000-/home/u/.bashrc": 1, "library": 0}',
        b'{"000000-a/../../x": 1, "library": 0}',
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


def test_a_build_that_finds_such_an_entry_links_by_itself_and_writes_nothing_elsewhere(tmp_path: Path) -> None:
    """The entry is sealed as it should be, as another user of a shared cache could seal it."""
    work, victim = tmp_path / "work", tmp_path / "home" / ".bashrc"
    work.mkdir()
    victim.parent.mkdir()
    store, host = Store(tmp_path / "cache"), Host.native()
    head = f'{{"000000-{victim}": 4, "library": 7}}\n'.encode()
    store.put("libraries", keys.library_key(["x"], "x.so", host), zlib.compress(head + b"evillibrary"))
    linked = work / "x.so"

    def link() -> list[str]:
        linked.write_bytes(b"own")
        return []

    with ThreadPoolExecutor(1) as pool:
        CachingLinker(Zig(tmp_path, tmp_path), host, work, tmp_path, pool, store)._once(["x"], linked, link)
    assert linked.read_bytes() == b"own"
    assert list(victim.parent.iterdir()) == []


def test_launch_support_is_linked_once_for_the_same_libraries_of_nvidia(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked: list[str] = []

    def link(self: Linker, libraries: NvidiaLibraries, output: Path, *, shared_cudart: bool) -> None:
        linked.append(libraries.digests["a"])
        output.write_bytes(b"library")
        (self.work / "aot_support.o").write_bytes(b"object")

    monkeypatch.setattr(Linker, "support", link)
    store = Store(tmp_path / "store")
    with ThreadPoolExecutor(1) as pool:
        linker = CachingLinker(Zig(tmp_path, tmp_path), Host.native(), tmp_path, tmp_path, pool, store)
        for digest in ("1", "1", "2"):
            libraries = NvidiaLibraries(Path("a"), Path("b"), Path("c"), None, {"a": digest})
            linker.support(libraries, tmp_path / "support.so", shared_cudart=False)
    assert linked == ["1", "2"]
