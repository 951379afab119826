"""The canary installs exactly the version asked for, and names the first step that fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from places import PROJECT

from tools.canary import Step, first_failure, requirements, steps


def python(name: str, code: str) -> Step:
    return Step(name, [sys.executable, "-c", code])


def test_the_version_asked_for_replaces_what_the_project_allows() -> None:
    found = requirements("9.9.9", (PROJECT / "pyproject.toml").read_text())
    assert [item for item in found if item.startswith("nvidia-cutlass-dsl")] == ["nvidia-cutlass-dsl==9.9.9"]
    assert {"ziglang", "pyelftools", "apache-tvm-ffi"} <= {item.partition(">")[0] for item in found}


def test_every_step_uses_the_new_environment_and_files_that_exist(tmp_path: Path) -> None:
    planned = steps("9.9.9", "/usr/bin/python3", tmp_path)
    assert planned[0].command[0] == "/usr/bin/python3"
    assert {step.command[0] for step in planned[1:]} == {str(tmp_path / "venv" / "bin" / "python")}
    named = [item for step in planned for item in step.command if item.startswith(("tests/", str(PROJECT)))]
    assert len(named) >= 5
    assert all((PROJECT / item).exists() for item in named)


def test_the_first_step_that_fails_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    touched = tmp_path / "touched"
    planned = [
        python("one", "print('fine')"),
        python("two", "import sys; print('it is this'); sys.exit(3)"),
        python("three", f"open({str(touched)!r}, 'w')"),
    ]
    assert first_failure(planned, tmp_path / "log") == "two: \nit is this"
    assert not touched.exists()
    said = capsys.readouterr().out
    assert "one" in said and "FAILED with exit code 3" in said and "three" not in said


def test_missing_names_are_what_is_reported(tmp_path: Path) -> None:
    code = "import sys; print('noise'); print('missing function cutlass.a.b'); print('missing function c'); sys.exit(1)"
    failure = first_failure([python("names", code)], tmp_path / "log")
    assert failure == "names: missing function cutlass.a.b, missing function c"


def test_no_failure_is_none(tmp_path: Path) -> None:
    assert first_failure([python("one", "pass")], tmp_path / "log") is None
