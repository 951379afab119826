"""``nvidia-smi`` for an exercise: programs ask it in a process of its own what a machine has."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...compile.device.devices import Device
from ...compile.device.driver import VERSION
from ...compile.device.nvml import DRIVER, UNIQUE
from . import nvidia_smi

__all__ = ["nvidia_smi_found"]

_MIB = 1 << 20


@contextmanager
def nvidia_smi_found(device: Device) -> Iterator[None]:
    """Within the context, the first ``nvidia-smi`` of the search path answers for a device."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "nvidia-smi")
        command = [sys.executable, "-I", "-S", nvidia_smi.__file__, json.dumps(_facts(device))]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        program.chmod(0o755)
        os.environ["PATH"] = os.pathsep.join([folder, *_search_path()])
        try:
            yield
        finally:  # the exercise may have changed the rest
            os.environ["PATH"] = os.pathsep.join(part for part in _search_path() if part != folder)


def _search_path() -> list[str]:
    return os.environ.get("PATH", os.defpath).split(os.pathsep)


def _facts(device: Device) -> dict[str, object]:
    """What there is to ask, by the names that ``--query-gpu`` has for it."""
    used = device.memory - device.memory // 2
    memory = {"total": device.memory, "free": device.memory - used, "used": used}
    return {
        "compute_cap": ".".join(map(str, device.capability)),
        "count": 1,
        "cuda_version": f"{VERSION // 1000}.{VERSION % 1000 // 10}",
        "driver_version": DRIVER,
        "index": 0,
        "name": device.model,
        "pci.bus_id": "00000000:01:00.0",
        "uuid": UNIQUE,
        **{f"memory.{name}": size // _MIB for name, size in memory.items()},
    }
