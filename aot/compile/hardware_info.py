"""A device that answers for the architecture that is compiled for, whatever GPU the build machine has or has not.

Some kernels ask ``cutlass.utils.HardwareInfo`` while they are traced. What it answers becomes a constant of the code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import dsl
from .devices import Device

__all__ = ["Answers", "answer_for", "noted"]

Answers = dict[tuple[str, tuple[Any, ...]], Any]  # method and arguments -> what it answered
_heard: list[Answers] = []  # the listeners


def answer_for(device: Device) -> None:
    """Let CuTe DSL's ``HardwareInfo`` answer for a device, for the rest of the process."""
    from cutlass.utils import HardwareInfo

    def init(self: Any, device_id: int = 0) -> None:
        self.device_id = device_id

    def max_active_clusters(self: Any, cluster_size: int, stream: Any = None) -> int:
        return _answer("get_max_active_clusters", (cluster_size,), device.active_clusters(cluster_size))

    dsl.installed().answer_attributes(_attributes(device))
    # The methods are replaced, not the class: modules may have imported the class already.
    HardwareInfo.__init__ = init
    HardwareInfo.get_max_active_clusters = max_active_clusters
    HardwareInfo.get_l2_cache_size_in_bytes = lambda self: _answer("get_l2_cache_size_in_bytes", (), device.l2_cache)
    HardwareInfo.get_device_multiprocessor_count = lambda self: _answer(
        "get_device_multiprocessor_count", (), device.multiprocessors
    )


def _attributes(device: Device) -> dict[str, int]:
    """What CuTe DSL asks the driver itself: the shared memory of a multiprocessor, if a launch names ``min_blocks_per_mp``.

    All of this is the same for all devices of a compute capability, so that it is not noted.
    """
    return {
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": device.shared_memory_per_multiprocessor,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": device.shared_memory,
        "COMPUTE_CAPABILITY_MAJOR": device.capability[0],
        "COMPUTE_CAPABILITY_MINOR": device.capability[1],
    }


@contextmanager
def noted(answers: Answers) -> Iterator[None]:
    """Within the context, what ``HardwareInfo`` answers is noted."""
    _heard.append(answers)
    try:
        yield
    finally:
        _heard.pop()


def _answer(question: str, arguments: tuple[Any, ...], value: int) -> int:
    for answers in _heard:
        answers[question, arguments] = value
    return value
