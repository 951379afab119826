"""A device that answers torch's questions and runs nothing, so that a library's host code works without a GPU.

Only while an exercise runs. If torch is not installed, nothing is replaced.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ..compile.devices import Device
from .operators import Report, operator_bodies

__all__ = ["standin_device"]


@contextmanager
def standin_device(device: Device, report: Report) -> Iterator[None]:
    """Within the context, torch has one CUDA device, and its tensors have no memory.

    ``report`` is told of custom operators whose bodies raise on such tensors.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:  # CuTe DSL 4.6 and 4.7 have a file of that name in sys.path
        yield
        return
    import torch
    from torch._subclasses import fake_tensor

    with ExitStack() as stack:
        for name, value in _answers(device).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        # A torch with CUDA makes a real tensor before the first fake one, which takes a GPU.
        stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context", lambda device: None, create=True))
        stack.enter_context(torch.no_grad())  # fake CUDA tensors that require gradients abort a torch without CUDA
        stack.enter_context(fake_tensor.FakeTensorMode())
        stack.enter_context(operator_bodies(report))
        yield


def _answers(device: Device) -> dict[str, Any]:
    major, minor = device.capability
    properties = _properties(device)
    stream = SimpleNamespace(cuda_stream=0, device_index=0, synchronize=lambda: None, wait_stream=lambda other: None)

    # Each is a function of its own: torch's compiler refuses one object that has two names.
    return {
        "_lazy_init": lambda: None,
        "current_device": lambda: 0,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "device": lambda device: nullcontext(),
        "device_count": lambda: 1,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "init": lambda: None,
        "is_available": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "is_initialized": lambda: True,
        "set_device": lambda device: None,
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda device=None: None,
    }


def _properties(device: Device) -> SimpleNamespace:
    """What torch calls the properties of a device."""
    major, minor = device.capability
    return SimpleNamespace(
        name=device.model,
        major=major,
        minor=minor,
        multi_processor_count=device.multiprocessors,
        total_memory=device.memory,
        L2_cache_size=device.l2_cache,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=device.shared_memory,
        shared_memory_per_multiprocessor=device.shared_memory_per_multiprocessor,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048 if major in (8, 9, 10) and minor in (0, 3) else 1536,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        uuid="",
    )
