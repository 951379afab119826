"""What ``cuda.core`` says of the device that stands in. Its code is C, which calls a driver and not cuda-bindings."""

from __future__ import annotations

import importlib
from collections import namedtuple
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from ...compile.device.devices import Device
from .anything import Anything

__all__ = ["core_has_device"]

_MODULES = ("cuda.core", "cuda.core.experimental")  # the second until 1.0
_ATTRIBUTE = "CU_DEVICE_ATTRIBUTE_"
ComputeCapability = namedtuple("ComputeCapability", "major minor")


@contextmanager
def core_has_device(device: Device) -> Iterator[None]:
    """Within the context, ``cuda.core`` has one device. Without ``cuda.core``, nothing."""
    with ExitStack() as stack:
        for module in _installed():
            played, original = _one_device(device), module.Device
            played.__module__, played.__qualname__ = original.__module__, original.__qualname__
            stack.enter_context(mock.patch.object(module, "Device", played))
            for name, value in _COMPILED.items():
                stack.enter_context(mock.patch.object(module, name, value, create=True))
        yield


def _installed() -> Iterator[Any]:
    for name in _MODULES:
        try:
            yield importlib.import_module(name)
        except Exception:  # it is not there, or broken, which a program that imports it is told
            continue


class _Stream:
    """A stream on which nothing runs."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self.handle)

    def sync(self) -> None: ...
    def close(self) -> None: ...


class _Made(Anything):
    """A program of CUDA C++, or what links several: neither compiled nor linked."""

    def __init__(self, *args: Any, **named: Any) -> None: ...


_COMPILED = {"Linker": _Made, "Program": _Made, "launch": lambda *args: None}


class _Properties:
    """The attributes that a driver is asked for, by the names that ``cuda.core`` gives them."""

    def __getattr__(self, name: str) -> int:
        driver: Any = importlib.import_module("cuda.bindings.driver")
        attribute = getattr(driver.CUdevice_attribute, f"{_ATTRIBUTE}{name.upper()}", None)
        if attribute is None:
            raise AttributeError(f"the properties of a device of CUDA have no {name!r}")
        _, value = driver.cuDeviceGetAttribute(attribute, driver.CUdevice(0))
        return int(value)


def _one_device(device: Device) -> type:
    """The class of ``cuda.core`` for a device. There is one, whatever number is asked for."""
    major, minor = device.capability

    class CoreDevice:
        device_id = 0
        name = device.model
        arch = f"{major}{minor}"
        compute_capability = ComputeCapability(major, minor)
        properties = _Properties()

        def __init__(self, device_id: Any = None) -> None: ...

        @classmethod
        def get_all_devices(cls) -> tuple[Any, ...]:
            return (cls(),)

        @property
        def default_stream(self) -> _Stream:
            driver: Any = importlib.import_module("cuda.bindings.driver")
            return _Stream(driver.CUstream(0))

        def create_stream(self, obj: Any = None, options: Any = None) -> _Stream:
            driver: Any = importlib.import_module("cuda.bindings.driver")
            return _Stream(driver.cuStreamCreate(0)[1])

        def set_current(self, ctx: Any = None) -> None: ...
        def sync(self) -> None: ...

        def __int__(self) -> int:
            return 0

    return CoreDevice
