"""Without a driver, ``cuda.core`` has one device that answers for the architecture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from observing import run_python

DEVICE = """
from aot_runtime.arch import Arch
from aot.compile.device.core import play_core
from aot.compile.device.devices import Device as Chosen
from aot.compile.device.driver import play_driver
from aot.compile.device.nvml import play_nvml

noted = []
def note(question, arguments, answer):
    noted.append((question, *arguments) if answer is not None else question)
    return answer
for play in (play_driver, play_nvml, play_core):
    play(Chosen.of(Arch.parse("sm_100f")), note)
"""
PROGRAM = """
from cuda.core import Device, Program, launch
device = Device()
device.set_current()
print(device.name, device.arch, device.compute_capability.major, Device(device.device_id).device_id)
print(device.properties.multiprocessor_count, device.properties.warp_size, int(device.default_stream.handle))
print(sorted({question[-1] for question in noted if not isinstance(question, str)}))
assert device.create_stream().__cuda_stream__() != device.create_stream().__cuda_stream__()
launch(device.default_stream, None, Program("", code_type="c++").compile("cubin").get_kernel("nothing"))
device.create_event().sync()
print([question for question in noted if "create_event" in question])
for name in ("colour", "_hidden"):
    for holder in (device, device.properties):
        assert not hasattr(holder, name)
"""
SYSTEM = """
from cuda.core import system
device = system.Device(index=0)
print(system.get_num_devices(), system.get_user_mode_driver_version(), len(system.get_kernel_mode_driver_version()))
print(device.name, device.arch.name, *device.cuda_compute_capability, device.memory_info.total > device.memory_info.free)
print(device.to_cuda_device().device_id)
"""


def test_the_device_of_cuda_core_answers_and_what_is_asked_of_it_is_noted() -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    assert run_python(DEVICE + PROGRAM).splitlines() == [
        "NVIDIA B200 100 10 0",
        "148 32 0",
        "['COMPUTE_CAPABILITY_MAJOR', 'COMPUTE_CAPABILITY_MINOR', 'WARP_SIZE', 'get_device_multiprocessor_count', 'get_name']",
        "['cuda.core.Device.create_event']",
    ]


def test_the_system_of_cuda_core_answers() -> None:
    pytest.importorskip("cuda.core.cu13.system", reason="this cuda.core is not installed")
    assert run_python(DEVICE + SYSTEM).splitlines() == ["1 (13, 0) 3", "NVIDIA B200 BLACKWELL 10 0 True", "0"]


def test_a_process_goes_on_where_cuda_core_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "cuda" / "core").mkdir(parents=True)
    (tmp_path / "cuda" / "core" / "__init__.py").write_text("raise RuntimeError('made for other bindings')\n")
    program = """
from aot_runtime.arch import Arch
from aot.compile.device.core import play_core
from aot.compile.device.devices import Device

play_core(Device.of(Arch.parse("sm_90a")), print)
try:
    import cuda.core
except RuntimeError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["made for other bindings"]
