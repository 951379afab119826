"""``docs/reference/cli.md`` lists what the command line takes, and the keys that ``--json`` prints, with their types."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
from importlib import import_module
from pathlib import Path

import aot_runtime
import pytest
from places import EXAMPLE, PROJECT
from schemas import problems

import aot
from aot.cli.main import COMMANDS, main
from tools import api, c_api, reference

TEXT = reference.PAGE.read_text()


def test_every_option_is_listed() -> None:
    assert reference.rewritten(TEXT) == TEXT, "run `python tools/reference.py`"
    assert set(re.findall(r"<!-- command: (\w+) -->", TEXT)) == {*COMMANDS, "errors"}


def test_everything_public_in_python_is_described_as_it_is() -> None:
    assert api.page() == api.PAGE.read_text(), "run `python tools/reference.py`"
    described = set(re.findall(r"^### `(.*)`$", api.PAGE.read_text(), re.MULTILINE))
    for module in (aot, aot_runtime):
        for name in module.__all__:
            is_error = isinstance(value := getattr(module, name), type) and issubclass(value, Exception)
            assert is_error != (f"{module.__name__}.{name}" in described), name
    assert {"aot_runtime.torch.register", "aot_runtime.jax.register", "aot_runtime.serve"} <= described


def test_every_function_of_the_c_header_is_described() -> None:
    assert c_api.page() == c_api.PAGE.read_text(), "run `python tools/reference.py`"
    described = set(re.findall(r"^### `(\w+)`$", c_api.PAGE.read_text(), re.MULTILINE))
    header = c_api.HEADER.read_text().partition("/* ---- errors ---- */")[0]
    declared = set(re.findall(r"^(?:static inline )?[\w* ]+\b(aot_\w+[a-z])\(", header, re.MULTILINE))
    assert declared <= described and "aot_open" in declared
    assert len(re.findall(r"^\| `AOT_\w+` \| \d+ \|", c_api.PAGE.read_text(), re.MULTILINE)) == 14


def test_signatures_are_those_of_the_code() -> None:
    """The page is made from the text of the sources; Python's own view of two functions must be the same."""
    for function in (aot_runtime.load, aot.Out):
        found = api.find(api.PROJECT / inspect.getsourcefile(function), function.__name__)
        shown = ast.parse(f"def {api.signature(found, function.__name__)}: ...").body[0]
        assert isinstance(shown, ast.FunctionDef)
        names = [argument.arg for argument in (*shown.args.args, *shown.args.kwonlyargs)]
        assert names == list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("list", ["--kernels", str(EXAMPLE / "kernels")]),
        ("inspect", ["BUNDLE"]),
        ("verify", ["BUNDLE"]),
        ("sign", ["BUNDLE", "--key", "release", "--new-key"]),
        ("prune", ["BUNDLE", "--kernel", "fill_epilogue"]),
        ("merge", ["BUNDLE", "--out", "joined"]),
        ("wheel", ["BUNDLE", "--version", "1.0"]),
        ("config", ["BUNDLE"]),
        ("config", ["--archs", "sm90", "H100"]),
        ("doctor", []),
        ("report", ["BUNDLE", "--diff", "BUNDLE"]),
        ("new", ["my_kernels", "--cpp", "--torch"]),
        ("diff", ["BUNDLE", "BUNDLE"]),
        ("explain", ["BUNDLE", "fill_stream_zero", "out=f32[8]", "--cc", "8.0"]),
        ("inspect", ["BUNDLE", "--size"]),
        ("cache", ["--cache", "cache"]),
    ],
)
def test_json_has_the_keys_that_are_listed(
    command: str,
    arguments: list[str],
    small_bundle_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "BUNDLE" in arguments:
        shutil.copytree(small_bundle_path, tmp_path / "bundle")
    words = ["bundle" if word == "BUNDLE" else word for word in arguments]
    assert main([command, *words, "--json"]) == 0
    keys = import_module(f"aot.cli.commands.{command}").KEYS
    assert problems(json.loads(capsys.readouterr().out), keys, partly=True) == []


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ("build", "aot/cli/commands/build.py"),
        ("capture", "aot/cli/commands/capture.py"),
        ("check", "aot/gpu/check.py"),
        ("bench", "aot/gpu/bench.py"),
    ],
)
def test_json_of_what_takes_long_or_a_gpu_has_the_keys_that_are_listed(command: str, source: str) -> None:
    text = (PROJECT / source).read_text()
    text += (PROJECT / "aot/cli/commands/build.py").read_text() if "result_data" in text else ""
    text += (PROJECT / "aot" / "cli" / "commands" / f"{command}.py").read_text()
    assert all(f'"{key.name}": ' in text for key in import_module(f"aot.cli.commands.{command}").KEYS)
