"""A device has many names; the tables of all languages agree on them."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest
from aot_runtime.arch import ArchError, Capability
from aot_runtime.gpus import GPUS, find_gpu, native_capability, parse_device
from places import PROJECT


@pytest.mark.parametrize(
    ("named", "capability"),
    [
        ((9, 0), (9, 0)), ("9.0", (9, 0)), ("sm_90a", (9, 0)), ("sm90", (9, 0)), ("sm_100f", (10, 0)), ("sm120", (12, 0)),
        ("H100", (9, 0)), ("NVIDIA GeForce RTX 4090", (8, 9)), ("rtx-4090", (8, 9)), ("GB300", (10, 3)),
    ],
)  # fmt: skip
def test_a_device_by_any_name(named: str | Capability, capability: Capability) -> None:
    assert parse_device(named) == capability


@pytest.mark.parametrize("named", ["", "H1", "90", "sm_9", "sm9", "9", (9, 0, 0), None])
def test_what_names_no_device_is_refused(named: Any) -> None:
    with pytest.raises(ArchError):
        parse_device(named)


class PlayedDriver:
    """A driver with one GPU, or none."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.gpus
        return 0

    def cuDeviceGetAttribute(self, number: Any, attribute: int, device: int) -> int:
        number._obj.value = {75: 8, 76: 9}[attribute]
        return 0


def test_native_is_the_gpu_of_this_machine() -> None:
    assert native_capability(lambda name: PlayedDriver(1)) == (8, 9)


def missing(name: str) -> ctypes.CDLL:
    raise OSError(name)


@pytest.mark.parametrize("driver", [missing, lambda name: PlayedDriver(0)])
def test_without_a_gpu_there_is_nothing_native(driver: Any) -> None:
    with pytest.raises(ArchError, match="which has none"):
        native_capability(driver)


def test_cmake_knows_the_same_gpus() -> None:
    text = (PROJECT / "runtime" / "cmake" / "cute_aot_bundle.cmake").read_text()
    listed = re.findall(r"^ +(\w+)=(\d+)\.(\d)$", text, re.MULTILINE)
    found = {name: (int(major), int(minor)) for name, major, minor in listed}
    assert found == {name.upper().replace(" ", ""): capability for name, capability in GPUS.items()}
    assert all(find_gpu(name) is not None for name in found)
