"""What ``cuda.core`` says of the device that answers. Its code is C, which calls a driver and not cuda-bindings.

``cuda.core.system`` calls functions of ``cuda.bindings.nvml``, which answer themselves.
"""

from __future__ import annotations

import importlib
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

from .anything import Anything
from .devices import Device
from .driver import Note, ask
from .nvml import UNIQUE

__all__ = ["play_core"]

_MODULES = ("cuda.core", "cuda.core.experimental")  # the second until 1.0
_ATTRIBUTE = "CU_DEVICE_ATTRIBUTE_"
ComputeCapability = namedtuple("ComputeCapability", "major minor")


def play_core(device: Device, note: Note) -> None:
    """Let ``cuda.core`` have one device, for the rest of the process; nothing if it is not installed.

    ``note`` is told of what is asked about the device.
    """
    for module in _installed():
        played, original = _one_device(device, note, dir(module.Device)), module.Device
        played.__module__, played.__qualname__ = original.__module__, original.__qualname__
        for name, value in {"Device": played, **_COMPILED}.items():
            setattr(module, name, value)


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

    def __init__(self, device: Device, note: Note) -> None:
        self._device, self._note = device, note

    def __getattr__(self, name: str) -> int:
        driver: Any = importlib.import_module("cuda.bindings.driver")
        if not hasattr(driver.CUdevice_attribute, f"{_ATTRIBUTE}{name.upper()}"):
            raise AttributeError(f"the properties of a device of CUDA have no {name!r}")
        return ask(self._device, name.upper(), self._note)


def _one_device(device: Device, note: Note, known: list[str]) -> type:
    """The class of ``cuda.core`` for a device. There is one, whatever number is asked for; ``known`` are its attributes."""

    class CoreDevice:
        device_id = 0

        def __init__(self, device_id: Any = None) -> None:
            self._shown = iter(
                ()
            )  # nothing: an object that holds a device is refused, as with the class of `cuda.core`

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or name not in known:
                raise AttributeError(f"a device of CUDA has no {name!r}")
            note(f"cuda.core.Device.{name}", (), None)
            return Anything()

        @classmethod
        def get_all_devices(cls) -> tuple[Any, ...]:
            note("cuda.core.Device.get_all_devices", (), None)
            return (cls(),)

        @property
        def arch(self) -> str:
            return "".join(map(str, self.compute_capability))

        @property
        def compute_capability(self) -> ComputeCapability:
            names = ComputeCapability._fields
            return ComputeCapability(*(ask(device, f"COMPUTE_CAPABILITY_{name.upper()}", note) for name in names))

        @property
        def name(self) -> str:
            return str(note("get_name", (), device.model))

        @property
        def uuid(self) -> str:
            note("cuda.core.Device.uuid", (), None)
            return UNIQUE.removeprefix("GPU-")

        @property
        def properties(self) -> _Properties:
            return _Properties(device, note)

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
