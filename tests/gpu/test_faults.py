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
from dataclasses import dataclass, field
from pathlib import Path

import aot_runtime
import pytest

pytestmark = pytest.mark.gpu

NEEDS = {"add": "elementwise", "activation": "elementwise"}
PROGRAM = Path(__file__).with_name("faults.py")
NO_TORCH = {"TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}  # TVM-FFI would import torch, which takes seconds
LIMIT = 120  # seconds until a process counts as hanging


@dataclass
class Processes:
    """Those that a test has started. What still runs at its end is killed: it would hold memory of the GPU."""

    bundle: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, what: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), what, str(self.bundle)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        environment = {**os.environ, **NO_TORCH, **environment}
        self.started.append(subprocess.Popen(command, text=True, env=environment, **pipes))
        return self.started[-1]

    def start_until(self, line: str, what: str) -> subprocess.Popen[str]:
        """A process that goes on for ever, from the line on that it prints."""
        process = self.start(what)
        assert process.stdout is not None
        assert line in process.stdout.readline()
        return process

    def said(self, what: str, **environment: str) -> str:
        return self.start(what, **environment).communicate(timeout=LIMIT)[0]

    def kill(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate(timeout=LIMIT)


@pytest.fixture
def processes(bundle: aot_runtime.Bundle) -> Iterator[Processes]:
    made = Processes(bundle.path)
    yield made
    made.kill()


def test_after_a_kill_in_the_middle_of_launches_the_next_process_works(processes: Processes) -> None:
    for _ in range(2):
        processes.start_until("launching", "launch_forever").send_signal(signal.SIGKILL)
        assert processes.said("compute") == "right\n"


def test_an_illegal_access_in_another_process_stays_there(processes: Processes) -> None:
    other = processes.start_until("launching", "launch_forever")
    said = processes.said("fault")
    assert "illegal address" in said, said
    assert other.poll() is None, "the other process goes on"
    other.kill()
    assert processes.said("compute") == "right\n"


def test_after_an_illegal_access_a_call_names_what_the_driver_says(processes: Processes) -> None:
    said = processes.said("fault")
    refused = next((line for line in said.splitlines() if line.startswith("refused")), said)
    assert refused.startswith("refused CudaError") and "cudaErrorIllegalAddress" in refused, said


def test_two_processes_compute_at_once(processes: Processes) -> None:
    both = [processes.start("compute") for _ in range(2)]
    assert [process.communicate(timeout=LIMIT)[0] for process in both] == ["right\n"] * 2


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


def test_two_processes_compute_at_once_through_mps(processes: Processes, mps: dict[str, str]) -> None:
    both = [processes.start("compute", **mps) for _ in range(2)]
    assert [process.communicate(timeout=LIMIT)[0] for process in both] == ["right\n"] * 2


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="takes all memory of the GPU: run it without -n")
def test_without_memory_a_first_call_is_refused_and_works_once_there_is_some(processes: Processes) -> None:
    said = processes.said("fill")
    assert said.endswith("works again\n"), said
    assert "fitted" in said or "memory" in said, said


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="takes all memory of the GPU: run it without -n")
def test_while_another_process_has_all_memory_a_first_call_is_refused(processes: Processes) -> None:
    other = processes.start_until("held", "hold")
    said = processes.said("preload")
    assert said.startswith(("CudaError", "DriverError")) and "out of memory" in said, said
    other.kill()
    other.communicate(timeout=LIMIT)
    assert processes.said("compute") == "right\n"
