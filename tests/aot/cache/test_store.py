"""The store: entries appear whole, damage is a miss, many writers do no harm, pruning takes the least used."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from observing import open_below, run_python

from aot.cache.entries import EntryError
from aot.cache.store import Store

KEY, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def entry(store: Store, key: str = KEY) -> Path:
    (found,) = [item.path for item in store.entries() if item.key == key]
    return found


def test_what_was_put_comes_back(store: Store) -> None:
    assert store.get("variants", KEY, bytes) is None
    assert store.put("variants", KEY, b"code\nwith lines")
    assert store.get("variants", KEY, bytes) == b"code\nwith lines"
    assert store.get("libraries", KEY, bytes) is None


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b + b"!", lambda b: b[:70] + b"x" + b[71:], lambda b: b""]
)
def test_a_damaged_entry_is_a_miss_and_is_gone(store: Store, damage) -> None:  # type: ignore[no-untyped-def]
    store.put("variants", KEY, b"code" * 100)
    path = entry(store)
    path.write_bytes(damage(path.read_bytes()))
    assert store.get("variants", KEY, bytes) is None
    assert not path.exists()


def test_an_entry_moved_to_another_key_or_kind_is_a_miss(store: Store) -> None:
    store.put("variants", KEY, b"code")
    for kind, key in (("variants", OTHER), ("libraries", KEY)):
        moved = store.root / kind / key[:2] / f"{key}.entry"
        moved.parent.mkdir(parents=True)
        moved.write_bytes(entry(store).read_bytes())
        assert store.get(kind, key, bytes) is None
        assert not moved.exists()


def test_a_sealed_entry_with_bad_content_is_a_miss_and_is_gone(store: Store) -> None:
    def refuse(content: bytes) -> bytes:
        raise EntryError("bad")

    store.put("variants", KEY, b"nonsense")
    assert store.get("variants", KEY, refuse) is None
    assert list(store.entries()) == []


def test_an_entry_larger_than_the_limit_is_neither_kept_nor_read(tmp_path: Path) -> None:
    small, large = Store(tmp_path, limit=1000), Store(tmp_path)
    assert small.put("variants", KEY, bytes(1000))
    assert not small.put("variants", OTHER, bytes(1001))
    assert large.put("variants", OTHER, bytes(1001))
    assert small.get("variants", KEY, len) == 1000
    assert small.get("variants", OTHER, len) is None


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_not_a_file_is_a_miss_and_is_not_waited_for(store: Store, make: Callable[[Path], None]) -> None:
    store.put("variants", KEY, b"code")
    path = entry(store)
    path.unlink()
    make(path)
    assert store.get("variants", KEY, bytes) is None
    assert open_below(store.root) == []


# Folders that several people share.


def owned_by(path: Path, user: int, group: int = 0) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files to other users")
    os.chown(path, user, group)


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Whose builds these are, as far as the store asks."""
    return lambda user: monkeypatch.setattr(os, "geteuid", lambda: user)


def test_an_entry_of_another_user_is_not_trusted_and_stays(store: Store) -> None:
    store.put("variants", KEY, b"code")
    owned_by(entry(store), 1234)
    assert store.get("variants", KEY, bytes) is None
    assert [store.is_trusted(item) for item in store.entries()] == [False]


def test_the_owner_of_the_folder_is_trusted(store: Store, as_user: Callable[[int], None]) -> None:
    store.put("variants", KEY, b"code")
    for path, user in ((store.root, 1000), (entry(store), 1000)):
        owned_by(path, user)
    as_user(1001)
    assert store.get("variants", KEY, bytes) == b"code"
    owned_by(entry(store), 1002)
    assert store.get("variants", KEY, bytes) is None


def test_a_folder_shared_with_its_group_trusts_the_group(store: Store, as_user: Callable[[int], None]) -> None:
    store.root.mkdir()
    owned_by(store.root, 1000, 500)
    store.root.chmod(0o2775)
    store.put("variants", KEY, b"code")
    owned_by(entry(store), 1002, 500)
    as_user(1001)
    assert store.get("variants", KEY, bytes) == b"code"
    owned_by(entry(store), 1002, 600)
    assert store.get("variants", KEY, bytes) is None
    owned_by(entry(store), 1002, 500)
    store.root.chmod(0o2777)  # then anybody could have written there, with the folder's group
    assert store.get("variants", KEY, bytes) is None


SEVERAL_USERS = """
    import os, sys, traceback
    from pathlib import Path
    from aot.cache.places import own_folder
    from aot.cache.store import Store
    import tempfile
    folder = Path(sys.argv[1])
    GROUP, ANN, BEN, EVE = 45000, 45001, 45002, 45003

    def run(user, group, action, umask=0o077):
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(group)
                os.setuid(user)
                os.umask(umask)
                action(Store(folder))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def ann(store):
        assert store.put("variants", "ab" * 32, b"of ann")
    def ben(store):
        assert store.get("variants", "ab" * 32, bytes) == b"of ann"
        assert store.put("variants", "ab" * 31 + "cd", b"of ben")  # into the folder that Ann made
        tools = own_folder([folder])
        assert (tools.name, tools.stat().st_mode & 0o777) == (f"user-{BEN}", 0o700)
    def ann_again(store):
        assert store.get("variants", "ab" * 31 + "cd", bytes) == b"of ben"
        assert store.put("variants", "ab" * 31 + "cd", b"replaced")
    def eve(store):
        assert store.get("variants", "ab" * 32, bytes) == b"of ann"  # whoever names the folder trusts its group
        assert not store.put("variants", "ab" * 31 + "ef", b"of eve")
    def eve_where_all_may_write(store):
        assert store.put("variants", "ef" * 32, b"of eve")
    def ben_last(store):
        assert store.get("variants", "ef" * 32, bytes) is None
        assert store.get("variants", "ab" * 32, bytes) is None  # nor Ann's: Eve could have put it there

    os.chown(folder, 0, GROUP)
    os.chmod(folder, 0o2775)
    run(ANN, GROUP, ann)
    run(BEN, GROUP, ben)
    run(ANN, GROUP, ann_again)
    run(EVE, EVE, eve)
    os.chmod(folder, 0o2777)
    for path in folder.glob("variants"):
        os.chmod(path, 0o2777)
    run(EVE, EVE, eve_where_all_may_write)
    run(BEN, GROUP, ben_last)
"""


def test_users_of_one_system_share_a_folder_as_its_permissions_say() -> None:
    """Processes of other users, not files that were given to them."""
    if os.getuid() != 0:
        pytest.skip("only root can become other users")
    with tempfile.TemporaryDirectory() as outer:
        os.chmod(outer, 0o755)  # the folders of pytest are closed to other users
        folder = Path(outer) / "shared"
        folder.mkdir()
        run_python(SEVERAL_USERS, folder)


@pytest.mark.parametrize(
    ("folder", "own", "others"), [(0o2775, 0o664, 0o2775), (0o2770, 0o660, 0o2770), (0o755, 0o644, 0o755)]
)
def test_entries_are_as_open_as_the_folder(store: Store, folder: int, own: int, others: int) -> None:
    store.root.mkdir()
    store.root.chmod(folder)
    before = os.umask(0o077)
    try:
        assert store.put("variants", KEY, b"code")
    finally:
        os.umask(before)
    path = entry(store)
    assert stat.S_IMODE(path.stat().st_mode) == own
    assert {stat.S_IMODE(parent.stat().st_mode) for parent in path.parents[:2]} == {others}


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_an_entry_that_others_could_have_altered_is_not_trusted(store: Store, mode: int) -> None:
    store.put("variants", KEY, b"code")
    entry(store).chmod(mode)
    assert store.get("variants", KEY, bytes) is None


def test_a_store_that_cannot_be_written_is_a_store_without_entries(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = Store(tmp_path / "file")
    assert not store.put("variants", KEY, b"code")
    assert store.get("variants", KEY, bytes) is None
    assert list(store.entries()) == []


def test_many_writers_of_one_key_leave_one_whole_entry(store: Store) -> None:
    content = os.urandom(1 << 18)
    seen: list[bytes | None] = []

    def write() -> None:
        for _ in range(10):
            store.put("variants", KEY, content)
            seen.append(store.get("variants", KEY, bytes))

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
    store.get("variants", f"{0:064x}", bytes)  # used just now
    size = sum(item.size for item in store.entries())
    removed = store.prune(max_size=size // 2)
    assert [int(item.key, 16) for item in removed] == [1, 2]
    assert {int(item.key, 16) for item in store.entries()} == {0, 3}


def test_pruning_by_age_takes_what_was_not_used_for_so_long(store: Store) -> None:
    store.put("variants", KEY, b"old")
    os.utime(entry(store), (0, 0))
    store.put("variants", OTHER, b"new")
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


def test_a_full_disk_is_a_store_that_keeps_nothing_more(small_disk: Path) -> None:
    store = Store(small_disk / "cache")
    assert store.put("variants", KEY, b"small")
    assert not store.put("variants", "0" * 64, b"large" * (1 << 18))
    assert store.get("variants", KEY, bytes) == b"small"
    assert [path.name for path in small_disk.rglob("*.partial")] == []


def test_a_cache_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    said: list[str] = []
    store = Store(tmp_path / "file", warn=said.append)
    assert not store.put("recall", KEY, b"decided again in no time")
    assert said == []
    assert not store.put("variants", KEY, b"code")
    assert not store.put("libraries", KEY, b"code")
    assert store.get("variants", KEY, bytes) is None
    assert len(said) == 1
    assert str(tmp_path / "file") in said[0]
