"""A device that answers for the architecture that is compiled for, whatever GPU the build machine has or has not.

Some kernels ask ``cutlass.utils.HardwareInfo`` or the driver while they are traced. The answer becomes a constant of the
code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any
from unittest import mock

from aot_runtime.serving.values.libraries import is_of_python, module_of_frame, takes_part

from .c_libraries import play_c_libraries
from .core import play_core
from .devices import Device
from .driver import play_driver
from .nvml import play_nvml
from .torch_device import device_answers

__all__ = ["Answers", "answer_for", "note_answer", "noted"]

Answers = dict[tuple[str, tuple[Any, ...]], Any]  # method and arguments -> what it answered
# Answers that differ between models are always noted. Others are noted only if a library asks.
_BY_ANYBODY = frozenset({"get_device_multiprocessor_count", "get_l2_cache_size_in_bytes", "get_max_active_clusters"})
_heard: list[Answers] = []  # the listeners
_playing: list[Device] = []  # the device that answers


def answer_for(device: Device) -> None:
    """Let CuTe DSL's ``HardwareInfo``, cuda-bindings and ``cuda.core`` answer for a device, for the rest of the process."""
    from cutlass.utils import HardwareInfo

    def init(self: Any, device_id: int = 0) -> None:
        self.device_id = device_id

    def max_active_clusters(self: Any, cluster_size: int, stream: Any = None) -> int:
        return int(note_answer("get_max_active_clusters", (cluster_size,), device.active_clusters(cluster_size)))

    _playing[:] = [device]
    play_driver(device, note_answer)
    play_nvml(device, note_answer)
    play_c_libraries(device, note_answer)
    play_core(device, note_answer)
    # The methods are replaced, not the class: modules may have imported the class already.
    HardwareInfo.__init__ = init
    HardwareInfo.get_max_active_clusters = max_active_clusters
    HardwareInfo.get_l2_cache_size_in_bytes = lambda self: note_answer(
        "get_l2_cache_size_in_bytes", (), device.l2_cache
    )
    HardwareInfo.get_device_multiprocessor_count = lambda self: note_answer(
        "get_device_multiprocessor_count", (), device.multiprocessors
    )


@contextmanager
def noted(answers: Answers) -> Iterator[None]:
    """Within the context, torch answers for the device, too, and what a library asks of it is noted."""
    with ExitStack() as stack:
        torch: Any = sys.modules.get("torch")
        if torch is not None and _playing:
            for name, answer in device_answers(_playing[0], note_answer).items():
                stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        _heard.append(answers)
        stack.callback(_heard.pop)
        yield


def note_answer(question: str, arguments: tuple[Any, ...], value: Any) -> Any:
    """Tell the listeners what a device answered; the value is that of the answer, and None if it cannot be compared.

    CuTe DSL itself asks for limits of the architecture, which is the same for all that serve the code.
    """
    if _heard and (question in _BY_ANYBODY or _is_asked_by_library(sys._getframe(1))):
        for answers in _heard:
            answers[question, arguments] = value
    return value


def _is_asked_by_library(frame: FrameType | None) -> bool:
    """Whether a library asks, and not CuTe DSL or torch, which may ask for themselves."""
    while frame is not None:
        module = module_of_frame(frame)
        if not f"{module}.".startswith("aot.") and not is_of_python(module):
            return takes_part(module)
        frame = frame.f_back
    return False
