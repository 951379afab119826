"""What earlier builds left is found again, as long as nothing it came from has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aot.cache import keys, recall
from aot.cache.check import Findings, check
from aot.cache.store import Store
from aot.compile.messages import Closure, Options
from aot.files import sha256_of
from aot.pipeline.plan import read_plan


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "k.py").write_text("kernel")
    return tmp_path / "kernels"


def watched(source: Path, current: str = "") -> Closure:
    files = {str(path): sha256_of(path) for path in source.iterdir()}
    return Closure({}, files, {str(source): ("k.py",)}, {"AOT_TEST_TILE": None}, {}, ("aot_test_library",), current)


def test_a_plan_holds_until_a_file_a_folder_a_variable_or_a_library_changes(
    store: Store, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = recall.Request(str(source), ("sm90",), (), Options())
    assert recall.unchanged(store, request) is None
    outline = recall.Outline("ab" * 32, 12, {})
    recall.keep_source(store, request, outline, [watched(source)])
    assert recall.unchanged(store, request) == outline
    monkeypatch.setenv("AOT_TEST_TILE", "64")
    assert recall.unchanged(store, request) is None
    monkeypatch.delenv("AOT_TEST_TILE")
    (source / "new.py").touch()
    assert recall.unchanged(store, request) is None
    os.unlink(source / "new.py")
    assert recall.unchanged(store, request) == outline
    (tmp_path / "libraries" / "aot_test_library").mkdir(parents=True)
    with monkeypatch.context() as installed:
        installed.syspath_prepend(str(tmp_path / "libraries"))
        assert recall.unchanged(store, request) is None
    (source / "k.py").write_text("other")
    assert recall.unchanged(store, request) is None


@pytest.mark.parametrize("replace", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_a_file_that_became_a_pipe_a_device_or_a_folder_has_changed(
    replace: Callable[[Path], None], store: Store, source: Path
) -> None:
    request = recall.Request(str(source), ("sm90",), (), Options())
    recall.keep_source(store, request, recall.Outline("ab" * 32, 12, {}), [watched(source)])
    (source / "k.py").unlink()
    replace(source / "k.py")
    assert recall.unchanged(store, request) is None


def test_a_plan_holds_only_where_imports_find_what_they_found(
    store: Store, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders may have modules of one name: which is found depends on where a build is started, and on PYTHONPATH."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "aot_test_library.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    request, outline = recall.Request(str(source), ("sm90",), (), Options()), recall.Outline("ab" * 32, 12, {})
    recall.keep_source(store, request, outline, [watched(source)])
    assert recall.unchanged(store, request) == outline
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(tmp_path / "there")
        assert recall.unchanged(store, request) is None
    with monkeypatch.context() as hidden:
        hidden.syspath_prepend(str(tmp_path / "there"))
        assert recall.unchanged(store, request) is None
    (tmp_path / "here" / "aot_test_library.py").unlink()
    assert recall.unchanged(store, request) is None


def test_a_plan_whose_source_read_a_file_of_the_current_folder_holds_there_alone(
    store: Store, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source)
    request, outline = recall.Request(str(source), ("sm90",), (), Options()), recall.Outline("ab" * 32, 12, {})
    recall.keep_source(store, request, outline, [watched(source, current=str(source))])
    assert recall.unchanged(store, request) == outline
    monkeypatch.chdir(tmp_path)
    assert recall.unchanged(store, request) is None


def test_bundles_and_verdicts_go_by_the_manifest(store: Store, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for number in range(20):
        (bundle / "manifest.json").write_text(str(number))
        digest = sha256_of(bundle / "manifest.json")
        assert not recall.is_made(store, "ab" * 32, digest)
        assert not recall.is_verified(store, bundle)
        recall.keep_made(store, "ab" * 32, bundle)
        recall.keep_verified(store, bundle)
        assert recall.is_made(store, "ab" * 32, digest)
        assert recall.is_verified(store, bundle)


def test_durations_of_several_builds_add_up(store: Store) -> None:
    recall.keep_durations(store, "kernels", {"sm_90a a": 1.0})
    recall.keep_durations(store, "kernels", {"sm_90a b": 2.0})
    assert recall.durations(store, "kernels") == {"sm_90a a": 1.0, "sm_90a b": 2.0}
    assert recall.durations(store, "others") == {}


@pytest.mark.parametrize(
    "content",
    [b"nonsense", b"[]", b'{"name": "made"}', b'{"name": "x", "record": {}}', b'{"name": "made", "record": 1}'],
)
def test_a_sealed_record_with_bad_content_is_a_miss_and_check_finds_it(store: Store, content: bytes) -> None:
    key = keys.durations_key("kernels")
    store.put("recall", key, content)
    assert [entry.key for entry in check(store, read_plan).damaged] == [key]
    store.put("recall", key, content)
    assert recall.durations(store, "kernels") == {}
    assert check(store, read_plan) == Findings((), ())


def test_a_record_of_another_kind_is_a_miss(store: Store) -> None:
    store.put("recall", keys.durations_key("kernels"), b'{"name": "made", "record": {"manifests": []}}')
    assert recall.durations(store, "kernels") == {}
