"""A device that answers for the architecture that is compiled for, whatever GPU the build machine has or has not.

Some kernels ask ``cutlass.utils.HardwareInfo`` or the driver while they are traced. The answer becomes a constant of the
code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .devices import Device
from .driver import play_driver

__all__ = ["Answers", "answer_for", "noted"]

Answers = dict[tuple[str, tuple[Any, ...]], Any]  # method and arguments -> what it answered
_heard: list[Answers] = []  # the listeners


def answer_for(device: Device) -> None:
    """Let CuTe DSL's ``HardwareInfo`` and cuda-bindings answer for a device, for the rest of the process."""
    from cutlass.utils import HardwareInfo

    def init(self: Any, device_id: int = 0) -> None:
        self.device_id = device_id

    def max_active_clusters(self: Any, cluster_size: int, stream: Any = None) -> int:
        return _note("get_max_active_clusters", (cluster_size,), device.active_clusters(cluster_size))

    play_driver(device, _note)
    # The methods are replaced, not the class: modules may have imported the class already.
    HardwareInfo.__init__ = init
    HardwareInfo.get_max_active_clusters = max_active_clusters
    HardwareInfo.get_l2_cache_size_in_bytes = lambda self: _note("get_l2_cache_size_in_bytes", (), device.l2_cache)
    HardwareInfo.get_device_multiprocessor_count = lambda self: _note(
        "get_device_multiprocessor_count", (), device.multiprocessors
    )


@contextmanager
def noted(answers: Answers) -> Iterator[None]:
    """Within the context, what ``HardwareInfo`` answers is noted."""
    _heard.append(answers)
    try:
        yield
    finally:
        _heard.pop()


def _note(question: str, arguments: tuple[Any, ...], value: int) -> int:
    """Tell the listeners what was answered; the value is that of the answer."""
    for answers in _heard:
        answers[question, arguments] = value
    return value
