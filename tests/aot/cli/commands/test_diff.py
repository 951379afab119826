"""``diff``: exit code 0 if nothing differs, 1 if something does, 2 if the question is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from aot.cli.main import main


@pytest.fixture
def other(small_bundle_path: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(small_bundle_path, tmp_path / "other"))
    data = json.loads((copy / "manifest.json").read_text())
    data["toolchain"]["ziglang"] = "0.99"
    (copy / "manifest.json").write_text(json.dumps(data))
    return copy


def test_nothing_differs(small_bundle_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(small_bundle_path), str(small_bundle_path)]) == 0
    assert capsys.readouterr() == ("", "no differences\n")


def test_differences_are_listed_by_kind(
    small_bundle_path: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(small_bundle_path), str(other)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("toolchain\n  what     before  after\n  ziglang  ")
    assert err == "1 difference\n"


def test_only_what_matters_counts(small_bundle_path: Path, other: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["diff", str(small_bundle_path), str(other), "--only"]
    assert main([*words, "signatures,resources", "--only", "code"]) == 0
    assert main([*words, "toolchain", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [(change["kind"], change["what"], change["after"]) for change in data["changes"]] == [
        ("toolchain", "ziglang", "0.99")
    ]
    assert main([*words, "colours"]) == 2
    assert "hint: known: bundle, hosts" in capsys.readouterr().err
