"""While an exercise runs, ``torch.cuda`` has a device, and functions under ``torch.compile`` run their operators."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch
from aot_runtime.arch import Arch
from aot.capture.standin import Notes, standin_device
from aot.compile.device.devices import Device

with standin_device(Device.of(Arch.parse("sm_90a")), print, Notes("?")):
    @torch.library.custom_op("lib::scale", mutates_args=())
    def scale(x: torch.Tensor) -> torch.Tensor:
        print("body", tuple(x.shape))
        return x * 2

    scale.register_fake(torch.empty_like)

    @torch.compile(fullgraph=True, mode="reduce-overhead")
    def both(x):
        return scale(x @ x.mT) if torch.compiler.is_compiling() else x

    print(both(torch.randn(4, 8, device="cuda")).shape)
"""


# What benchmarks and tests of libraries print of a device.
STATISTICS = """
import torch
from aot_runtime.arch import Arch
from aot.capture.standin import Notes, standin_device
from aot.compile.device.devices import Device

with standin_device(Device.of(Arch.parse("sm_90a")), print, Notes("?")):
    free, total = torch.cuda.memory.mem_get_info()
    assert (free, total) == torch.cuda.mem_get_info() == torch.cuda.cudart().cudaMemGetInfo(0)
    assert torch.cuda.cudart().cudaProfilerStart() == torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0
    assert torch.cuda.memory_snapshot() == [] and "CUDA memory" in torch.cuda.memory_summary()
    numbers = [torch.cuda.utilization(), torch.cuda.temperature(), torch.cuda.power_draw(), torch.cuda.memory_usage()]
    print(all(isinstance(number, int) for number in numbers), len(torch.cuda.nccl.version()))
    torch.cuda._sleep(2_000_000)
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(100))
    assert torch.cuda.get_allocator_backend() == "native" and torch.cuda.get_per_process_memory_fraction() == 1
    assert torch.cuda.get_sync_debug_mode() == torch.cuda.device_memory_used() == 0
    if hasattr(torch.accelerator, "device_index"):
        with torch.accelerator.device_index(0):
            assert torch.accelerator.current_device_index() == 0
    if hasattr(torch.accelerator, "get_memory_info"):
        torch.accelerator.reset_peak_memory_stats()
        assert torch.accelerator.get_memory_info() == (free, total) and torch.accelerator.memory_allocated() == 0
"""


@pytest.mark.torch
def test_statistics_of_the_device_have_answers(tmp_path: Path) -> None:
    assert run(tmp_path, STATISTICS) == ["True 3"]


FORMS = """
import torch
from aot_runtime.arch import Arch
from aot_runtime.serving.reading.read_forms import ReadForms
from aot.capture.standin import Notes, standin_device
from aot.compile.device.devices import Device

NAMES = "Event Stream current_stream get_device_capability get_device_properties mem_get_info set_device stream synchronize"
def forms():
    return {name: ReadForms().text(getattr(torch.cuda, name), "torch.cuda", name) for name in NAMES.split()}

before = forms()
with standin_device(Device.of(Arch.parse("sm_90a")), print, Notes("?")):
    assert len({id(getattr(torch.cuda, name)) for name in NAMES.split()}) == len(before)
    print({name: (text, before[name]) for name, text in forms().items() if text != before[name]})
"""


@pytest.mark.torch
def test_what_a_library_imports_of_torch_by_name_has_the_form_of_torchs_own(tmp_path: Path) -> None:
    assert run(tmp_path, FORMS) == ["{}"]


def run(folder: Path, program: str) -> list[str]:
    pytest.importorskip("torch", reason="torch is not installed")
    (folder / "program.py").write_text(program)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(folder / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.torch
def test_a_function_under_the_compiler_of_torch_runs_its_operators(tmp_path: Path) -> None:
    assert run(tmp_path, PROGRAM) == ["body (4, 4)", "torch.Size([4, 4])"]
