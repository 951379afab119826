"""Without a driver, CUDA's libraries that ``ctypes`` opens answer for the device of an architecture."""

from __future__ import annotations

import pytest
from observing import run_python

DEVICE = """
import ctypes, ctypes.util
from aot_runtime.arch import Arch
from aot.compile.device.c_libraries import play_c_libraries
from aot.compile.device.devices import Device

noted = []
def note(question, arguments, answer):
    noted.append((question, *arguments) if answer is not None else question)
    return answer
play_c_libraries(Device.of(Arch.parse("sm_80")), note)
play_c_libraries(Device.of(Arch.parse("sm_100f")), note)  # the last one answers
"""
DRIVER = """
cuda = ctypes.CDLL(ctypes.util.find_library("cuda"))
count, device, number, other = (ctypes.c_int() for _ in range(4))
name, context, first, second = ctypes.create_string_buffer(8), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == cuda.cuDeviceGetCount(ctypes.byref(count)) == cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
cuda.cuDeviceGetAttribute(ctypes.pointer(number), 16, device)
cuda.cuDeviceComputeCapability(ctypes.byref(other), ctypes.byref(device), 0)
cuda.cuDeviceGetName(name, len(name), device)
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
cuda.cuMemGetInfo_v2(ctypes.byref(first), ctypes.byref(second))
print(count.value, number.value, other.value, name.value.decode(), context.value > 0, first.value < second.value)
print([question for question in noted if not isinstance(question, str)])
print("cuMemGetInfo" in noted, hasattr(cuda, "such_a_function"))
"""
RUNTIME = """
class Properties(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 256), ("multiProcessorCount", ctypes.c_int)]

runtime = ctypes.CDLL("/usr/local/cuda/lib64/libcudart.so.13")
runtime.cudaGetDeviceCount.argtypes = [ctypes.POINTER(ctypes.c_int)]
runtime.cudaGetErrorString.restype = ctypes.c_char_p
runtime.cudaGetDeviceProperties.errcheck = lambda result, function, arguments: f"{function.__name__} {result}"
count, properties = ctypes.c_int(), Properties()
print(runtime.cudaGetDeviceCount(count), count.value, runtime.cudaGetErrorString(0).decode())
print(runtime.cudaGetDeviceProperties(ctypes.byref(properties), 0), properties.name.decode(), properties.multiProcessorCount)
"""
NVML = """
class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

nvml = ctypes.CDLL("libnvidia-ml.so.1")
handle, count, memory = ctypes.POINTER(Memory)(), ctypes.c_uint(), Memory()
name, version, major, minor = ctypes.create_string_buffer(96), ctypes.create_string_buffer(80), ctypes.c_int(), ctypes.c_int()
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(96))
nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
nvml.nvmlSystemGetDriverVersion(version, ctypes.c_uint(80))
print(count.value, name.value.decode(), major.value, minor.value, memory.total == memory.free + memory.used > 0)
print(version.value.decode().count("."), [question for question in noted if not isinstance(question, str)])
"""
PYNVML = """
import pynvml

pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetName(handle), *pynvml.nvmlDeviceGetCudaComputeCapability(handle))
"""
OTHERS = """
try:
    ctypes.CDLL("libsuch-a-library.so.1")
except OSError as error:
    print(error)
print(ctypes.CDLL(None).abs(-7))
"""


def test_the_driver_answers_and_what_is_asked_of_the_device_is_noted() -> None:
    answers, noted, others = run_python(DEVICE + DRIVER).splitlines()
    assert answers == "1 148 10 NVIDIA  True True"
    capability = [("get_attribute", f"COMPUTE_CAPABILITY_{name}") for name in ("MAJOR", "MINOR")]
    assert noted == str([("get_device_multiprocessor_count",), *capability, ("get_name",)])
    assert others == "True False"


def test_the_runtime_answers_by_the_types_that_code_declares() -> None:
    assert run_python(DEVICE + RUNTIME).splitlines() == ["0 1 no error", "cudaGetDeviceProperties 0 NVIDIA B200 148"]


def test_nvml_answers_and_what_is_asked_of_the_device_is_noted() -> None:
    capability = [("get_attribute", f"COMPUTE_CAPABILITY_{name}") for name in ("MAJOR", "MINOR")]
    noted = str([("get_name",), *capability])
    assert run_python(DEVICE + NVML).splitlines() == ["1 NVIDIA B200 10 0 True", f"2 {noted}"]


def test_the_package_for_nvml_finds_the_device() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    assert run_python(DEVICE + PYNVML).splitlines() == ["1 NVIDIA B200 10 0"]


def test_other_libraries_are_opened_as_ever() -> None:
    missing, called = run_python(DEVICE + OTHERS).splitlines()
    assert "libsuch-a-library.so.1" in missing and called == "7"
