"""What is inside an entry passes one decoder: plain names, sizes that add up, bounded expansion, checked records."""

from __future__ import annotations

import json
import string
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.cache.entries import (
    LARGEST,
    EntryError,
    entry_limit,
    pack,
    read_record,
    read_shared,
    record_bytes,
    shared_bytes,
    unpack,
)

NAMES = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=20)


@given(st.dictionaries(NAMES, st.binary()))
def test_parts_come_back_as_they_were_in_any_order(parts: dict[str, bytes]) -> None:
    assert unpack(pack(parts)) == parts
    assert pack(dict(reversed(parts.items()))) == pack(parts)


def packed(head: object, rest: bytes = b"") -> bytes:
    return zlib.compress(json.dumps(head).encode() + b"\n" + rest)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b", "..", ".", "", ".hidden", "a\0b", "a\nb", "-rf", "000001//home/u/.bashrc"]
)
def test_a_name_that_is_not_a_plain_file_name_is_refused(name: str) -> None:
    with pytest.raises(EntryError, match="is not a plain file name"):
        unpack(packed({name: 1}, b"x"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        zlib.compress(b"{}\n")[:-1],
        zlib.compress(b"{}\n") + b"more",
        zlib.compress(b"not JSON\n"),
        zlib.compress(b"[" * 100_000 + b"\n"),
        zlib.compress(b"\xff\n"),
        packed([]),
        packed({"a": -1}),
        packed({"a": 1.0}, b"x"),
        packed({"a": True}, b"x"),
        packed({"a": "1"}, b"x"),
        packed({"a": 2}, b"x"),
        packed({"a": 1}, b"xx"),
        packed({"a": 10**30}),
    ],
    ids=lambda content: repr(content[:16]),
)
def test_bad_content_is_one_error(content: bytes) -> None:
    with pytest.raises(EntryError):
        unpack(content)


def test_what_expands_beyond_the_limit_is_refused_without_taking_the_memory() -> None:
    import tracemalloc

    bomb = zlib.compress(bytes(64 << 20), level=9)
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(EntryError, match="more than 1048576 bytes"):
            unpack(bomb, limit=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_the_limit_follows_the_memory_of_the_build() -> None:
    assert entry_limit(None) == LARGEST
    assert entry_limit(1 << 30) == 128 << 20
    assert entry_limit(1 << 50) == LARGEST


@dataclass(frozen=True)
class Inner:
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    more: Mapping[str, str | None]


def test_records_come_back() -> None:
    record = Outer("a", Inner((1, 2)), {"x": None, "y": "z"})
    assert read_record(Outer, record_bytes(record)) == record


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"name": "a"}',
        b'{"name": "a", "inner": 3, "more": {}}',
        b'{"name": "a", "inner": {"numbers": 1}, "more": {}}',
        b'{"name": "a", "inner": {"numbers": []}, "more": []}',
    ],
    ids=lambda content: repr(content[:20]),
)
def test_what_is_not_the_record_is_one_error(content: bytes) -> None:
    with pytest.raises(EntryError):
        read_record(Outer, content)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
)


@given(st.dictionaries(NAMES, VALUES))
def test_what_repeats_is_written_once_and_comes_back_as_it_was(value: dict[str, Any]) -> None:
    twice = {"a": value, "b": [value, value]}
    assert repr(read_shared(dict[str, Any], shared_bytes(twice))) == repr(twice)  # 1, 1.0 and True are not the same
    assert len(json.loads(zlib.decompress(shared_bytes(twice)))) <= 2 + len(
        json.loads(zlib.decompress(shared_bytes(value)))
    )


@pytest.mark.parametrize(
    "nodes",
    [
        "nonsense", {}, [], [1], ["a"], [{"a": [0]}], [{}, {"a": [1]}], [{}, {"a": [-1]}], [{}, {"a": [0, 0]}],
        [{}, {"a": []}], [{}, {"a": [True]}], [{}, {"a": {}}], [{}, {"a": [[0]]}],
    ],
    ids=repr,
)  # fmt: skip
def test_a_shared_part_that_is_not_there_is_one_error(nodes: object) -> None:
    with pytest.raises(EntryError):
        read_shared(dict[str, Any], zlib.compress(json.dumps(nodes).encode()))


def test_parts_that_hold_parts_do_not_expand_without_bound() -> None:
    content = zlib.compress(json.dumps([[1], *([[number]] * 10 for number in range(9))]).encode())
    with pytest.raises(EntryError, match="unpacks to more"):
        read_shared(tuple[Any, ...], content)  # type: ignore[arg-type]
