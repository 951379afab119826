"""Machine code as text needs NVIDIA's disassembler; here a script stands for it."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from aot.cli.main import main
from aot.compile import sass
from aot.errors import BuildError


@pytest.fixture(autouse=True)
def _nothing_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.files", none)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)


def program(folder: Path, text: str) -> Path:
    path = folder / "bin" / "nvdisasm"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH", "PATH"])
def test_it_is_found_in_a_toolkit(variable: str, tmp_path: Path) -> None:
    path = program(tmp_path, "")
    place = path.parent if variable == "PATH" else tmp_path
    assert sass.find_nvdisasm({"PATH": "", variable: str(place)}) == path
    assert sass.find_nvdisasm({"PATH": ""}) is None


def test_the_text_is_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, 'echo "$1"; while read -r line; do echo "$line"; done < "$2"')
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert sass.disassemble(b"MOV R1, c[0x0][0x28]\n") == "-c\nMOV R1, c[0x0][0x28]\n"


def test_what_it_cannot_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "echo 'nvdisasm fatal: unsupported architecture' >&2; exit 1")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="unsupported architecture"):
        sass.disassemble(b"")


def test_without_it_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BuildError, match="needs nvdisasm"):
        sass.disassemble(b"")
    assert main(["build", "--kernels", str(tmp_path), "--arch", "sm90", "--keep", "sass"]) == 2
    assert "hint: `pip install nvidia-cuda-nvdisasm`" in capsys.readouterr().err
