"""The store: entries appear whole, damage is a miss, many writers do no harm, pruning takes the least used."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.cache.store import Store, pack, unpack

KEY = "ab" * 32


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def entry(store: Store, key: str = KEY) -> Path:
    (found,) = [item.path for item in store.entries() if item.key == key]
    return found


def test_what_was_put_comes_back(store: Store) -> None:
    assert store.get("variants", KEY) is None
    assert store.put("variants", KEY, b"code\nwith lines")
    assert store.get("variants", KEY) == b"code\nwith lines"
    assert store.get("libraries", KEY) is None


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b + b"!", lambda b: b[:70] + b"x" + b[71:], lambda b: b""]
)
def test_a_damaged_entry_is_a_miss_and_is_gone(store: Store, damage) -> None:  # type: ignore[no-untyped-def]
    store.put("variants", KEY, b"code" * 100)
    path = entry(store)
    path.write_bytes(damage(path.read_bytes()))
    assert store.get("variants", KEY) is None
    assert not path.exists()


def test_check_removes_what_is_damaged_and_names_it(store: Store) -> None:
    store.put("variants", KEY, b"code")
    store.put("variants", "cd" * 32, b"other")
    entry(store).write_bytes(b"nonsense")
    assert [item.key for item in store.check()] == [KEY]
    assert [item.key for item in store.entries()] == ["cd" * 32]
    assert store.check() == []


def test_a_store_that_cannot_be_written_is_a_store_without_entries(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = Store(tmp_path / "file")
    assert not store.put("variants", KEY, b"code")
    assert store.get("variants", KEY) is None
    assert list(store.entries()) == []


def test_many_writers_of_one_key_leave_one_whole_entry(store: Store) -> None:
    content = os.urandom(1 << 18)
    seen: list[bytes | None] = []

    def write() -> None:
        for _ in range(10):
            store.put("variants", KEY, content)
            seen.append(store.get("variants", KEY))

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {content}
    assert [path.name for path in entry(store).parent.iterdir()] == [f"{KEY}.entry"]


def test_pruning_by_size_takes_the_least_recently_used_first(store: Store) -> None:
    for number in range(4):
        key = f"{number:064x}"
        store.put("variants", key, bytes(1000))
        os.utime(entry(store, key), (number, number))
    store.get("variants", f"{0:064x}")  # used just now
    size = sum(item.size for item in store.entries())
    removed = store.prune(max_size=size // 2)
    assert [int(item.key, 16) for item in removed] == [1, 2]
    assert {int(item.key, 16) for item in store.entries()} == {0, 3}


def test_pruning_by_age_takes_what_was_not_used_for_so_long(store: Store) -> None:
    store.put("variants", KEY, b"old")
    os.utime(entry(store), (0, 0))
    store.put("variants", "cd" * 32, b"new")
    assert [item.key for item in store.prune(older_than=3600)] == [KEY]


def test_pruning_sweeps_what_killed_writers_left(store: Store) -> None:
    store.put("variants", KEY, b"code")
    left = entry(store).parent / ".abc.partial"
    left.write_bytes(b"half")
    store.prune(older_than=3600)
    assert left.exists()  # its writer may still be at work
    os.utime(left, (0, 0))
    store.prune(older_than=3600)
    assert not left.exists()


@given(st.dictionaries(st.text(min_size=1), st.binary()))
def test_parts_come_back_as_they_were_in_any_order(parts: dict[str, bytes]) -> None:
    assert unpack(pack(parts)) == parts
    assert pack(dict(reversed(parts.items()))) == pack(parts)


def test_a_full_disk_is_a_store_that_keeps_nothing_more(small_disk: Path) -> None:
    store = Store(small_disk / "cache")
    assert store.put("variants", KEY, b"small")
    assert not store.put("variants", "0" * 64, b"large" * (1 << 18))
    assert store.get("variants", KEY) == b"small"
    assert [path.name for path in small_disk.rglob("*.partial")] == []
