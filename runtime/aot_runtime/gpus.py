"""GPUs by name, and every other way to say which device is meant: ``H100``, ``9.0``, ``sm_90a``, ``sm90``, ``native``.

The builder reads the same table. A test compares it with that of the CMake package.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

from .arch import Arch, ArchError, Capability, parse_capability

__all__ = ["GPUS", "NATIVE", "find_gpu", "native_capability", "parse_device"]

NATIVE = "native"  # the first GPU of this machine
# From NVIDIA's list of CUDA GPUs.
GPUS: dict[str, Capability] = {
    "V100": (7, 0), "T4": (7, 5),
    "A100": (8, 0), "A30": (8, 0), "A800": (8, 0),
    "A10": (8, 6), "A40": (8, 6), "A6000": (8, 6), "RTX A6000": (8, 6), "RTX 3080": (8, 6), "RTX 3090": (8, 6),
    "Orin": (8, 7),
    "L4": (8, 9), "L40": (8, 9), "L40S": (8, 9), "RTX 4080": (8, 9), "RTX 4090": (8, 9), "RTX 6000 Ada": (8, 9),
    "H100": (9, 0), "H200": (9, 0), "H20": (9, 0), "H800": (9, 0), "GH200": (9, 0),
    "B200": (10, 0), "GB200": (10, 0),
    "B300": (10, 3), "GB300": (10, 3),
    "Thor": (11, 0),
    "RTX 5080": (12, 0), "RTX 5090": (12, 0), "RTX PRO 6000": (12, 0),
    "GB10": (12, 1),
}  # fmt: skip
_MAKERS = frozenset({"NVIDIA", "GEFORCE", "TESLA", "JETSON", "AGX", "QUADRO"})
_SHORT = re.compile(r"sm(\d{1,2})(\d)")
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


def find_gpu(text: str) -> str | None:
    """The name in :data:`GPUS` of ``NVIDIA H100 80GB HBM3``, ``rtx4090``; None if there is none."""
    words = [word for word in re.split(r"[\s_-]+", text.upper()) if word and word not in _MAKERS]
    starts = {"".join(words[:count]) for count in range(1, len(words) + 1)}
    return max((name for name in GPUS if name.upper().replace(" ", "") in starts), key=len, default=None)


def native_capability(open_library: Any = ctypes.CDLL) -> Capability:
    """The compute capability of this machine's first GPU."""
    try:
        library = open_library("libcuda.so.1")
    except OSError:
        library = None
    count = ctypes.c_int()
    if library is None or library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        raise ArchError(
            f"`{NATIVE}` is the GPU of this machine, which has none", hint="name a GPU, such as H100, or `sm90`"
        )
    numbers = []
    for attribute in (_MAJOR, _MINOR):
        number = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(number), attribute, 0)
        numbers.append(number.value)
    return numbers[0], numbers[1]


def parse_device(value: str | Capability) -> Capability:
    """The compute capability of a device, however it is named."""
    if not isinstance(value, str):
        return parse_capability(value)
    short, gpu = _SHORT.fullmatch(value), find_gpu(value)
    if value == NATIVE:
        return native_capability()
    if short is not None:
        return int(short[1]), int(short[2])
    if value.startswith("sm_"):
        return Arch.parse(value).capability
    if gpu is not None:
        return GPUS[gpu]
    try:
        return parse_capability(value)
    except ArchError:
        raise ArchError(
            f"not a device: {value!r}", hint='write it like "9.0", (9, 0), "H100", "sm_90a", "sm90" or "native"'
        ) from None
