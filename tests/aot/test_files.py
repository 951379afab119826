"""Files appear whole or not at all, and what killed processes left is swept: on a full disk a second try works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aot_runtime.arch import Arch
from faults import room_for

from aot.bundle.signature import new_key, public_path
from aot.errors import BuildError, UsageError
from aot.files import full_disk, is_marked, make_marked, owned_directory, read_given, scratch_directory, write_whole
from aot.gpu.bench import read_results
from aot.gpu.check import read_report
from aot.gpu.modelling import read_times
from aot.pipeline.executing.security import read_security
from aot.wheel.archive import Wheel, write_wheels
from aot.wheel.hub import Hub, write_hub
from aot.wheel.identity import Identity
from aot.wheel.new import new_project


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "old")
    with room_for(100), pytest.raises(OSError) as error:
        write_whole(tmp_path / "file", "new" * 100)
    assert error.value.filename == str(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "old"
    assert everything_in(tmp_path) == ["file"]
    write_whole(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_a_link_and_a_device_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"
    with pytest.raises(OSError):
        write_whole(Path("/dev/full"), "text")
    write_whole(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    "read", [read_given, read_results, read_report, lambda path: read_times([path]), read_security]
)
def test_a_file_that_never_ends_is_an_error_that_takes_little_memory(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aot.files._LONGEST_TEXT", 1 << 20)
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    for path in (Path("/dev/zero"), tmp_path / "sparse"):
        with pytest.raises((OSError, UsageError), match="more than 1 MB"):
            read(path)


def test_a_key_that_cannot_be_written_can_be_made_later(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    key = tmp_path / "key.pem"
    with room_for(10), pytest.raises(UsageError) as error:
        new_key(key)
    assert str(key) in error.value.message
    assert everything_in(tmp_path) == []
    new_key(key)
    assert key.stat().st_size > 0 < public_path(key).stat().st_size


def test_a_public_key_that_cannot_be_written_takes_the_private_one_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    from aot.bundle import signature

    write = signature.write_new

    def fail_for_public(path: Path, content: bytes, mode: int) -> None:
        with room_for(10 if path == public_path(tmp_path / "key") else 1 << 20):
            write(path, content, mode)

    monkeypatch.setattr(signature, "write_new", fail_for_public)
    with pytest.raises(UsageError):
        new_key(tmp_path / "key")
    assert everything_in(tmp_path) == []


def test_a_project_that_cannot_be_written_can_be_made_later(tmp_path: Path) -> None:
    with room_for(500), pytest.raises(OSError) as error:
        new_project(tmp_path / "new" / "demo")
    assert error.value.filename.startswith(str(tmp_path / "new" / "demo"))
    assert everything_in(tmp_path) == []
    assert all(path.is_file() for path in new_project(tmp_path / "demo"))
    (tmp_path / "empty").mkdir()
    assert all(path.is_file() for path in new_project(tmp_path / "empty"))


LEAVE = """
import os, sys
from pathlib import Path
from aot.files import scratch_directory
with scratch_directory(Path(sys.argv[1]), prefix=sys.argv[2]) as folder:
    (folder / "file").touch()
    os._exit(1)
"""


def leave(folder: Path, prefix: str) -> None:
    """What a process leaves that is killed."""
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    subprocess.run([sys.executable, "-c", LEAVE, str(folder), prefix], env={**os.environ, "PYTHONPATH": path})
    assert any(path.name.startswith(prefix) for path in folder.iterdir())


def test_what_a_killed_process_left_is_swept_and_what_is_in_use_stays(tmp_path: Path) -> None:
    with owned_directory(tmp_path, prefix="work-") as used:
        leave(tmp_path, "work-")
        with scratch_directory(tmp_path, prefix="work-") as mine:
            assert set(tmp_path.iterdir()) == {used, mine}
    assert everything_in(tmp_path) == []


def test_wheels_sweep_what_a_killed_process_left(tmp_path: Path) -> None:
    leave(tmp_path, ".cute-aot-wheels-")
    (made,) = write_wheels([Wheel("demo", "1.0", "py3-none-any", {"demo.py": b""})], tmp_path)
    assert list(tmp_path.iterdir()) == [made]


def test_wheels_that_cannot_be_written_leave_nothing(tmp_path: Path) -> None:
    wheel = Wheel("demo", "1.0", "py3-none-manylinux_2_28_x86_64", {"demo/code.py": os.urandom(4000)})
    hub = Hub(Identity.parse("demo", "1.0"), "0" * 64, (Arch.parse("sm_80"),), "12", "other")
    for write in (write_wheels, lambda wheels, folder: write_hub(wheels, hub, folder)):
        with room_for(100), pytest.raises(BuildError):
            write([wheel], tmp_path / "new" / "wheels")
        assert everything_in(tmp_path) == []


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert full_disk(tmp_path, tmp_path / "missing") is None
    usage = type("Usage", (), {"free": 5 << 10})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    assert str(tmp_path) in str(full_disk(tmp_path))


def test_a_folder_that_was_there_is_not_marked(tmp_path: Path) -> None:
    make_marked(tmp_path)
    assert not is_marked(tmp_path)
    make_marked(tmp_path / "a" / "b")
    assert is_marked(tmp_path / "a" / "b")
    assert not is_marked(tmp_path / "a")
