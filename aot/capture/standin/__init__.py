"""A device that answers what a program asks of a GPU and runs nothing, so that scripts work without one.

Only while an exercise runs: torch has one CUDA device, its tensors have no memory, timers return at once. The driver
and ``cuda.core`` are played by ``compile/device``, for as long as the process lives. If torch is not installed, only timers,
``nvidia-smi`` and the launches of Triton are replaced.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ...compile.device.devices import Device
from ...compile.timers import timers_return
from .notes import Notes
from .operators import Report, operator_bodies
from .smi import nvidia_smi_found
from .triton import triton_has_device

__all__ = ["Notes", "standin_device"]


@contextmanager
def standin_device(device: Device, report: Report, notes: Notes) -> Iterator[None]:
    """Within the context, torch has one CUDA device, and its tensors have no memory.

    ``report`` is told of custom operators whose bodies raise on such tensors, ``notes`` of values that were made up.
    """
    spec = importlib.util.find_spec("torch")
    with ExitStack() as stack:
        stack.enter_context(timers_return(notes.add))
        stack.enter_context(nvidia_smi_found(device))
        # CuTe DSL 4.6 and 4.7 have a file of that name in sys.path.
        if spec is not None and spec.submodule_search_locations:
            from .cuda import torch_has_device
            from .distributed import groups_without_processes
            from .tensors import without_memory

            stack.enter_context(torch_has_device(device))
            stack.enter_context(without_memory(notes))
            stack.enter_context(operator_bodies(report))
            stack.enter_context(groups_without_processes(notes.add))
        stack.enter_context(triton_has_device(device, notes.add))
        yield
