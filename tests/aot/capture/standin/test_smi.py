"""While an exercise runs, the program ``nvidia-smi`` answers for the architecture."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from aot_runtime.arch import Arch

from aot.capture.standin.smi import nvidia_smi_found
from aot.compile.device.devices import Device


@pytest.fixture
def program() -> Iterator[str]:
    with nvidia_smi_found(Device.of(Arch.parse("sm_100f"))):
        found = shutil.which("nvidia-smi")
        assert found is not None
        yield found


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ("--query-gpu=name,compute_cap --format=csv,noheader", "NVIDIA B200, 10.0\n"),
        ("--query-gpu=memory.total --format=csv,noheader,nounits -i 0", "184320\n"),
        ("--query-gpu=index,memory.total --format csv", "index, memory.total [MiB]\n0, 184320 MiB\n"),
        ("--query-gpu=gpu_name,power.draw --format=csv,noheader", "NVIDIA B200, [N/A]\n"),
        ("--query-compute-apps=pid --format=csv,noheader", ""),
        ("-L", "GPU 0: NVIDIA B200 (UUID: GPU-00000000-0000-0000-0000-000000000000)\n"),
    ],
)
def test_a_question_gets_the_answer_of_the_device(program: str, arguments: str, printed: str) -> None:
    done = subprocess.run(["nvidia-smi", *arguments.split()], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (printed, "")


@pytest.mark.parametrize("arguments", ["", "-q"])
def test_the_versions_are_where_programs_look_for_them(program: str, arguments: str) -> None:
    text = subprocess.check_output(f"{program} {arguments}", shell=True, text=True)
    words = [line.split(":")[1].split()[0] for line in text.replace("|", " ").splitlines() if "Driver Version" in line]
    assert words and words[0].count(".") == 2 and "CUDA Version" in text and "NVIDIA B200" in text


def test_the_search_path_loses_the_program_and_keeps_what_the_exercise_put_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    with nvidia_smi_found(Device.of(Arch.parse("sm_90a"))):
        os.environ["PATH"] += os.pathsep + str(tmp_path)
    assert os.environ["PATH"] == f"/usr/bin{os.pathsep}{tmp_path}"
