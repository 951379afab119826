"""Without a driver, cuda-bindings answers for the device of an architecture, in the form that each function documents."""

from __future__ import annotations

from observing import run_python

PROGRAM = """
from aot_runtime.arch import Arch
from aot.compile.device.devices import Device
from aot.compile.device.driver import play_driver
import cuda.bindings.driver as driver
import cuda.bindings.nvrtc as nvrtc
import cuda.bindings.runtime as runtime

noted = []
def note(question, arguments, answer):
    noted.append((question, arguments))
    return answer
play_driver(Device.of(Arch.parse("sm_80")), note)
play_driver(Device.of(Arch.parse("sm_100f")), note)  # the last one answers
attribute = driver.CUdevice_attribute
ask = lambda name: driver.cuDeviceGetAttribute(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), driver.CUdevice(0))[1]
print(*map(ask, ("MULTIPROCESSOR_COUNT", "COMPUTE_CAPABILITY_MAJOR", "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")))
print(runtime.cudaDeviceGetAttribute(runtime.cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor, 0)[1], noted)
one, other = driver.cuStreamCreate(0)[1], driver.cuStreamCreate(0)[1]
print(type(one).__name__, int(one) != int(other), len(driver.cuCtxSynchronize()), runtime.cudaMalloc(8)[1] % 256)
print(driver.cuDeviceGetName(64, 0)[1].decode(), runtime.cudaGetDeviceProperties(0)[1].multiProcessorCount)
print(runtime.cudaMemcpy(0, 0, 0, runtime.cudaMemcpyKind.cudaMemcpyHostToDevice), driver.cuEventElapsedTime(0, 0)[1])
program = nvrtc.nvrtcCreateProgram(b"", b"empty.cu", 0, [], [])[1]
print(nvrtc.nvrtcCompileProgram(program, 0, []), *nvrtc.nvrtcVersion()[1:])
"""


def test_every_function_succeeds_and_what_is_asked_of_the_device_is_noted() -> None:
    facts, noted, handles, model, done, compiled = run_python(PROGRAM).splitlines()
    assert facts == "148 10 232448"
    asked = ("COMPUTE_CAPABILITY_MAJOR", "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", "COMPUTE_CAPABILITY_MAJOR")
    attributes = [("get_attribute", (name,)) for name in asked]
    assert noted == f"10 {[('get_device_multiprocessor_count', ()), *attributes]}"
    assert handles == "CUstream True 1 0"
    assert model == "NVIDIA B200 148"
    assert done == "(<cudaError_t.cudaSuccess: 0>,) 1.0"
    assert compiled == "(<nvrtcResult.NVRTC_SUCCESS: 0>,) 13 0"
