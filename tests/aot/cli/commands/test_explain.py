"""``explain``: what would run on a GPU that this machine does not have."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import aot_runtime
import pytest

from aot.bundle.signature import Signer, new_key
from aot.bundle.signing import sign
from aot.cli.commands import explain
from aot.cli.main import main
from aot.gpu.machine import Device, Driver


def test_what_would_run_is_named(small_bundle_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", str(small_bundle_path), "fill_epilogue", "--device", "H100", "out=f32[8]", "epilogue=relu"]
    assert main(words) == 0
    assert capsys.readouterr().out == (
        "fill_epilogue(out=float32[8], epilogue=relu)\n"
        "on compute capability 9.0 runs sm_90a fill_epilogue__relu\n"
        "refused, the nearest first:\n"
        "  sm_80 fill_epilogue__relu: runs from compute capability 8.0 within its major version, not on 9.0\n"
    )


def test_torch_is_not_imported(small_bundle_path: Path, tmp_path: Path) -> None:
    """TVM-FFI would import it, which takes seconds."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = ["explain", str(small_bundle_path), "fill_stream_zero", "out=f32[8]", "--cc", "9.0"]
    subprocess.run([sys.executable, "-m", "aot", *command], env={**os.environ, "PYTHONPATH": path}, check=True)


def test_what_is_required_does_not_name_what_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "bundle"]) == 2
    error = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert "KERNEL" in error
    assert "NAME=VALUE" not in error


@pytest.mark.parametrize("device", ["9.0", "H200", "sm_90a", "sm90", "NVIDIA H100 80GB HBM3"])
def test_a_gpu_has_many_names(small_bundle_path: Path, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(small_bundle_path), "fill_stream_zero", "out=f32[8]", "--device", device]) == 0
    assert "on compute capability 9.0 runs sm_90a fill_stream_zero\n" in capsys.readouterr().out


def test_a_call_that_nothing_takes_is_exit_code_1(small_bundle_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(small_bundle_path), "fill_epilogue", "out=f16[8]", "--device", "9.0", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["chosen"] is None
    assert data["refused"][0] == {
        "arch": "sm_90a",
        "variant": "fill_epilogue__identity",
        "reason": "out.dtype is float16, must be float32",
        "table": "",
    }


def test_the_next_step_on_a_device_without_code_is_that_of_a_real_call(
    small_bundle_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", str(small_bundle_path), "fill_epilogue", "out=f32[8]", "--device"]
    assert main([*words, "B200"]) == 1
    assert "hint: build it for this device too: `python -m aot build --add --arch 10.0`\n" in capsys.readouterr().err
    source = (Path(aot_runtime.__file__).parent.parent / "src" / "aot_rank.c").read_text()
    assert "hint: build it for this device too: `python -m aot build --add --arch %d.%d`" in source
    assert main([*words, "9.0"]) == 0
    assert "hint: " not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fill_epilog", "--device", "9.0"), "hint: did you mean `fill_epilogue`? there are: fill_epilogue"),
        (("fill_epilogue", "out=f32[8]", "--device", "all"), "error: not a GPU: 'all'"),
        (("fill_epilogue", "out=f32[8]", "--device", "native"), "hint: pass `--device 9.0` or `--device H100`"),
        (("fill_epilogue", "out=f32[8]"), "hint: pass `--device 9.0` or `--device H100`"),
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


def test_a_key_covers_what_is_explained(
    small_bundle_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = shutil.copytree(small_bundle_path, tmp_path / "bundle")
    for name in ("release", "other"):
        new_key(tmp_path / name)
    sign(bundle, Signer.read(tmp_path / "release"))
    words = ["explain", str(bundle), "fill_stream_zero", "out=f32[8]", "--device", "9.0", "--key"]
    assert main([*words, str(tmp_path / "release.pub")]) == 0
    assert main([*words, str(tmp_path / "other.pub")]) != 0
    assert "is not by a trusted key" in capsys.readouterr().err
    details = bundle / "details" / "sm_90a.json"
    details.write_text(details.read_text().replace('"registers": ', '"registers": 1'))
    assert main([*words, str(tmp_path / "release.pub")]) != 0
    assert "is not what its manifest says" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "bench", "tune"])
def test_commands_that_run_kernels_ask_for_the_signature_first(
    command: str, small_bundle_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_key(tmp_path / "key")
    words = [command, str(small_bundle_path), "--key", str(tmp_path / "key.pub"), "--out", str(tmp_path / "out.json")]
    assert main(words) != 0
    assert "is not signed" in capsys.readouterr().err
