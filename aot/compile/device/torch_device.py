"""What ``torch.cuda`` says of the device of an architecture: in an exercise, and while a kernel is traced.

Each function has the name and the module of torch's own: a library that imported one by name finds the same one when it is
served.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .devices import Device
from .driver import Note, ask

__all__ = ["ANSWERED", "device_answers"]

# Functions of ``torch.cuda`` that answer while a kernel is traced. Which device is current is not compared.
ANSWERED = frozenset(
    {"current_device", "get_device_capability", "get_device_name", "get_device_properties"}
    | {"is_available", "is_bf16_supported", "is_initialized"}
)
_ATTRIBUTES = {
    "L2_cache_size": "L2_CACHE_SIZE",
    "major": "COMPUTE_CAPABILITY_MAJOR",
    "max_threads_per_block": "MAX_THREADS_PER_BLOCK",
    "max_threads_per_multi_processor": "MAX_THREADS_PER_MULTIPROCESSOR",
    "minor": "COMPUTE_CAPABILITY_MINOR",
    "multi_processor_count": "MULTIPROCESSOR_COUNT",
    "regs_per_multiprocessor": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "shared_memory_per_block": "MAX_SHARED_MEMORY_PER_BLOCK",
    "shared_memory_per_block_optin": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_memory_per_multiprocessor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "warp_size": "WARP_SIZE",
}


class _CudaDeviceProperties:
    """The properties of a device: numbers that a driver would tell, and others of which only the type is right."""

    def __init__(self, device: Device, note: Note) -> None:
        self._device, self._note = device, note
        self._made_up: dict[str, Any] = {
            "total_memory": device.memory,
            "clock_rate": 1_000_000,
            "memory_clock_rate": 1_000_000,
            "memory_bus_width": 4096,
            "is_integrated": 0,
            "is_multi_gpu_board": 0,
            "gcnArchName": "",
            "uuid": "",
            "pci_bus_id": 0,
        }

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES:
            return ask(self._device, _ATTRIBUTES[name], self._note)
        if name == "name":
            return self._note("get_name", (), self._device.model)
        if name.startswith("_") or name not in self._made_up:
            raise AttributeError(f"the properties of a device of CUDA have no {name!r}")
        self._note(f"torch.cuda.get_device_properties().{name}", (), None)
        return self._made_up[name]


_CudaDeviceProperties.__module__ = "torch._C"  # an object that holds one is refused, as it would be with torch's own


def device_answers(device: Device, note: Note) -> dict[str, Callable[..., Any]]:
    """What takes the place of functions of ``torch.cuda``; ``note`` is told of what was asked."""

    def get_device_properties(device_: Any = None) -> Any:
        return _CudaDeviceProperties(device, note)

    def get_device_capability(device_: Any = None) -> tuple[int, int]:
        found = get_device_properties()
        return found.major, found.minor

    def get_device_name(device_: Any = None) -> str:
        return str(get_device_properties().name)

    def device_count() -> int:
        note("torch.cuda.device_count", (), None)
        return 1

    # Each is a function of its own: torch's compiler refuses one object that has two names.
    answers: dict[str, Any] = {
        "current_device": lambda: 0,
        "device_count": device_count,
        "get_device_capability": get_device_capability,
        "get_device_name": get_device_name,
        "get_device_properties": get_device_properties,
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_initialized": lambda: True,
    }
    own: Any = importlib.import_module("torch.cuda")
    for name, answer in answers.items():
        original = getattr(own, name)
        answer.__module__, answer.__name__, answer.__qualname__ = original.__module__, name, original.__qualname__
    return answers
