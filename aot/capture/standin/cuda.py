"""What ``torch.cuda`` says of the device that stands in: properties, streams, events, memory, graphs, NVTX."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import FunctionType
from typing import Any
from unittest import mock

from ...compile.device.anything import Anything
from ...compile.device.devices import Device
from ...compile.device.hardware_info import note_answer
from ...compile.device.torch_device import device_answers
from .graphs import run_graph

__all__ = ["torch_has_device"]

_handles = itertools.count(1)
_CUDA_VERSION, _NCCL_VERSION = "13.0", (2, 27, 7)
_INTERFACES = "torch._dynamo.device_interface"
_INDUCTOR = "_TorchCompileInductorWrapper"


@contextmanager
def torch_has_device(device: Device) -> Iterator[None]:
    """Within the context, torch has one CUDA device, whether it was built for CUDA or not."""
    import torch

    places: list[tuple[Any, dict[str, Any]]] = [
        (torch.cuda, _device_answers(device) | _stream_answers() | _memory_answers(device) | _random_answers(torch)),
        (torch.cuda.memory, _memory_answers(device)),
        (torch.cuda.random, _random_answers(torch)),
        (torch.cuda.nccl, {"version": lambda: _NCCL_VERSION}),
        (torch.cuda.nvtx, _nvtx_answers()),
        (torch.cuda.profiler, {"start": lambda: None, "stop": lambda: None}),
        (torch._C, {"_cuda_getCurrentRawStream": lambda device: 0}),
        (torch.backends.cuda, {"is_built": lambda: True}),
        (torch.profiler, {"profile": lambda *args, **named: Anything()}),
        (torch.autograd.profiler, {"profile": lambda *args, **named: Anything()}),
        (torch, {"Generator": _generator(torch.Generator)}),
    ]
    if hasattr(torch, "accelerator"):
        places.append((torch.accelerator, _accelerator_answers(torch, device)))
    if torch.version.cuda is None:
        places.append((torch.version, {"cuda": _CUDA_VERSION}))
    if (inductor := getattr(torch, _INDUCTOR, None)) is not None:
        places.append((inductor, {"__call__": run_graph}))
    if (dynamo := sys.modules.get(_INTERFACES)) is not None:
        places.append((dynamo.CudaInterface, _interface_answers(dynamo.CudaInterface, places[0][1])))
    with ExitStack() as stack:
        for place, answers in places:
            for name, value in answers.items():
                played = _named_as(value, getattr(place, name, None))
                stack.enter_context(mock.patch.object(place, name, played, create=True))
        yield


def _named_as(value: Any, original: Any) -> Any:
    """A function with the name of torch's own: a library that imported it by name keeps it, and is compared by such names."""
    if not isinstance(value, FunctionType) or not isinstance(original, FunctionType):
        return value
    copy = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, value.__closure__)
    copy.__kwdefaults__ = value.__kwdefaults__
    copy.__module__, copy.__qualname__ = original.__module__, original.__qualname__
    return copy


class CurrentDevice:
    """The context of a device, which is current already. It is a class, since torch asks whether an object is one."""

    def __init__(self, device: Any) -> None:
        self.idx = self.prev_idx = 0

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


class Stream:
    """A stream on which nothing runs."""

    def __init__(self, device: Any = None, priority: int = 0, stream_ptr: int | None = None, **named: Any) -> None:
        self.cuda_stream = stream_ptr if stream_ptr is not None else next(_handles) << 8
        self.stream_id, self.device_index, self.priority, self.device_type = self.cuda_stream, 0, priority, 1

    @property
    def device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5

    def synchronize(self) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event if event is not None else Event()

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...


class ExternalStream(Stream):
    def __init__(self, stream_ptr: int, device: Any = None, **named: Any) -> None:
        super().__init__(device, stream_ptr=stream_ptr)


class Event:
    """An event that has happened."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **named: Any) -> None:
        self.cuda_event = next(_handles) << 8

    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Any) -> float:
        return 1.0


Stream.__module__ = ExternalStream.__module__ = Event.__module__ = "torch.cuda.streams"  # as torch's own


class CUDAGraph:
    """A graph of nothing."""

    def __init__(self, *args: Any, **named: Any) -> None: ...
    def capture_begin(self, *args: Any, **named: Any) -> None: ...
    def capture_end(self) -> None: ...
    def instantiate(self) -> None: ...
    def replay(self) -> None: ...
    def reset(self) -> None: ...
    def pool(self) -> tuple[int, int]:
        return 0, 1


def _device_answers(device: Device) -> dict[str, Any]:
    name = f"sm_{device.capability[0]}{device.capability[1]}"
    return {
        **device_answers(device, note_answer),
        "_lazy_init": lambda: None,
        "_is_compiled": lambda: True,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "_sleep": lambda cycles: None,
        "can_device_access_peer": lambda device, peer_device: False,
        "check_error": lambda res: None,
        "cudart": lambda: _Runtime(device),
        "current_blas_handle": lambda: 0,
        "current_solver_handle": lambda: 0,
        "device": CurrentDevice,
        "device_memory_used": lambda device=None: 0,
        "device_of": lambda obj: nullcontext(),
        "get_arch_list": lambda: [name],
        "get_sync_debug_mode": lambda: 0,
        "init": lambda: None,
        "ipc_collect": lambda: None,
        "is_tf32_supported": lambda: True,
        "set_device": lambda device: None,
        "set_sync_debug_mode": lambda debug_mode: None,
        "synchronize": lambda device=None: None,
        "clock_rate": lambda device=None: 1000,
        "memory_usage": lambda device=None: 0,
        "power_draw": lambda device=None: 100_000,
        "temperature": lambda device=None: 40,
        "utilization": lambda device=None: 0,
    }


class _Runtime:
    """The CUDA runtime as torch offers it: each function succeeds."""

    def __init__(self, device: Device) -> None:
        self.cudaMemGetInfo = _memory_answers(device)["mem_get_info"]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return lambda *args: 0


def _stream_answers() -> dict[str, Any]:
    stream = Stream(stream_ptr=0)
    return {
        "CUDAGraph": CUDAGraph,
        "Event": Event,
        "ExternalStream": ExternalStream,
        "Stream": Stream,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "get_stream_from_external": lambda data_ptr, device=None: Stream(stream_ptr=data_ptr),
        "graph": lambda *args, **named: nullcontext(),
        "graph_pool_handle": lambda: (0, 1),
        "is_current_stream_capturing": lambda: False,
        "make_graphed_callables": lambda callables, *args, **named: callables,
        "set_stream": lambda stream: None,
        "stream": lambda stream: nullcontext(),
    }


def _memory_answers(device: Device) -> dict[str, Any]:
    def nothing(device: Any = None) -> int:
        return 0

    counted = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")
    reset = ("reset_accumulated_memory_stats", "reset_max_memory_allocated", "reset_peak_memory_stats")
    of_host = ("reset_accumulated_host_memory_stats", "reset_peak_host_memory_stats")
    return {
        **dict.fromkeys(counted, nothing),
        **dict.fromkeys(reset, lambda device=None: None),
        **dict.fromkeys(of_host, lambda: None),
        "caching_allocator_alloc": lambda size, device=None, stream=None: next(_handles) << 8,
        "caching_allocator_delete": lambda mem_ptr: None,
        "change_current_allocator": lambda allocator: None,
        "empty_cache": lambda: None,
        "get_allocator_backend": lambda: "native",
        "get_per_process_memory_fraction": lambda device=None: 1.0,
        "list_gpu_processes": lambda device=None: "no processes are running",
        "mem_get_info": lambda device_=None: (device.memory // 2, device.memory),
        "memory_snapshot": lambda *args, **named: [],
        "memory_summary": lambda device=None, abbreviated=False: "CUDA memory: none, a device stands in",
        "memory_stats": lambda device=None: defaultdict(int),
        "set_per_process_memory_fraction": lambda fraction, device=None: None,
    }


def _random_answers(torch: Any) -> dict[str, Any]:
    return {
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "initial_seed": lambda: 0,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "seed": lambda: None,
        "seed_all": lambda: None,
        "set_rng_state": lambda new_state, device="cuda": None,
        "set_rng_state_all": lambda new_states: None,
    }


def _nvtx_answers() -> dict[str, Any]:
    return {
        "mark": lambda msg: None,
        "range": lambda msg, *args, **kwargs: nullcontext(),
        "range_end": lambda range_id: None,
        "range_pop": lambda: 0,
        "range_push": lambda msg: 0,
        "range_start": lambda msg: 0,
    }


def _accelerator_answers(torch: Any, device: Device) -> dict[str, Any]:
    memory = _memory_answers(device)
    return {
        **{name: answer for name, answer in memory.items() if hasattr(torch.accelerator, name)},
        "empty_host_cache": lambda: None,
        "get_memory_info": memory["mem_get_info"],
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_idx": lambda: 0,
        "current_device_index": lambda: 0,
        "current_stream": lambda device=None: torch.cuda.current_stream(),
        "device_count": lambda: 1,
        "device_index": CurrentDevice,
        "get_device_capability": lambda device=None: {"supported_dtypes": set(_dtypes(torch))},
        "is_available": lambda: True,
        "set_device_idx": lambda device: None,
        "set_device_index": lambda device: None,
        "set_stream": lambda stream: None,
        "synchronize": lambda device=None: None,
    }


def _dtypes(torch: Any) -> Iterator[Any]:
    return (value for value in vars(torch).values() if isinstance(value, torch.dtype))


def _interface_answers(interface: Any, answers: dict[str, Any]) -> dict[str, Any]:
    """What torch's compiler takes from ``torch.cuda`` when it is imported, which may be before this."""
    return {name: staticmethod(answer) for name, answer in answers.items() if name in vars(interface)}


def _generator(original: Any) -> Any:
    """A torch without CUDA has no generator for it; that of the CPU takes its place, for tensors without memory."""

    class Generator(original):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            return original.__new__(original, "cpu")

    return Generator
