"""``AOT_LOG`` and ``AOT_NVTX`` are obeyed by bundles that are loaded while they are set, and cost the others nothing."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import aot_runtime
import pytest
import standin
from aot_runtime import ArgumentError
from observing import only_block
from standin import Standin

MakeBundle = Callable[..., aot_runtime.Bundle]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AOT_LOG", str(tmp_path / "calls.log"))
    return tmp_path / "calls.log"


def test_the_log_has_what_is_opened_loaded_and_selected(
    log: Path, cuda: Standin, fresh_bundle: MakeBundle, tmp_path: Path
) -> None:
    bundle = fresh_bundle()
    out = cuda.tensor((1008,), "float32")
    bundle.fill(out, 2.0)
    bundle.fill(out)
    lines = log.read_text().splitlines()
    assert all(line.startswith("aot: bundle: ") for line in lines)
    opened = [line for line in lines if "opened" in line]
    assert any(
        re.search(r"opened `.*/sm_90a/fill\.so` \(\d+ bytes, digest checked\) in \d+\.\d{3} ms$", line)
        for line in opened
    )
    loaded = [line for line in lines if "loaded" in line]
    assert len(loaded) == 1 and re.search(r"loaded sm_90a fill__f32\S* on device 0 in \d+\.\d{3} ms$", loaded[0])
    selected = [line for line in lines if "selects" in line]
    variant = loaded[0].split()[4]
    call = "fill(out, value) with float32[1008] strides (1); a float"
    assert selected == [f"aot: bundle: device 0 selects sm_90a {variant} for {call}"] * 2
    assert len(cuda.launches) == 2


def test_a_bundle_with_a_log_refuses_preloads_and_explains_as_ever(
    log: Path, cuda: Standin, fresh_bundle: MakeBundle
) -> None:
    bundle = fresh_bundle()
    bundle.preload(["fill"])
    assert "loaded sm_90a fill" in log.read_text()
    with pytest.raises(ArgumentError, match="no variant in bundle `bundle` takes these arguments"):
        bundle.fill(cuda.tensor((8,), "int8"))
    assert bundle.explain("fill", "9.0", cuda.tensor((8,), "float32")).chosen is not None
    assert "selects" not in log.read_text()


@pytest.mark.parametrize("value", ["", "0"])
def test_what_is_not_asked_for_is_not_done(
    value: str,
    cuda: Standin,
    fresh_bundle: MakeBundle,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AOT_LOG", value)
    monkeypatch.setenv("AOT_NVTX", value)
    fresh_bundle().fill(cuda.tensor((8,), "float32"))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("place", ["1", "stderr", "/nonexistent/calls.log"])
def test_the_log_goes_to_stderr(
    place: str,
    cuda: Standin,
    fresh_bundle: MakeBundle,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AOT_LOG", place)
    fresh_bundle().fill(cuda.tensor((8,), "float32"))
    err = capfd.readouterr().err
    assert "device 0 selects sm_90a fill__" in err
    assert ("`/nonexistent/calls.log`, which cannot be written: No such file or directory" in err) == ("/" in place)


def test_a_profiler_gets_a_range_per_call(
    cuda: Standin, fresh_bundle: MakeBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = tmp_path / "listener.so"
    source = Path(__file__).with_name("nvtx_listener.c")
    command = [*standin.compiler(), "-shared", "-fPIC", "-w", str(source), "-o", str(listener)]
    subprocess.run(command, check=True, env=dict(standin.compiler_environment(tmp_path)))
    monkeypatch.setenv("AOT_NVTX", "1")
    monkeypatch.setenv("NVTX_INJECTION64_PATH", str(listener))
    bundle = fresh_bundle()
    out = cuda.tensor((1008,), "float32")
    bundle.fill(out)
    with pytest.raises(ArgumentError):
        bundle.fill(cuda.tensor((8,), "int8"))
    bundle.fill(out)
    heard = ctypes.c_char.in_dll(ctypes.CDLL(str(listener)), "heard")
    text = ctypes.string_at(ctypes.addressof(heard)).decode()
    assert re.fullmatch(r"(push fill__f32\S*\npop\n){2}", text)


def test_ranges_without_a_profiler_are_nothing(
    cuda: Standin, fresh_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_NVTX", "1")
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    fresh_bundle().fill(cuda.tensor((1008,), "float32"))
    assert only_block(cuda) == 128


@pytest.mark.usefixtures("ends")
def test_a_log_that_nobody_reads_is_not_waited_for(
    cuda: Standin, fresh_bundle: MakeBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setenv("AOT_LOG", str(tmp_path / "fifo"))
    fresh_bundle().fill(cuda.tensor((8,), "float32"))
    assert only_block(cuda) == 128
