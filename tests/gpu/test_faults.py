"""Faults on a real GPU: killed processes, illegal accesses, several processes, no memory. Each time the next call works.

Needs torch, a GPU and a bundle with the core families: ``pytest tests/gpu --bundle dist/kernels``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aot_runtime
import pytest

pytestmark = pytest.mark.gpu

NEEDS = {"add": "elementwise", "activation": "elementwise"}
PROGRAM = Path(__file__).with_name("faults.py")
LIMIT = 120  # seconds until a process counts as hanging


def start(what: str, bundle: aot_runtime.Bundle, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), what, str(bundle.path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, text=True, env={**os.environ, **environment}, **pipes)


def says(what: str, bundle: aot_runtime.Bundle, **environment: str) -> str:
    process = start(what, bundle, **environment)
    try:
        return process.communicate(timeout=LIMIT)[0]
    finally:
        process.kill()  # one that hangs; the others have ended


def test_after_a_kill_in_the_middle_of_launches_the_next_process_works(bundle: aot_runtime.Bundle) -> None:
    for _ in range(2):
        process = start("launch_forever", bundle)
        assert process.stdout is not None
        assert "launching" in process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=LIMIT)
        assert says("compute", bundle) == "right\n"


def test_an_illegal_access_in_another_process_stays_there(bundle: aot_runtime.Bundle) -> None:
    other = start("launch_forever", bundle)
    assert other.stdout is not None
    assert "launching" in other.stdout.readline()
    said = says("fault", bundle)
    assert "faulted" in said, said
    assert other.poll() is None, "the other process goes on"
    other.kill()
    other.communicate(timeout=LIMIT)
    assert says("compute", bundle) == "right\n"


def test_after_an_illegal_access_a_call_names_what_the_driver_says(bundle: aot_runtime.Bundle) -> None:
    said = says("fault", bundle)
    assert "illegal" in said, said
    refused = next((line for line in said.splitlines() if line.startswith("refused")), said)
    assert "cudaErrorIllegalAddress" in refused


def test_two_processes_compute_at_once(bundle: aot_runtime.Bundle) -> None:
    processes = [start("compute", bundle) for _ in range(2)]
    assert [process.communicate(timeout=LIMIT)[0] for process in processes] == ["right\n"] * 2


@pytest.fixture
def mps(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A daemon of NVIDIA's multi-process service for these processes alone."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        pytest.skip("nvidia-cuda-mps-control is not installed here")
    folders = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "log")}
    for folder in folders.values():
        Path(folder).mkdir()
    environment = {**os.environ, **folders}
    # A daemon keeps open what it is given.
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if subprocess.run([control, "-d"], env=environment, timeout=LIMIT, **quiet).returncode:
        pytest.skip("the multi-process service does not start here")
    yield folders
    subprocess.run([control], input="quit\n", text=True, env=environment, timeout=LIMIT)


def test_two_processes_compute_at_once_through_mps(bundle: aot_runtime.Bundle, mps: dict[str, str]) -> None:
    processes = [start("compute", bundle, **mps) for _ in range(2)]
    assert [process.communicate(timeout=LIMIT)[0] for process in processes] == ["right\n"] * 2


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="takes all memory of the GPU: run it without -n")
def test_without_memory_a_first_call_is_refused_and_works_once_there_is_some(bundle: aot_runtime.Bundle) -> None:
    said = says("fill", bundle)
    assert said.endswith("works again\n"), said
    assert "fitted" in said or "memory" in said, said


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="takes all memory of the GPU: run it without -n")
def test_while_another_process_has_all_memory_a_first_call_is_refused(bundle: aot_runtime.Bundle) -> None:
    other = start("hold", bundle)
    assert other.stdout is not None
    assert "held" in other.stdout.readline()
    try:
        assert "out of memory" in says("compute", bundle)
    finally:
        other.kill()
        other.communicate(timeout=LIMIT)
    assert says("compute", bundle) == "right\n"
