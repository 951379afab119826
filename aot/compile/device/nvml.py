"""NVML without a driver: what its functions say of the device that answers, and those of ``cuda.bindings.nvml``.

What these return is read from their documentation, as with the rest of cuda-bindings.
"""

from __future__ import annotations

import functools
import importlib
import re
import types
from typing import Any

from .devices import Device
from .driver import VERSION, Answer, Note, ask

__all__ = ["DRIVER", "TOLD_BY_NVML", "UNIQUE", "nvml_answers", "play_nvml"]

DRIVER, UNIQUE = "580.65.06", "GPU-00000000-0000-0000-0000-000000000000"
TOLD_BY_NVML = frozenset({"nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetName"})
_MODULE, _HANDLE = "cuda.bindings.nvml", "intptr_t"
_RETURNS = re.compile(r"^Returns:\n(.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
_TYPE = re.compile(r"^    (?:- )?([\w\[\]]+(?: \w+)*): ", re.MULTILINE)
_VERSION = re.compile(r"_v\d*$")
_ARCHITECTURES = {(8, 9): 8, 8: 7, 9: 9}  # NVML's numbers; all later ones are Blackwell's


def nvml_answers(device: Device, note: Note) -> dict[str, Answer]:
    """What the functions of NVML answer that ask about the device."""
    memory = types.SimpleNamespace(
        total=device.memory, free=device.memory // 2, used=device.memory - device.memory // 2
    )

    def capability(*args: Any) -> tuple[Any, ...]:
        return tuple(ask(device, f"COMPUTE_CAPABILITY_{name}", note) for name in ("MAJOR", "MINOR"))

    def model(*args: Any) -> tuple[Any, ...]:
        return (note("get_name", (), device.model).encode(),)

    known = _ARCHITECTURES.get(device.capability, _ARCHITECTURES.get(device.capability[0], 10))
    return {
        "nvmlDeviceGetArchitecture": lambda *args: (known,),
        "nvmlDeviceGetCount": lambda: (1,),
        "nvmlDeviceGetCudaComputeCapability": capability,
        "nvmlDeviceGetMemoryInfo": lambda *args: (memory,),
        "nvmlDeviceGetName": model,
        "nvmlDeviceGetUUID": lambda *args: (UNIQUE.encode(),),
        "nvmlSystemGetCudaDriverVersion": lambda: (VERSION,),
        "nvmlSystemGetDriverVersion": lambda *args: (DRIVER.encode(),),
        "nvmlSystemGetNVMLVersion": lambda *args: (f"{VERSION // 1000}.{DRIVER}".encode(),),
    }


def play_nvml(device: Device, note: Note) -> None:
    """Let ``cuda.bindings.nvml`` answer for a device, for the rest of the process; nothing if it is not installed."""
    try:
        module: Any = importlib.import_module(_MODULE)
    except ImportError:
        return
    known = {name.lower(): (name, answer) for name, answer in nvml_answers(device, note).items()}
    for name, original in list(vars(module).items()):
        if not name.startswith("_") and callable(original) and not isinstance(original, type):
            setattr(module, name, _player(module, original, known, note))


def _player(module: Any, original: Any, known: dict[str, tuple[str, Answer]], note: Note) -> Any:
    name, answer = known.get(f"nvml{_VERSION.sub('', original.__name__).replace('_', '')}", (original.__name__, None))

    @functools.wraps(original)
    def play(*args: Any, **kwargs: Any) -> Any:
        kinds = _returned(original.__doc__)
        results = answer(*args) if answer is not None else tuple(_made(module, kind) for kind in kinds)
        if name not in TOLD_BY_NVML and kinds != [_HANDLE]:
            note(name, (), None)
        found = [_as(_made(module, kind), result) for kind, result in zip(kinds, results, strict=False)]
        if len(found) == 1:
            return found[0]
        return tuple(found) if found or "_get_" in original.__name__ else None  # some lists are not documented

    return play


def _returned(documentation: Any) -> list[str]:
    """The types of the results of a function: ``str``, ``unsigned int``, ``nvmlMemory_v2_t``."""
    found = _RETURNS.search(documentation) if isinstance(documentation, str) else None
    return _TYPE.findall(found[1]) if found is not None else []


def _made(module: Any, kind: str) -> Any:
    """A value of a type: numbers are 0, a record is empty, and so are lists and the records that hold several."""
    if kind.startswith("list["):
        return []
    name = kind.removeprefix("nvml").removesuffix("_t")
    record = getattr(module, name, None)
    if not isinstance(record, type):
        return {"str": "", _HANDLE: 1}.get(kind, 0)
    return [] if f"{name}(size" in str(record.__doc__) else record()


def _as(empty: Any, value: Any) -> Any:
    """A value as what a function returns: a text for bytes, a record filled with attributes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, types.SimpleNamespace):
        for name, item in vars(value).items():
            setattr(empty, name, item)
        return empty
    return value
