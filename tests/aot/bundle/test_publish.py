"""At every instant the destination is the old bundle or the new one, whole; nothing half-written stays."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aot.bundle import publish as publish_module
from aot.bundle.manifest import Manifest
from aot.bundle.publish import Destination, check_destination, publish, real_directory, staging
from aot.errors import BuildError, UsageError


def write_bundle(folder: Path, number: int, *, complete: bool = True) -> None:
    """A bundle as far as publishing goes: a manifest, and another file that must be of the same build."""
    for name, text in Manifest(f"b{number}", complete, {}, {}, {}).texts().items():
        (folder / name).write_bytes(text)
    (folder / "lib").write_text(str(number) * 1000)


def put(destination: Path, number: int) -> None:
    with staging(destination) as staged:
        write_bundle(staged, number)
        publish(staged, destination)


def number_of(bundle: Path) -> int:
    number = int(json.loads((bundle / "manifest.json").read_text())["name"][1:])
    assert (bundle / "lib").read_text() == str(number) * 1000
    return number


def left_beside(destination: Path) -> list[str]:
    return sorted(path.name for path in destination.parent.iterdir() if path.name != destination.name)


@pytest.fixture(params=["exchange", "swap"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the system's exchange of two directories, and with the two renames where it has none."""
    if request.param == "swap":
        monkeypatch.setattr(publish_module, "_exchange", lambda left, right: False)
    return str(request.param)


def test_a_bundle_appears_where_nothing_was(tmp_path: Path) -> None:
    put(tmp_path / "new" / "folders" / "bundle", 1)
    assert number_of(tmp_path / "new" / "folders" / "bundle") == 1
    assert left_beside(tmp_path / "new" / "folders" / "bundle") == []


def test_a_bundle_replaces_another_and_leaves_nothing_beside_it(way: str, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        put(tmp_path / "bundle", number)
        assert number_of(tmp_path / "bundle") == number
    assert left_beside(tmp_path / "bundle") == []


def test_a_bundle_fills_an_empty_directory(way: str, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    put(tmp_path / "bundle", 1)
    assert number_of(tmp_path / "bundle") == 1


def test_a_link_to_a_bundle_stays_a_link_even_across_file_systems(way: str, tmp_path: Path, small_disk: Path) -> None:
    for real in (tmp_path / "real", small_disk / "real"):
        link = tmp_path / f"link-{real.parent.name}"
        put(real, 1)
        link.symlink_to(real)
        put(link, 2)
        assert link.is_symlink()
        assert number_of(real) == 2
        assert left_beside(real) == [name for name in left_beside(real) if not name.startswith(".")]


def test_a_relative_destination_is_taken_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put(Path("bundle"), 1)
    put(Path("./bundle"), 2)
    assert number_of(tmp_path / "bundle") == 2


def test_a_published_bundle_can_be_read_by_others(tmp_path: Path) -> None:
    put(tmp_path / "bundle", 1)
    assert (tmp_path / "bundle").stat().st_mode & 0o777 == 0o755


def test_a_reader_never_sees_a_missing_or_torn_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest can always be read; and with the directory opened once, both files are of one build."""
    # What a process sees does not depend on when data reaches the disk, for which the readers would wait at full speed.
    monkeypatch.setattr(publish_module, "_flush", lambda directory: None)
    bundle = tmp_path / "bundle"
    put(bundle, 0)
    seen: set[int] = set()
    wrong: list[str] = []
    started, done = threading.Barrier(3), threading.Event()

    def read() -> None:
        started.wait()
        while not done.is_set():
            try:
                json.loads((bundle / "manifest.json").read_text())
                seen.add(_number_at_one_instant(bundle))
            except Exception as error:
                wrong.append(repr(error))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    started.wait()
    number = 0
    while number < 200 or not (seen or wrong):  # the readers have read something while bundles were replaced
        number += 1
        put(bundle, number % 7)
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert seen <= set(range(7))
    assert seen


def _number_at_one_instant(bundle: Path) -> int:
    """The number of the bundle whose directory was there when it was opened; it may be replaced meanwhile."""
    while True:
        folder = os.open(bundle, os.O_RDONLY | os.O_DIRECTORY)
        try:
            texts = [_read_at(folder, name) for name in ("manifest.json", "lib")]
        except FileNotFoundError:
            continue  # replaced and removed between the two opens: of an instant that has passed
        finally:
            os.close(folder)
        number = int(json.loads(texts[0])["name"][1:])
        assert texts[1] == str(number) * 1000
        return number


def _read_at(folder: int, name: str) -> str:
    with open(os.open(name, os.O_RDONLY, dir_fd=folder)) as file:
        return file.read()


_ENDLESS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_publish import put
number = 0
while True:
    put(Path(sys.argv[1]), number % 10)
    number += 1
    print(number, flush=True)
"""


@pytest.mark.parametrize("after", [1, 5, 20])
def test_a_publish_that_is_killed_leaves_the_old_bundle_or_the_new(after: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _ENDLESS, str(tmp_path / "bundle"), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for _ in range(after):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert number_of(tmp_path / "bundle") in range(10)
    put(tmp_path / "bundle", 5)  # what was left beside it is in nobody's way
    assert number_of(tmp_path / "bundle") == 5


def test_two_that_publish_at_once_leave_one_of_the_two(way: str, tmp_path: Path) -> None:
    put(tmp_path / "bundle", 0)
    errors: list[BaseException] = []

    def many(number: int) -> None:
        try:
            for _ in range(30):
                put(tmp_path / "bundle", number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=many, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Where the system cannot exchange, one of two that swap at once may find the place empty and say so.
    assert way == "swap" or errors == []
    assert all(isinstance(error, BuildError) for error in errors)
    assert number_of(tmp_path / "bundle") in (1, 2)
    assert left_beside(tmp_path / "bundle") == []


def fail(place: Path) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(place))


def overtake(place: Path) -> None:
    """As another build that publishes at that moment."""
    place.mkdir()
    write_bundle(place, 3)


@pytest.mark.parametrize(
    ("halfway", "message", "number"),
    [(fail, "Input/output error", 1), (overtake, "Directory not empty", 3)],
    ids=["puts the old bundle back", "leaves the bundle of another build"],
)
def test_a_swap_that_fails_halfway(
    halfway: Callable[[Path], None], message: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bundle", 1)
    monkeypatch.setattr(publish_module, "_exchange", lambda left, right: False)
    rename = os.rename
    calls: list[object] = []

    def interrupted(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 2:
            halfway(target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(BuildError, match=f"cannot write the bundle: {message}"):
        put(tmp_path / "bundle", 2)
    assert number_of(tmp_path / "bundle") == number
    assert left_beside(tmp_path / "bundle") == []


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_exchange_is_swapped(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        @staticmethod
        def renameat2(*arguments: object) -> int:
            return -1

    monkeypatch.setattr(publish_module.ctypes, "CDLL", lambda *arguments, **options: Library)
    monkeypatch.setattr(publish_module.ctypes, "get_errno", lambda: code)
    put(tmp_path / "bundle", 1)
    put(tmp_path / "bundle", 2)
    assert number_of(tmp_path / "bundle") == 2


def test_any_other_refusal_of_the_system_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        @staticmethod
        def renameat2(*arguments: object) -> int:
            return -1

    put(tmp_path / "bundle", 1)
    monkeypatch.setattr(publish_module.ctypes, "CDLL", lambda *arguments, **options: Library)
    monkeypatch.setattr(publish_module.ctypes, "get_errno", lambda: errno.EACCES)
    with pytest.raises(BuildError, match="cannot write the bundle: Permission denied"):
        put(tmp_path / "bundle", 2)
    assert number_of(tmp_path / "bundle") == 1


def test_whatever_fails_while_staging_leaves_nothing(tmp_path: Path) -> None:
    put(tmp_path / "bundle", 1)
    with pytest.raises(KeyboardInterrupt), staging(tmp_path / "bundle") as staged:
        write_bundle(staged, 2)
        raise KeyboardInterrupt
    assert number_of(tmp_path / "bundle") == 1
    assert left_beside(tmp_path / "bundle") == []


def test_a_full_disk_keeps_the_old_bundle_and_is_named(small_disk: Path) -> None:
    put(small_disk / "bundle", 1)
    with (
        pytest.raises(BuildError, match="cannot write the bundle: No space left on device"),
        staging(small_disk / "bundle") as staged,
    ):
        (staged / "lib").write_bytes(bytes(2 << 20))
    assert number_of(small_disk / "bundle") == 1
    assert left_beside(small_disk / "bundle") == []


def test_a_copy_that_fails_is_named_by_what_it_writes(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"No space left on device \(`/full/library`\)"), staging(tmp_path / "bundle"):
        raise OSError(errno.ENOSPC, "No space left on device", "/scratch/library", None, "/full/library")


def test_nothing_an_empty_directory_and_a_bundle_are_good_destinations(tmp_path: Path) -> None:
    assert check_destination(tmp_path / "nothing" / "yet") == Destination(tmp_path / "nothing" / "yet")
    (tmp_path / "empty").mkdir()
    assert check_destination(tmp_path / "empty") == Destination(tmp_path / "empty")
    put(tmp_path / "bundle", 4)
    manifest = check_destination(tmp_path / "bundle").manifest
    assert manifest is not None
    assert (manifest.name, manifest.complete) == ("b4", True)


def test_a_damaged_bundle_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    assert check_destination(tmp_path) == Destination(tmp_path, is_damaged=True)


def test_the_bundle_of_an_installed_package_is_never_replaced(tmp_path: Path) -> None:
    """The package refuses any other manifest than its own."""
    for name in ("_bundle", "bundle"):
        put(tmp_path / name, 1)
        check_destination(tmp_path / name)
    (tmp_path / "__init__.py").write_text("")
    check_destination(tmp_path / "bundle")
    with pytest.raises(UsageError, match="belongs to an installed package"):
        check_destination(tmp_path / "_bundle")


def test_a_folder_with_a_manifest_of_another_program_is_never_replaced(tmp_path: Path) -> None:
    for folder in (tmp_path / "extension", tmp_path / "bundle"):
        put(folder, 1)
        (folder / "src").mkdir()
        (folder / "src" / "work.js").write_text("years of work")
    (tmp_path / "extension" / "manifest.json").write_text('{"name": "extension", "manifest_version": 3}')
    for folder in (tmp_path / "extension", tmp_path / "bundle"):
        with pytest.raises(UsageError, match="'src', which is no part of a bundle") as caught:
            check_destination(folder)
        assert caught.value.hint
    (tmp_path / "bundle" / "src").rename(tmp_path / "bundle" / ".nfs0001")  # a file that somebody has open
    assert check_destination(tmp_path / "bundle").manifest is not None


def test_what_is_not_a_bundle_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="folder` holds something that is not a bundle"):
        check_destination(tmp_path / "folder")
    with pytest.raises(UsageError, match="file` is not a directory"):
        check_destination(tmp_path / "file")
    with pytest.raises(UsageError, match=r"dangling` is a link to `.*nowhere`, which does not exist"):
        check_destination(tmp_path / "dangling")
    with pytest.raises(UsageError, match="is not a directory"):
        check_destination(tmp_path / "file" / "below" / "it")


def test_a_link_that_leads_to_itself_and_the_root_are_no_places_for_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "back")
    (tmp_path / "back").symlink_to(tmp_path / "loop")
    with pytest.raises(UsageError, match="loop` is a link that leads to itself"):
        real_directory(tmp_path / "loop")
    with pytest.raises(UsageError, match="`/` cannot be replaced by a bundle"):
        real_directory(Path("/"))


def test_a_folder_that_another_build_removes_and_makes_meanwhile_is_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ask = tmp_path / "new", os.access
    folder.mkdir()

    def ask_while_it_is_gone(path: str, mode: int, **options: int) -> bool:
        folder.rmdir()
        allowed = ask(path, mode, **options)
        folder.mkdir()
        return allowed

    monkeypatch.setattr(os, "access", ask_while_it_is_gone)
    assert check_destination(folder / "bundle").manifest is None


_AS_NOBODY = """
import os, sys
from pathlib import Path
from aot.errors import UsageError
from aot.bundle.publish import check_destination, staging
if os.geteuid() == 0:
    os.setuid(65534)
for use in (check_destination, lambda path: staging(path).__enter__()):
    try:
        use(Path(sys.argv[1]))
        print("allowed")
    except UsageError as error:
        print(error.message, "|", error.hint)
"""


@pytest.mark.parametrize(("mode", "inside"), [(0o555, "bundle"), (0o555, "new/bundle"), (0o000, "bundle")])
def test_a_directory_that_may_not_be_written_is_refused_before_anything_is_compiled(mode: int, inside: str) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(mode)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", _AS_NOBODY, str(folder / inside)]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
    finally:
        folder.chmod(0o755)
        folder.rmdir()
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "cannot " in line
        assert line.endswith("| pass another `--out`")
