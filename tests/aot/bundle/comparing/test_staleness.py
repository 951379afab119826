"""Whether a bundle is what its sources say is told by digests; nothing of the sources is executed for it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import KernelRecord

from aot.bundle.comparing.staleness import Stale, find_source, known_stale, stale_kernels, stale_text, unrecorded
from aot.bundle.manifest import Manifest

SM80, SM90 = Arch.parse("sm_80"), Arch.parse("sm_90a")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def manifest(files: dict[str, str], modules: dict[str, str] | None = None, **source: Any) -> Manifest:
    built = {"archs": ["sm_80"], "files": files, "modules": modules or {}}
    record = {
        "source": {"name": "kernels", "files": {}, **source},
        "options": {},
        "versions": {},
        "built": {"add": built},
    }
    kernels = {"add": KernelRecord("add", "", (), (), ("add",), (SM80, SM90), 2)}
    return Manifest("b", True, kernels, {}, provenance=(record,))


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    (tmp_path / "kernels" / "rows").mkdir(parents=True)
    (tmp_path / "kernels" / "__init__.py").write_text("")
    (tmp_path / "kernels" / "rows" / "add.py").write_text("raise SystemExit('executed')\n")
    return tmp_path / "kernels"


ADD = {"__init__.py": digest(""), "rows/add.py": digest("raise SystemExit('executed')\n")}


def test_a_kernel_is_stale_if_a_file_that_it_came_from_changed_or_is_gone(kernels: Path) -> None:
    assert stale_kernels(manifest(ADD), kernels) == []
    (kernels / "rows" / "other.py").write_text("")  # it came from no such file
    assert stale_kernels(manifest(ADD), kernels) == []
    assert stale_kernels(manifest({**ADD, "rows/add.py": digest("")}), kernels) == [
        Stale("add", ("sm_80",), "rows/add.py changed")
    ]
    assert stale_kernels(manifest({"rows/mul.py": digest("")}), kernels)[0].reason == "rows/mul.py is gone"


def test_modules_of_elsewhere_count_if_they_are_here(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "aot_test_beside").mkdir()
    for file in ("aot_test_beside/__init__.py", "aot_test_beside/tiles.py", "aot_test_alone.py"):
        (tmp_path / file).write_text("raise SystemExit('executed')\n")
    names = ("aot_test_beside.tiles", "aot_test_alone")
    assert stale_kernels(manifest(ADD, dict.fromkeys(names, digest(""))), kernels) == []  # nobody can tell
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in names:
        assert stale_kernels(manifest(ADD, {name: digest("raise SystemExit('executed')\n")}), kernels) == []
        assert stale_kernels(manifest(ADD, {name: digest("")}), kernels)[0].reason == f"{name} changed"


def test_the_source_is_found_beside_the_bundle_and_not_mistaken(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    bundle = tmp_path / "dist" / "kernels"
    assert find_source(bundle, manifest(ADD)) == kernels
    assert find_source(tmp_path / "a" / "b" / "c" / "d" / "kernels", manifest(ADD)) is None
    assert find_source(bundle, manifest({"__init__.py": digest("")})) is None  # any folder may have one
    assert find_source(bundle, manifest(ADD, name="../kernels")) is None
    assert known_stale(bundle, manifest(ADD)) == []
    assert known_stale(tmp_path / "a" / "b" / "c" / "d" / "kernels", manifest(ADD)) is None


def test_what_a_bundle_names_is_read_only_if_it_is_a_file_of_a_source(kernels: Path) -> None:
    os.mkfifo(kernels / "rows" / "pipe.py")
    (kernels / "rows" / "zero.py").symlink_to("/dev/zero")
    for name in ("rows/pipe.py", "rows/zero.py"):
        assert len(stale_kernels(manifest({name: digest("")}), kernels)) == 1
    assert stale_kernels(manifest(ADD, {"json.../../../etc/passwd": digest("")}), kernels) == []


def test_what_no_build_accounts_for_is_known() -> None:
    whole = manifest(ADD)
    assert unrecorded(whole) == {("add", "sm_90a")}
    assert unrecorded(whole.replace(provenance=())) == {("add", "sm_80"), ("add", "sm_90a")}


def test_kernels_that_are_stale_for_the_same_reason_are_told_together() -> None:
    stale = [
        Stale(name, ("sm_90a",), reason)
        for name, reason in (("a", "x changed"), ("b", "x changed"), ("c", "y is gone"))
    ]
    assert stale_text(stale) == "3 kernels are stale: x changed (a, b); y is gone (c)"
    assert stale_text(stale[:1]) == "1 kernel is stale: x changed (a)"
