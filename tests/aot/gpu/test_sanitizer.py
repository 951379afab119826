"""``check --sanitize`` runs the checks under compute-sanitizer; here a script stands for it, which runs nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aot.cli.commands import check
from aot.cli.main import main
from aot.gpu.sanitizer import FOUND
from tools.json_types import problems


@pytest.fixture
def sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def install(code: int) -> None:
        program = tmp_path / "compute-sanitizer"
        program.write_text(f'#!/bin/sh\necho "========= $1 $2 $7 $8 $9"\nexit {code}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


@pytest.mark.parametrize(
    ("code", "exit_code", "verdict"),
    [(0, 0, "nothing was found"), (FOUND, 1, "it found errors"), (1, 1, "the check failed")],
)
def test_its_exit_code_is_the_verdict(
    sanitizer: Callable[[int], None],
    small_bundle_path: Path,
    code: int,
    exit_code: int,
    verdict: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sanitizer(code)
    assert main(["check", str(small_bundle_path), "--sanitize", "racecheck", "--kernel", "fill*"]) == exit_code
    out, err = capsys.readouterr()
    assert out == f"========= --tool=racecheck --error-exitcode={FOUND} {small_bundle_path} --kernel fill*\n"
    assert err == f"{small_bundle_path}: racecheck: {verdict}\n"


def test_as_json(sanitizer: Callable[[int], None], small_bundle_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sanitizer(FOUND)
    assert main(["check", str(small_bundle_path), "--sanitize", "memcheck", "--dtype", "f16", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert problems(data, check.KEYS, partly=True) == []
    assert data["passed"] is False
    assert data["command"][-3:] == [str(small_bundle_path), "--dtype", "f16"]


def test_without_it_the_exact_command_is_named(
    small_bundle_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["check", str(small_bundle_path), "--sanitize", "memcheck"]) == 2
    err = capsys.readouterr().err
    assert "error: compute-sanitizer is not installed\n" in err
    assert "run `compute-sanitizer --tool=memcheck --error-exitcode=99 " in err
    assert f"-m aot check {small_bundle_path}`" in err
