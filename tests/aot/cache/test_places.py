"""Where things are kept: what is named, else the user's, else a temporary folder; tools in one that is this user's alone."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from aot.cache.places import Places, clear_tools, find_places, folders_of, own_folder, size_of_tools
from aot.cache.store import Store
from aot.errors import UsageError
from aot.files import make_marked

USER = f"user-{os.geteuid()}"
TEMPORARY = f"cute-aot-{os.geteuid()}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a temporary folder of the test's own."""
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "home"


def test_without_a_name_all_lies_in_the_users_cache(home: Path) -> None:
    user = home / ".cache" / "cute-aot"
    assert find_places(None, {}) == Places(user, user / "artifacts", None)
    assert stat.S_IMODE(user.stat().st_mode) == 0o700


def test_a_folder_that_is_named_holds_the_tools_too(tmp_path: Path) -> None:
    named = tmp_path / "named"
    assert find_places(str(named), {"AOT_CACHE": "other"}) == Places(named, named, None)
    assert find_places(None, {"AOT_CACHE": str(named)}) == Places(named, named, None)


def test_none_keeps_no_compiled_code(home: Path) -> None:
    assert find_places(None, {"AOT_CACHE": "none"}) == Places(home / ".cache" / "cute-aot", None, None)
    assert find_places("none", {"AOT_CACHE": "/elsewhere"}).artifacts is None


def test_a_url_stands_behind_the_folder(tmp_path: Path) -> None:
    named = tmp_path / "named"
    assert find_places("s3://bucket", {"AOT_CACHE": str(named)}) == Places(named, named, "s3://bucket")
    assert find_places(None, {"AOT_CACHE": "s3://bucket"}).remote == "s3://bucket"
    assert find_places(str(named), {"AOT_CACHE": "s3://bucket"}).remote is None


@pytest.mark.parametrize("mode", [0o2775, 0o777, 0o1777, 0o775])
def test_in_a_folder_that_others_may_write_to_the_tools_have_a_folder_of_this_user(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    places = find_places(str(shared), {})
    assert places == Places(shared / USER, shared, None)
    assert stat.S_IMODE(places.tools.stat().st_mode) & 0o777 == 0o700


def test_a_folder_of_this_users_name_that_is_another_users_is_not_used(tmp_path: Path, home: Path) -> None:
    shared = tmp_path / "shared"
    (shared / USER).mkdir(parents=True)
    shared.chmod(0o1777)
    (shared / USER).chmod(0o777)
    assert find_places(str(shared), {}).tools == home / ".cache" / "cute-aot"
    (shared / USER).rmdir()
    (shared / USER).symlink_to(tmp_path)
    if os.geteuid() == 0:
        os.lchown(shared / USER, 1234, 1234)
        assert find_places(str(shared), {}).tools == home / ".cache" / "cute-aot"


def test_a_home_that_cannot_hold_a_cache_is_replaced_by_a_temporary_folder(home: Path, tmp_path: Path) -> None:
    home.rmdir()
    home.write_text("not a folder")
    temporary = tmp_path / "tmp" / TEMPORARY
    assert find_places(None, {}) == Places(temporary, temporary / "artifacts", None)
    assert find_places(None, {}).tools == temporary  # the next build finds it again


def test_a_home_that_cannot_be_looked_at_is_replaced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /root is for other users of a container. Its superuser may look anywhere, so that the name is too long here."""
    monkeypatch.setenv("HOME", str(tmp_path / ("x" * 300)))
    temporary = tmp_path / "tmp" / TEMPORARY
    assert find_places(None, {}) == Places(temporary, temporary / "artifacts", None)
    assert [entry for folder in folders_of(None, {}) for entry in Store(folder).entries()] == []
    unseen = Store(tmp_path / ("x" * 300))
    unseen.clear()
    assert unseen.is_empty("variants") and not unseen.has("variants", "ab" * 32)
    with pytest.raises(UsageError, match="cannot be read: File name too long"):
        folders_of(str(unseen.root), {})


def test_without_any_home_no_folder_named_after_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    def unknown(name: str) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.chdir(tmp_path)
    for answer in (unknown, lambda name: f"~/.cache/{name}"):  # newer versions raise
        monkeypatch.setattr(platformdirs, "user_cache_dir", answer)
        assert find_places(None, {}).tools == tmp_path / "tmp" / TEMPORARY
        assert not (tmp_path / "~").exists()


def test_a_temporary_folder_that_somebody_else_made_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "tmp" / TEMPORARY).mkdir()
    (tmp_path / "tmp" / TEMPORARY).chmod(0o777)
    own = own_folder()
    assert own != tmp_path / "tmp" / TEMPORARY
    assert own.parent == tmp_path / "tmp"
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


def test_a_cache_that_may_only_be_read_is_still_the_default(home: Path, tmp_path: Path) -> None:
    user = home / ".cache" / "cute-aot"
    (user / "artifacts").mkdir(parents=True)
    user.chmod(0o777)  # not for tools
    assert find_places(None, {}) == Places(user / USER, user / "artifacts", None)


def test_only_marked_folders_of_tools_are_counted_and_cleared(tmp_path: Path) -> None:
    for name in ("zig/global", "wheels/nvidia"):
        make_marked(tmp_path / "cache" / name)
    for name in ("zig/mine", "other", "zig/global/o"):
        (tmp_path / "cache" / name).mkdir()
        (tmp_path / "cache" / name / "file").write_bytes(bytes(100))
    (tmp_path / "cache" / "wheels" / "link").symlink_to(tmp_path / "cache" / "zig" / "global")
    assert size_of_tools(tmp_path / "cache", "zig")[0] == 2  # the mark, and the file in it
    clear_tools(tmp_path / "cache")
    left = {str(path.relative_to(tmp_path / "cache")) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"zig/mine/file", "other/file"}
    assert (tmp_path / "cache" / "wheels" / "link").is_symlink()


def test_the_folders_of_a_cache_that_is_named_are_its_own(tmp_path: Path, home: Path) -> None:
    named = tmp_path / "named"
    named.mkdir()
    assert folders_of(str(named), {"AOT_CACHE": "other"}) == (named, named / USER)
    assert folders_of(None, {"AOT_CACHE": str(named)}) == (named, named / USER)
    user = home / ".cache" / "cute-aot"
    assert folders_of(None, {})[0] == user / "artifacts"
    assert {user, user / USER, tmp_path / "tmp" / TEMPORARY} <= set(folders_of(None, {}))
    (tmp_path / "tmp" / TEMPORARY / "artifacts").mkdir(parents=True)  # of builds that had no home
    assert folders_of(None, {})[0] == tmp_path / "tmp" / TEMPORARY / "artifacts"


@pytest.mark.parametrize("missing", ["missing", "file", "none"])
def test_a_cache_that_does_not_exist_has_no_folders(
    tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError):
        folders_of(missing, {})
    assert not (tmp_path / "missing").exists()


def test_tools_leave_a_disk_that_is_nearly_full(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """zig fails if it finds no room, long after kernels were compiled."""
    full: list[Path] = []

    def usage(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(free=3 << 20 if any(Path(folder).is_relative_to(disk) for disk in full) else 1 << 40)

    monkeypatch.setattr("shutil.disk_usage", usage)
    named = tmp_path / "named"
    full.append(named)
    assert find_places(str(named), {}) == Places(home / ".cache" / "cute-aot", named, None)
    full.append(home)
    assert find_places(str(named), {}).tools == tmp_path / "tmp" / TEMPORARY
    full.append(tmp_path)
    assert find_places(str(named), {}).tools == named
