"""`cache --check` finds what a build would not use: damaged or of earlier versions, and what is not trusted."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from aot.cache.check import check
from aot.cache.store import Store, sealed
from aot.pipeline.plan import read_plan

KEY, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_check_removes_what_is_damaged_and_names_it(store: Store) -> None:
    store.put("recall", KEY, b'{"name": "verified", "record": {"manifest": "00"}}')
    store.put("recall", OTHER, b'{"name": "verified", "record": {"manifest": "11"}}')
    next(item.path for item in store.entries() if item.key == KEY).write_bytes(b"nonsense")
    assert [item.key for item in check(store, read_plan).damaged] == [KEY]
    assert [item.key for item in store.entries()] == [OTHER]
    assert check(store, read_plan).damaged == ()


@pytest.mark.parametrize("kind", ["variants", "libraries", "plans", "recall"])
@pytest.mark.parametrize("content", [b"", b"nonsense", zlib.compress(b"{}"), zlib.compress(bytes(1 << 20))])
def test_check_finds_a_sealed_entry_with_bad_content(store: Store, kind: str, content: bytes) -> None:
    store.put(kind, KEY, content)
    assert [(item.kind, item.key) for item in check(store, read_plan).damaged] == [(kind, KEY)]
    assert list(store.entries()) == []


def test_entries_of_kinds_that_are_no_longer_written_are_found_and_removed(store: Store) -> None:
    old = store.root / "durations" / KEY[:2] / f"{KEY}.entry"
    old.parent.mkdir(parents=True)
    old.write_bytes(sealed("durations", KEY, b"{}"))
    assert [item.kind for item in check(store, read_plan).damaged] == ["durations"]
    assert not old.exists()
