"""``doctor`` says what would run here; its exit code says whether something is in the way."""

from __future__ import annotations

import json
import platform
import tempfile
from pathlib import Path

import pytest

from aot.cli.commands import doctor
from aot.cli.main import main
from aot.gpu.machine import Device, Driver, Machine
from tools.json_types import problems


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an H200."""
    driver = Driver(13000, "580.65.06", (Device(0, "NVIDIA H200", (9, 0)),))
    machine = Machine("Linux", platform.machine(), (2, 39), "3.12.3", "0.1.15", driver)
    monkeypatch.setattr(doctor, "read_machine", lambda: machine)


@pytest.mark.usefixtures("on")
def test_a_bundle_that_runs_here_has_no_problem(small_bundle_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(small_bundle_path)]) == 0
    out, err = capsys.readouterr()
    assert "GPU 0: 2 of 2 kernels would run: 2 as sm_90a" in out
    assert "driver" in out and "580.65.06, supports CUDA 13.0" in out
    assert "all of it runs on: A100, A30" in out
    assert err == ""


@pytest.mark.usefixtures("on")
def test_a_bundle_is_looked_at_where_nothing_can_be_written(
    small_bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container whose file system is read-only."""
    (tmp_path / "home").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "home")])
    assert main(["doctor", str(small_bundle_path)]) == 0
    out, _ = capsys.readouterr()
    assert "load bundles: yes" in out and "build bundles: no: there is no folder for temporary files" in out


@pytest.mark.usefixtures("on")
def test_as_json(small_bundle_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(small_bundle_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert problems(data, doctor.KEYS) == []
    assert data["bundle"]["gpus"] == [
        {"index": 0, "kernels": {"fill_epilogue": "sm_90a", "fill_stream_zero": "sm_90a"}, "missing": {}}
    ]


def test_without_a_gpu_the_bundle_does_not_run(
    small_bundle_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine("Linux", platform.machine(), (2, 39), "3.12.3", "0.1.15", Driver(problem="there is no driver"))
    monkeypatch.setattr(doctor, "read_machine", lambda: machine)
    assert main(["doctor", str(small_bundle_path)]) == 1
    out, err = capsys.readouterr()
    assert "problem: there is no driver\n" in out
    assert "run kernels: no: there is no driver" in out
    assert err.startswith("hint: for the first problem: install NVIDIA's driver")
    assert main(["doctor"]) == 0  # a machine that builds needs none
