"""What pages show as the output of commands is what the commands print."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from places import PROJECT, TESTS

from aot.cli.commands import doctor
from aot.cli.main import main
from aot.errors import ToolchainError
from aot.gpu.machine import Device, Driver, Machine
from tests.docs.pages import blocks

CAPTURED = re.compile(r"^(\w+)_[0-9a-f]{10} +(\S+) +rowlib\.scaling:(\d+), exercise\.py:(\d+) +sm_90a$", re.MULTILINE)


def shown(page: str, begin: str) -> str:
    (text,) = (block.code for block in blocks(PROJECT / "docs" / page) if block.code.startswith(begin))
    return text


def test_doctor_prints_what_the_page_shows(
    small_bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, expected = shown("reference/cli.md", "$ python -m aot doctor").split("\n", 1)
    device = Device(0, "NVIDIA H200", (9, 0), 132)
    driver = Driver(13000, "580.65.06", (device,))
    versions = {"cute-aot": "0.1.0", "apache-tvm-ffi": "0.1.15"}

    def not_installed(version: str) -> None:
        raise ToolchainError("CuTe DSL is not installed", hint="install it")

    monkeypatch.setattr(doctor, "read_machine", lambda: Machine("Linux", "x86_64", (2, 39), "3.12.3", "0.1.15", driver))
    monkeypatch.setattr(doctor, "installed_version", versions.get)
    monkeypatch.setattr(doctor, "_caches", lambda: iter(()))
    monkeypatch.setattr("aot.compile.dsl.choose", not_installed)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_bundle_path, command.split()[-1])
    main(command.split()[4:])
    printed = capsys.readouterr().out
    machine, _, bundle = expected.partition("\ndist/kernels: ")
    assert printed.startswith(machine)
    # The bundle of the page has other kernels than that of the tests: its sentences have the same words.
    for line in (f"dist/kernels: {bundle}").splitlines()[:2]:
        words = re.match(r"[\w/ ]+: (?:bundle )?", line)
        assert words is not None and words[0] in printed
    assert re.search(r"^GPU 0: \d+ of \d+ kernels would run: ", printed, re.MULTILINE)
    assert re.search(r"^GPU 0: \d+ of \d+ kernels would run: \d+ as sm_90a", bundle, re.MULTILINE)


def test_what_was_captured_is_compiled_where_the_guide_says() -> None:
    (found,) = CAPTURED.finditer(shown("guides/capture.md", "kernel "))
    callable_, library, exercise = found[2], int(found[3]), int(found[4])
    text = (TESTS / "foreign" / "rowlib" / "scaling.py").read_text()
    assert f"class {callable_.split('.')[2]}" in text
    assert "cute.compile(" in text.splitlines()[library - 1]
    assert "scale(" in (TESTS / "foreign" / "exercise.py").read_text().splitlines()[exercise - 1]
