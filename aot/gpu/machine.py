"""What this machine has to run bundles with: CPU, C library, driver, GPUs. Needs neither torch nor a GPU."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot_runtime.arch import Capability

from ..versions import installed_version

__all__ = ["Device", "Driver", "Machine", "read_machine"]

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_MULTIPROCESSORS, _CLOCK = 16, 13
_MEMORY_CLOCK, _BUS_WIDTH = 36, 37  # in kHz and bits
_MODULE_VERSION = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Device:
    """A GPU, as the driver counts them."""

    index: int  # its number
    name: str  # such as NVIDIA H200
    capability: Capability  # major and minor number of its compute capability
    multiprocessors: int = 0  # how many it has
    bandwidth: int = 0  # of its memory in GB/s; 0: not known
    clock: int = 0  # the highest of its multiprocessors, in MHz


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver, or why it is of no use."""

    cuda: int = 0  # the CUDA version that it supports, such as 13000; 0: there is none
    version: str = ""  # such as 580.65.06; empty: not known
    devices: tuple[Device, ...] = ()  # its GPUs
    problem: str = ""  # why it is of no use; empty: it works

    @property
    def cuda_text(self) -> str:
        return f"{self.cuda // 1000}.{self.cuda % 1000 // 10}"


@dataclass(frozen=True)
class Machine:
    """What bundles run on."""

    system: str  # Linux
    cpu: str  # such as x86_64
    glibc: tuple[int, int] | None  # major and minor version; None: another C library
    python: str  # version of Python
    tvm_ffi: str | None  # the version of apache-tvm-ffi; None: not installed
    driver: Driver  # NVIDIA's driver, and the GPUs that it finds


def read_machine() -> Machine:
    return Machine(
        system=platform.system(),
        cpu=platform.machine(),
        glibc=_glibc(),
        python=platform.python_version(),
        tvm_ffi=installed_version("apache-tvm-ffi"),
        driver=read_driver(),
    )


def _glibc() -> tuple[int, int] | None:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):  # musl has no such name
        return None
    match = re.fullmatch(r"glibc (\d+)\.(\d+).*", text)
    return (int(match[1]), int(match[2])) if match else None


def read_driver(open_library: Callable[[str], Any] = ctypes.CDLL) -> Driver:
    """Ask the driver; what goes wrong is part of the answer."""
    try:
        library = open_library("libcuda.so.1")
    except OSError as error:
        reason = "libcuda.so.1 was not found" if "cannot open shared object file" in str(error) else str(error)
        return Driver(problem=f"there is no NVIDIA driver: {reason}")
    cuda = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(cuda))
    version = _module_version()
    status = library.cuInit(0)
    if status != 0:
        return Driver(cuda.value, version, (), f"the driver does not start: {_error_name(library, status)}")
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    devices = tuple(_device(library, index) for index in range(count.value))
    return Driver(cuda.value, version, devices, "" if devices else "the driver finds no GPU")


def _module_version() -> str:
    try:
        match = re.search(r"Module\s.*?(\d+\.\d+(?:\.\d+)*)\s", _MODULE_VERSION.read_text())
    except OSError:  # as under WSL, where the driver is that of Windows
        return ""
    return match[1] if match else ""


def _error_name(library: Any, status: int) -> str:
    name = ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(name))
    return f"{name.value.decode() if name.value else 'error'} ({status})"


def _device(library: Any, index: int) -> Device:
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(handle), index)
    library.cuDeviceGetName(name, len(name), handle)
    numbers = []
    for attribute in (_MAJOR, _MINOR, _MULTIPROCESSORS, _CLOCK, _MEMORY_CLOCK, _BUS_WIDTH):
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        numbers.append(value.value)
    major, minor, multiprocessors, clock, memory_clock, width = numbers
    bandwidth = memory_clock * width // 4 // 1000000  # memory transfers twice per clock; as in `aot_driver.c`
    return Device(index, name.value.decode(errors="replace"), (major, minor), multiprocessors, bandwidth, clock // 1000)
