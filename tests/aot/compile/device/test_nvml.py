"""Without a driver, the functions of ``cuda.bindings.nvml`` answer for the device of an architecture."""

from __future__ import annotations

import pytest
from observing import run_python

PROGRAM = """
from aot_runtime.arch import Arch
from aot.compile.device.devices import Device
from aot.compile.device.nvml import play_nvml

noted = []
def note(question, arguments, answer):
    noted.append((question, *arguments) if answer is not None else question)
    return answer
play_nvml(Device.of(Arch.parse("sm_80")), note)
play_nvml(Device.of(Arch.parse("sm_90a")), note)  # the last one answers
from cuda.bindings import nvml
nvml.init_v2()
handle = nvml.device_get_handle_by_index_v2(0)
memory = nvml.device_get_memory_info_v2(handle)
print(nvml.device_get_count_v2(), nvml.device_get_name(handle), *nvml.device_get_cuda_compute_capability(handle))
print(memory.total == memory.free + memory.used > 0, nvml.system_get_driver_version().count("."))
print(nvml.device_get_utilization_rates(handle).gpu, list(nvml.device_get_compute_running_processes_v3(handle)), nvml.shutdown())
print([question for question in noted if not isinstance(question, str)], "nvmlDeviceGetMemoryInfo" in noted)
"""


def test_nvml_answers_and_what_is_asked_of_the_device_is_noted() -> None:
    pytest.importorskip("cuda.bindings.nvml", reason="this cuda-bindings has no interface to NVML")
    capability = [("get_attribute", f"COMPUTE_CAPABILITY_{name}") for name in ("MAJOR", "MINOR")]
    assert run_python(PROGRAM).splitlines() == [
        "1 NVIDIA H100 80GB HBM3 9 0",
        "True 2",
        "0 [] None",
        f"{[('get_name',), *capability]} True",
    ]
