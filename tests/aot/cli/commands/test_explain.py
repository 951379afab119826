"""``explain``: what would run on a GPU that this machine does not have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aot.cli.commands import explain
from aot.cli.main import main
from aot.gpu.machine import Device, Driver


def test_what_would_run_is_named(small_bundle_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", str(small_bundle_path), "fill_epilogue", "--cc", "H100", "out=f32[8]", "epilogue=relu"]
    assert main(words) == 0
    assert capsys.readouterr().out == (
        "fill_epilogue(out=float32[8], epilogue=relu)\n"
        "on compute capability 9.0 runs sm_90a fill_epilogue__relu\n"
        "refused, the nearest first:\n"
        "  sm_80 fill_epilogue__relu: runs from compute capability 8.0 within its major version, not on 9.0\n"
    )


@pytest.mark.parametrize("given", [None, "0"])
def test_the_environment_stays_as_it_was(
    small_bundle_path: Path, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that are started later would have TVM-FFI without its bridge to torch."""
    name = "TVM_FFI_DISABLE_TORCH_C_DLPACK"
    monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    assert main(["explain", str(small_bundle_path), "fill_stream_zero", "out=f32[8]", "--cc", "9.0"]) == 0
    assert os.environ.get(name) == given


def test_a_call_that_nothing_takes_is_exit_code_1(small_bundle_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(small_bundle_path), "fill_epilogue", "out=f16[8]", "--cc", "9.0", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["chosen"] is None
    assert data["refused"][0] == {
        "arch": "sm_90a",
        "variant": "fill_epilogue__identity",
        "reason": "out.dtype is float16, must be float32",
        "table": "",
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fill_epilog", "--cc", "9.0"), "hint: did you mean `fill_epilogue`? there are: fill_epilogue"),
        (("fill_epilogue", "out=f32[8]", "--cc", "sm_90a"), "error: not a GPU: 'sm_90a'"),
        (("fill_epilogue", "out=f32[8]"), "hint: pass `--cc 9.0` or `--cc H100`"),
    ],
)
def test_what_is_missing_is_said(
    small_bundle_path: Path,
    words: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(explain, "read_driver", Driver)
    assert main(["explain", str(small_bundle_path), *words]) == 2
    assert said in capsys.readouterr().err


def test_the_gpu_of_this_machine_is_meant_if_none_is_named(
    small_bundle_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explain, "read_driver", lambda: Driver(13000, "", (Device(0, "A100", (8, 0)),)))
    assert main(["explain", str(small_bundle_path), "fill_stream_zero", "out=f32[8]"]) == 0
    assert "on compute capability 8.0 runs sm_80 fill_stream_zero\n" in capsys.readouterr().out
