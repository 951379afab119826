"""What the driver says of itself and its GPUs, and what is said of a machine without one."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest
from standin import Standin

from aot.gpu import machine
from aot.gpu.machine import Device, Driver, read_driver, read_machine


def test_a_driver_is_asked_for_its_gpus(cuda: Standin) -> None:
    cuda.reset(capabilities=[(9, 0), (8, 6)], driver_version=12080)
    driver = read_driver()
    assert (driver.cuda, driver.cuda_text, driver.problem) == (12080, "12.8", "")
    assert [(device.index, device.capability) for device in driver.devices] == [(0, (9, 0)), (1, (8, 6))]
    assert all(device.name for device in driver.devices)


def test_a_driver_that_does_not_start_is_named_with_its_error(cuda: Standin) -> None:
    cuda.reset(capabilities=[])
    assert read_driver().problem == "the driver does not start: CUDA_ERROR_NO_DEVICE (100)"


def test_a_machine_without_a_driver_is_no_error() -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    assert read_driver(missing) == Driver(problem="there is no NVIDIA driver: libcuda.so.1 was not found")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x)\n", "580.65.06"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\nGCC version: 12.2.0\n", "535.183.01"),
        ("something else", ""),
    ],
)
def test_the_version_of_the_driver_is_that_of_its_module(
    text: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(machine, "_MODULE_VERSION", tmp_path / "version")
    assert machine._module_version() == version
    (tmp_path / "version").unlink()
    assert machine._module_version() == ""


def test_this_machine_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(13000, "580.65.06", (Device(0, "NVIDIA H200", (9, 0)),))
    monkeypatch.setattr(machine, "read_driver", lambda: driver)
    found = read_machine()
    assert (found.cpu, found.python, found.driver) == (platform.machine(), platform.python_version(), driver)
    assert found.tvm_ffi
