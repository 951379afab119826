"""Whoever changes a bundle does so alone; the lock outlives neither its holder nor the bundle's directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aot.bundle.lock import locked
from aot.errors import BuildError, UsageError
from aot.files import owned_directory

HOLD = """
import sys
from pathlib import Path
from aot.bundle.lock import locked
with locked(Path(sys.argv[1]), lambda text: print(text, flush=True)):
    print("locked", flush=True)
    sys.stdin.read()
"""


def silent(text: str) -> None:
    raise AssertionError(text)


@contextmanager
def holder(bundle: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock, or waits for it, until its input ends."""
    command = [sys.executable, "-c", HOLD, str(bundle)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_what_is_held_is_refused_without_waiting_and_free_afterwards(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    with holder(bundle) as process:
        assert says(process) == "locked"
        with (
            pytest.raises(BuildError, match="another process is writing") as caught,
            locked(bundle, silent, wait=False),
        ):
            pass
        assert caught.value.hint == "leave out `--no-wait` to wait until it is done"
        with locked(tmp_path / "other", silent, wait=False):
            pass  # each directory has a lock of its own
        process.communicate("")
    with locked(bundle, silent, wait=False):
        assert [path.name for path in tmp_path.iterdir()] == [".bundle.lock"]
    assert list(tmp_path.iterdir()) == []


def test_who_waits_is_told_once_and_goes_on_when_the_other_is_done(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    with locked(bundle, silent), holder(bundle) as process:
        waiting = says(process)
    assert waiting == f"another process is writing `{bundle}`; waiting until it is done"
    with holder(bundle) as process:
        assert says(process) == "locked"


def test_a_killed_holder_leaves_nothing_locked(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    with holder(bundle) as process:
        assert says(process) == "locked"
        process.send_signal(signal.SIGKILL)
        process.wait()
    with locked(bundle, silent, wait=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_whoever_holds_the_lock_has_removed_what_a_killed_build_left_beside_the_bundle(tmp_path: Path) -> None:
    left, other = tmp_path / ".bundle.abc.staging", tmp_path / ".another.abc.staging"
    left.mkdir()
    other.mkdir()
    with owned_directory(tmp_path, prefix=".bundle.", suffix=".staging") as alive, locked(tmp_path / "bundle", silent):
        assert not left.exists() and other.exists() and alive.exists()


def test_never_two_at_once_though_each_removes_the_file(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def take_turns() -> None:
        for _ in range(50):
            with locked(tmp_path / "new" / "bundle", lambda text: None):
                inside.append(1)
                time.sleep(0.0005)  # so that another thread comes in if it can
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=take_turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 200
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.usefixtures("ends")
def test_who_has_waited_holds_the_lock_against_those_who_come_later(tmp_path: Path) -> None:
    """The file that it waited for was removed by its last holder: a lock on that one would keep nobody out."""
    waiting, inside, done = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        with locked(tmp_path / "bundle", lambda text: waiting.set()):
            inside.set()
            done.wait()

    thread = threading.Thread(target=wait, daemon=True)
    with locked(tmp_path / "bundle", silent):
        thread.start()
        waiting.wait()
    inside.wait()
    try:
        with pytest.raises(BuildError), locked(tmp_path / "bundle", silent, wait=False):
            pass
    finally:
        done.set()
        thread.join()


def test_folders_that_were_made_for_the_lock_alone_are_removed(tmp_path: Path) -> None:
    with locked(tmp_path / "new" / "folder" / "bundle", silent):
        assert (tmp_path / "new" / "folder").is_dir()
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "new" / "bundle", silent):
        (tmp_path / "new" / "bundle").mkdir()
    assert (tmp_path / "new" / "bundle").is_dir()


def test_the_lock_stays_when_the_directory_is_exchanged(tmp_path: Path) -> None:
    bundle, other = tmp_path / "bundle", tmp_path / "other"
    bundle.mkdir()
    other.mkdir()
    with locked(bundle, silent):
        os.rename(bundle, tmp_path / "aside")
        os.rename(other, bundle)
        with pytest.raises(BuildError), locked(bundle, silent, wait=False):
            pass


def test_a_link_and_the_directory_behind_it_have_one_lock(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with locked(tmp_path / "link", silent), pytest.raises(BuildError), locked(tmp_path / "real", silent, wait=False):
        pass


def test_a_place_that_cannot_hold_a_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UsageError, match=r"file` is not a directory"),
        locked(tmp_path / "file" / "bundle", silent),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "hint"),
    [(True, "make it writable, or work on a copy in another folder"), (False, "pass another `--out`")],
)
def test_what_changes_a_bundle_in_its_place_has_no_other_place_to_name(
    changes: bool, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``prune`` and ``sign`` have no ``--out``."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # root may write everywhere
    with (
        pytest.raises(UsageError, match="cannot write to") as caught,
        locked(tmp_path / "bundle", silent, changes=changes),
    ):
        pass
    assert caught.value.hint == hint
