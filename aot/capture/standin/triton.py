"""Triton under the device that stands in: it finds a driver, its timers return, and its kernels are not launched.

Libraries mix kernels of Triton with those of CuTe DSL, and scripts time with ``triton.testing``. Triton asks for the
driver's library before it compiles the first kernel, and an exercise would end there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from ...compile.device.anything import Anything
from ...compile.device.devices import Device
from ...compile.timers import MADE_UP, Note

__all__ = ["triton_has_device"]

_MILLISECONDS = 1.0
_TIMERS = ("do_bench", "do_bench_cudagraph", "do_bench_proton", "do_bench_cudagraph_proton")


@contextmanager
def triton_has_device(device: Device, note: Note) -> Iterator[None]:
    """Within the context, Triton has a driver that answers for a device, and launches nothing. Without Triton, nothing."""
    places = _places(device, note) if importlib.util.find_spec("triton") is not None else []
    with ExitStack() as stack:
        for place, name, value in places:
            stack.enter_context(mock.patch.object(place, name, value))
        yield


def _places(device: Device, note: Note) -> list[tuple[Any, str, Any]]:
    """What is replaced, by where it is; nothing in a version of Triton that is laid out otherwise."""
    try:
        import triton.testing as testing
        from triton.runtime.driver import driver
        from triton.runtime.jit import JITFunction
    except ImportError:
        return []
    timers = [(testing, name, _timer(note)) for name in _TIMERS if hasattr(testing, name)]
    active = "_active" if "_active" in vars(driver) else "active"  # a property in newer versions
    return [*timers, (driver, active, _Driver(device, note)), (JITFunction, "run", _run)]


def _run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Compile and launch nothing: no tensor has memory that a kernel could write."""
    return Anything()


def _timer(note: Note) -> Callable[..., Any]:
    def timer(
        fn: Any, *args: Any, quantiles: Sequence[float] | None = None, return_mode: str = "mean", **settings: Any
    ) -> Any:
        note(MADE_UP)
        fn()
        times = [_MILLISECONDS] * len(quantiles or "1")
        return times if len(times) > 1 or return_mode == "all" else times[0]

    return timer


class _Driver(Anything):
    """Answers what Triton and libraries ask its driver of the device."""

    def __init__(self, device: Device, note: Note) -> None:
        self._device = device
        self.get_benchmarker = lambda: _timer(note)
        self.utils = _Utils(device)

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = self._device.capability
        return GPUTarget("cuda", major * 10 + minor, 32)

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return self._device.capability

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)


class _Utils(Anything):
    """The part of the driver that tells the numbers of a device."""

    def __init__(self, device: Device) -> None:
        self._properties = {
            "max_shared_mem": device.shared_memory,
            "max_num_regs": 65536,
            "multiprocessor_count": device.multiprocessors,
            "warpSize": 32,
            "sm_clock_rate": 1_000_000,
            "mem_clock_rate": 1_000_000,
            "mem_bus_width": 4096,
        }

    def get_device_properties(self, device: int) -> dict[str, int]:
        return dict(self._properties)
