"""cuda-bindings without a driver: its functions answer for the device of an architecture, and do nothing.

Libraries ask the driver for devices, streams, events and memory while they prepare a launch, and some ask it while a
kernel is traced. What a function returns is read from its documentation, which cuda-bindings generates for every one.
"""

from __future__ import annotations

import enum
import functools
import importlib
import itertools
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from aot_runtime.serving.reading.reads import ATTRIBUTE

from .devices import Device

__all__ = ["ALIGNED", "TOLD", "VERSION", "Answer", "Note", "answers", "ask", "play_driver"]

_MODULES = ("cuda.bindings.driver", "cuda.bindings.runtime", "cuda.bindings.nvrtc")
_CODES = ("CUresult", "cudaError_t", "nvrtcResult")
_RETURNS = re.compile(r"^Returns\n-+\n(.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^(\w+)(?: : (?:\w+ )*?(list\[)?(?::py:obj:`~\.)?(\w+))?", re.MULTILINE)
ALIGNED = 1 << 21  # the allocations of a driver
VERSION = 13000
_DATA = (bool, bytes, float, int, list)
# Functions that tell what they are asked themselves, and those that name the current device, which is not compared.
TOLD = frozenset(
    {"cuDeviceComputeCapability", "cuDeviceGetAttribute", "cuDeviceGetName", "cuOccupancyMaxActiveClusters"}
    | {"cudaDeviceGetAttribute", "cudaGetDevice", "cudaOccupancyMaxActiveClusters"}
)

_addresses = itertools.count(1)
Answer = Callable[..., tuple[Any, ...]]
# A question, its arguments and the answer -> the answer; None if no look-up can ask the same.
Note = Callable[[str, tuple[Any, ...], Any], Any]


def play_driver(device: Device, note: Note) -> None:
    """Let cuda-bindings answer for a device, for the rest of the process; nothing if it is not installed.

    ``note`` is told of what is asked about the device.
    """
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        known = answers(device, module, note)
        for function, original in list(vars(module).items()):
            if re.match(r"(cu(da)?|nvrtc)[A-Z]", function) and callable(original) and not isinstance(original, type):
                setattr(module, function, _player(module, original, known.get(function), note))


def _returned(documentation: Any) -> list[str]:
    """The types that a function returns: that of the error, then those of the results; ``[]`` marks a list."""
    found = _RETURNS.search(documentation) if isinstance(documentation, str) else None
    if found is None:
        return []
    items = [match for match in _ITEM.finditer(found[1]) if match[1]]
    return [match[1] if match[3] is None else f"{match[3]}{'[]' if match[2] else ''}" for match in items]


def _player(module: ModuleType, original: Any, known: Answer | None, note: Note) -> Callable[..., Any]:
    codes: Any = next(getattr(module, name) for name in _CODES if hasattr(module, name))
    success = codes(0)

    @functools.wraps(original)
    def play(*args: Any, **kwargs: Any) -> Any:
        _, *kinds = _returned(original.__doc__) or [""]  # read now: there are hundreds, and few are called
        results = known(*args, **kwargs) if known is not None else tuple(_made(module, kind) for kind in kinds)
        if original.__name__ not in TOLD and any(type(result) in _DATA for result in results):
            note(original.__name__, (), None)
        return (success, *results)

    return play


def _made(module: ModuleType, kind: str) -> Any:
    """A value of a type that cuda-bindings documents: handles are told apart, numbers are 0."""
    if kind.endswith("[]"):
        return []
    if kind == "Any":  # an address
        return next(_addresses) * ALIGNED
    found: Any = getattr(module, kind, None)
    if not isinstance(found, type):
        return {"float": 1.0, "bytes": b"", "bool": True}.get(kind, 0)
    if issubclass(found, enum.Enum):
        return next(iter(found))
    make: Callable[..., Any] = found
    try:
        return make(0 if kind == "CUdevice" else next(_addresses) * ALIGNED)
    except TypeError:
        return make()  # a record


def answers(device: Device, module: ModuleType, note: Note) -> dict[str, Answer]:
    """What the functions answer that ask about the device, by name."""
    memory = (device.memory // 2, device.memory)

    def attribute(attrib: Any = None, dev: Any = None, **named: Any) -> tuple[Any, ...]:
        asked: Any = next((value for value in (attrib, *named.values()) if isinstance(value, enum.Enum)), attrib)
        return (_attribute(device, int(asked), note),)

    def capability(dev: Any) -> tuple[Any, ...]:
        return tuple(ask(device, f"COMPUTE_CAPABILITY_{name}", note) for name in ("MAJOR", "MINOR"))

    def model(length: int, dev: Any) -> tuple[Any, ...]:
        return (note("get_name", (), device.model).encode(),)

    def active_clusters(func: Any, config: Any) -> tuple[Any, ...]:
        return (note("get_max_active_clusters", (1,), device.active_clusters(1)),)

    def properties(*args: Any) -> tuple[Any, ...]:
        note("cudaGetDeviceProperties", (), None)  # which of its numbers are read is not seen
        return (_properties(device, module),)

    return {
        **dict.fromkeys(("cuDeviceGetAttribute", "cudaDeviceGetAttribute"), attribute),
        **dict.fromkeys(("cuDeviceGetCount", "cudaGetDeviceCount"), lambda: (1,)),
        **dict.fromkeys(("cuMemGetInfo", "cudaMemGetInfo"), lambda: memory),
        **dict.fromkeys(("cuDriverGetVersion", "cudaDriverGetVersion", "cudaRuntimeGetVersion"), lambda: (VERSION,)),
        **dict.fromkeys(("cuOccupancyMaxActiveClusters", "cudaOccupancyMaxActiveClusters"), active_clusters),
        **dict.fromkeys(("cuGraphGetNodes", "cudaGraphGetNodes"), lambda *args, **named: ([], 1)),
        "cuDeviceComputeCapability": capability,
        "cuDeviceGetName": model,
        "cuDeviceTotalMem": lambda dev: (device.memory,),
        "nvrtcVersion": lambda: divmod(VERSION // 10, 100),
        "cuMemGetAllocationGranularity": lambda *args, **named: (ALIGNED,),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": lambda *args, **named: (1,),
        "cudaGetDeviceProperties": properties,
    }


def _attribute(device: Device, number: int, note: Note) -> int:
    """What a driver says of an attribute, by CUDA's number, which is the same for driver and runtime."""
    from cuda.bindings.driver import CUdevice_attribute

    return ask(device, CUdevice_attribute(number).name.removeprefix("CU_DEVICE_ATTRIBUTE_"), note)


def ask(device: Device, name: str, note: Note) -> int:
    """An attribute by CUDA's name for it; 1 if nothing is known of it."""
    if name == "MULTIPROCESSOR_COUNT":
        return int(note("get_device_multiprocessor_count", (), device.multiprocessors))
    if name == "L2_CACHE_SIZE":
        return int(note("get_l2_cache_size_in_bytes", (), device.l2_cache))
    known = _limits(device).get(name)
    note(ATTRIBUTE, (name,), known)
    return 1 if known is None else known


def _limits(device: Device) -> dict[str, int]:
    """Attributes that are the same for all devices of a compute capability."""
    major, minor = device.capability
    return {
        "CLUSTER_LAUNCH": int(major >= 9),
        "COMPUTE_CAPABILITY_MAJOR": major,
        "COMPUTE_CAPABILITY_MINOR": minor,
        "MAX_BLOCK_DIM_X": 1024,
        "MAX_BLOCK_DIM_Y": 1024,
        "MAX_BLOCK_DIM_Z": 64,
        "MAX_GRID_DIM_X": (1 << 31) - 1,
        "MAX_GRID_DIM_Y": 65535,
        "MAX_GRID_DIM_Z": 65535,
        "MAX_REGISTERS_PER_BLOCK": 65536,
        "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
        "MAX_SHARED_MEMORY_PER_BLOCK": 48 << 10,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": device.shared_memory,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": device.shared_memory_per_multiprocessor,
        "MAX_THREADS_PER_BLOCK": 1024,
        "MAX_THREADS_PER_MULTIPROCESSOR": device.threads_per_multiprocessor,
        "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024,
        "WARP_SIZE": 32,
    }


def _properties(device: Device, module: ModuleType) -> Any:
    """``cudaDeviceProp``, filled."""
    found = module.cudaDeviceProp()
    major, minor = device.capability
    values = {
        "name": device.model.encode().ljust(256, b"\0"), "major": major, "minor": minor, "totalGlobalMem": device.memory, "warpSize": 32,
        "multiProcessorCount": device.multiprocessors, "l2CacheSize": device.l2_cache, "maxThreadsPerBlock": 1024,
        "sharedMemPerBlock": 48 << 10, "sharedMemPerBlockOptin": device.shared_memory, "regsPerBlock": 65536,
        "sharedMemPerMultiprocessor": device.shared_memory_per_multiprocessor, "regsPerMultiprocessor": 65536,
        "maxThreadsPerMultiProcessor": device.threads_per_multiprocessor,
    }  # fmt: skip
    for name, value in values.items():
        setattr(found, name, value)
    return found
