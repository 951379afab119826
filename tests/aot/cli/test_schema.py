"""``--json`` prints one object whatever happens, and its keys are those that the reference lists."""

from __future__ import annotations

import errno
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from aot_runtime import ArgumentError, ManifestError

from aot.cli.main import COMMANDS, ERROR_KEYS, VERSION_KEYS, main
from aot.errors import BuildError, DeclarationError, Failure, ToolchainError, UsageError
from tools.json_types import problems

# The least that each command takes.
LEAST = {
    "list": [],
    "build": ["--arch", "sm90"],
    "capture": ["nowhere.py", "--arch", "sm90"],
    "verify": ["nowhere"],
    "inspect": ["nowhere"],
    "check": ["nowhere"],
    "bench": ["nowhere"],
    "tune": ["nowhere", "--out", "table.json"],
    "wheel": ["nowhere"],
    "config": ["nowhere"],
    "cache": ["--cache", "nowhere"],
    "prune": ["nowhere", "--arch", "sm80"],
    "merge": ["nowhere", "--out", "joined"],
    "sign": ["nowhere", "--key", "nokey"],
    "doctor": ["nowhere"],
    "diff": ["nowhere", "nowhere"],
    "new": ["not a name"],
    "report": ["nowhere"],
    "explain": ["nowhere", "add", "--device", "9.0"],
}
FAILURE = Failure("add__f32", "does not compile", "line 1\nline 2", "add", "sm_80")
ERRORS: list[tuple[BaseException, int, str]] = [
    (UsageError("no such thing", hint="pass another"), 2, "UsageError"),
    (ManifestError("not a bundle"), 2, "ManifestError"),
    (ArgumentError("no variant"), 2, "ArgumentError"),
    (DeclarationError("wrong declaration"), 2, "DeclarationError"),
    (BuildError("every kernel failed", failures=[FAILURE]), 1, "BuildError"),
    (ToolchainError("zig is missing", hint="install it"), 1, "ToolchainError"),
    (OSError(errno.ENOSPC, "No space left on device", "/full"), 1, "OSError"),
    (ModuleNotFoundError("No module named 'elftools'", name="elftools"), 2, "ModuleNotFoundError"),
    (KeyboardInterrupt(), 130, "Interrupted"),
    (ZeroDivisionError("division by zero"), 1, "InternalError"),
]


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    out, err = capsys.readouterr()
    data: dict[str, Any] = json.loads(out)
    assert problems(data, ERROR_KEYS) == []
    return data, err


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_command_is_here() -> None:
    assert LEAST.keys() == set(COMMANDS)


@pytest.mark.parametrize("error", ERRORS, ids=lambda item: item[2])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_error_of_every_command_is_json(
    command: str,
    error: tuple[BaseException, int, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raised, code, kind = error

    def execute(arguments: object) -> int:
        raise raised

    monkeypatch.setattr(import_module(f"aot.cli.commands.{command}"), "execute", execute)
    assert main([command, *LEAST[command], "--json"]) == code
    data, err = printed(capsys)
    assert (data["error"]["kind"], data["error"]["exit_code"]) == (kind, code)
    assert data["error"]["message"].splitlines()[0] in err
    assert [failure["variant"] for failure in data["failures"]] == (["add__f32"] if kind == "BuildError" else [])
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [["--nonsense"], ["--json=yes"], ["a", "b", "c"]], ids=" ".join)
@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage_of_every_command_is_json(
    command: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *LEAST[command], "--json", *words]) == 2
    data, err = printed(capsys)
    assert data["error"]["hint"]
    assert f"error: {data['error']['message']}" in err


@pytest.mark.parametrize("command", [name for name in COMMANDS if "nowhere" in LEAST[name] and name != "cache"])
def test_a_bundle_that_does_not_exist_is_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, *LEAST[command], "--json"]) == 2
    assert printed(capsys)[0]["error"]["message"]


@pytest.mark.parametrize(("words", "said"), [([], "no command was given"), (["bake"], "there is no command 'bake'")])
def test_no_command_is_json(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", *words]) == 2
    assert printed(capsys)[0]["error"]["message"] == said


def test_a_traceback_is_printed_if_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "nowhere", "-v", "--json"]) == 2
    assert "Traceback" in printed(capsys)[1]


def test_the_version_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert problems(data, VERSION_KEYS) == []
    version = data["version"]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"cute-aot {version}\n"
