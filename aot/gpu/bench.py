"""Measuring the kernels of a bundle on a GPU, against the bandwidth of a copy, torch, torch.compile and other bundles.

A measurement is a CUDA graph of many calls, replayed between two events. So it times the GPU's work, not Python's.
The calls use enough sets of buffers to exceed the L2 cache. Contenders take turns in random order, and medians are
reported, so ratios hold even if the clock of the GPU changes.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aot_runtime.description.kernel_records import KernelRecord

from ..bundle.contracts import Contract
from ..errors import UsageError
from ..files import read_given
from ..records import decode
from .contenders import Problem, problems_of, runs_of
from .running import Gpu, make_outputs

__all__ = [
    "Result",
    "bench",
    "cache_bytes",
    "copies_beyond",
    "graph_timer",
    "read_results",
    "results_data",
    "shuffled_medians",
]

ROUNDS = 21
_CALLS = 16  # in one graph, at least
_COPY_BYTES = 1 << 30
_CACHE = 128 << 20  # used if torch does not report the size of the L2 cache
_MEMORY = 24 << 30  # for the sets of buffers of one measurement
_OPERATIONS_PER_BYTE = 8  # more than any chain of elementwise operations needs, fewer than a product with 16 rows


@dataclass(frozen=True)
class Result:
    """The measurement of one problem. Times are medians in microseconds per call, by contender; ours is ``aot``."""

    kernel: str  # its name
    dtype: str  # of its inputs
    choices: Mapping[str, str]  # what was chosen, by name
    arguments: str  # the call
    variant: str  # what ran of the bundle
    microseconds: Mapping[str, float]  # by contender; ours is `aot`
    bytes: int  # that a call has to read and write
    operations: int  # that a call has to do
    copy_bandwidth: float  # bytes per second of a copy, measured beside it

    @property
    def bandwidth(self) -> float:
        return self.bytes / self.microseconds["aot"] * 1e6

    @property
    def of_copy(self) -> float:
        return self.bandwidth / self.copy_bandwidth

    @property
    def teraflops(self) -> float:
        return self.operations / self.microseconds["aot"] * 1e-6

    @property
    def counts_operations(self) -> bool:
        """Whether operations are the measure, as for matrix products, and not bytes."""
        return self.operations > _OPERATIONS_PER_BYTE * self.bytes

    def speedup(self, contender: str) -> float | None:
        """How many times faster than a contender; None if that contender was not measured."""
        other = self.microseconds.get(contender)
        return None if other is None else other / self.microseconds["aot"]

    @property
    def label(self) -> str:
        return " ".join((self.kernel, *self.choices.values(), self.dtype))


def bench(
    bundle: Any,
    contracts: Mapping[str, Contract],
    kernels: Sequence[str],
    gpu: Gpu,
    *,
    dtypes: Sequence[str] = (),
    against: Mapping[str, Any] | None = None,
    rounds: int = ROUNDS,
) -> Iterator[Result]:
    """Measure the problems of the contracts, in the given dtypes, against torch and other bundles (:func:`runs_of`)."""
    for problem in problems_of(bundle, contracts, kernels, gpu, dtypes):
        yield _measure(problem, bundle, gpu, against or {}, rounds)


def copies_beyond(cache: int, of_call: int, memory: int = _MEMORY) -> int:
    """How many sets of buffers are needed to exceed a cache twice over, within the given memory."""
    wanted = -(-2 * cache // max(of_call, 1))
    return max(1, min(max(2, wanted), memory // max(of_call, 1)))


def _measure(problem: Problem, bundle: Any, gpu: Gpu, against: Mapping[str, Any], rounds: int) -> Result:
    import torch

    assert problem.contract.cost is not None
    cost = problem.contract.cost(**problem.arguments, **problem.choices)
    copies = copies_beyond(cache_bytes(gpu.device), cost.bytes)
    sets = [problem.arguments, *(_copied(problem.arguments) for _ in range(copies - 1))]
    record = bundle.manifest.kernels[problem.kernel]
    outputs = [make_outputs(record, own, gpu.device, picked=problem.dtype) for own in sets]
    runs = runs_of(problem, bundle, gpu, against, sets, outputs)
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=gpu.device)
    target = torch.empty_like(source)
    timers = {name: graph_timer(run, len(sets)) for name, run in runs.items()}
    timers["copy"] = _events_around(lambda: target.copy_(source), 1)
    medians = shuffled_medians(timers, rounds)
    return Result(
        problem.kernel,
        problem.dtype,
        problem.choices,
        problem.text,
        problem.variant(bundle, gpu, outputs[0]),
        {name: medians[name] for name in runs},
        cost.bytes,
        cost.operations,
        2 * _COPY_BYTES / medians["copy"] * 1e6,
    )


def time_functions(
    functions: Mapping[str, Callable[..., Any]],
    record: KernelRecord,
    arguments: dict[str, Any],
    choices: Mapping[str, str],
    gpu: Gpu,
    rounds: int = ROUNDS,
) -> dict[str, float]:
    """The medians of functions that do the same with the same arguments, in microseconds per call."""
    size = sum(value.nbytes for value in arguments.values() if hasattr(value, "nbytes"))
    copies = copies_beyond(cache_bytes(gpu.device), size)
    sets = [arguments, *(_copied(arguments) for _ in range(copies - 1))]
    outputs = [make_outputs(record, own, gpu.device) for own in sets]

    def run_of(function: Callable[..., Any]) -> Callable[[int], Any]:
        return lambda i: function(**sets[i], **outputs[i], **choices)

    timers = {name: graph_timer(run_of(function), len(sets)) for name, function in functions.items()}
    return shuffled_medians(timers, rounds)


def cache_bytes(device: Any) -> int:
    """The size of a GPU's L2 cache."""
    import torch

    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", _CACHE))


def _copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same values in new memory, with the same layout."""
    return {name: _clone(value) if hasattr(value, "shape") else value for name, value in arguments.items()}


def _clone(tensor: Any) -> Any:
    import torch

    other = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return other.copy_(tensor)


def graph_timer(run: Callable[[int], Any], sets: int, calls: int = _CALLS) -> Callable[[], float]:
    """A function that replays many calls as one graph and returns microseconds per call."""
    import torch

    count = max(sets, -(-calls // sets) * sets)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm up: code is loaded, and torch.compile compiles
        for i in range(3):
            run(i % sets)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    kept: dict[int, Any] = {}  # results of one round: if they were freed at once, calls would share memory
    with torch.cuda.graph(graph):
        for i in range(count):
            kept[i % sets] = run(i % sets)
    graph.replay()

    return _events_around(graph.replay, count)


def _events_around(run: Callable[[], Any], calls: int) -> Callable[[], float]:
    """Microseconds per call of a function that makes ``calls`` calls.

    A large copy is measured without a graph, because in a graph slower copy engines would do it.
    """
    import torch

    def timed() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / calls

    return timed


def shuffled_medians(timers: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of each measurement, taken in turns."""
    samples: dict[str, list[float]] = {name: [] for name in timers}
    chance = random.Random(rounds)
    for _ in range(rounds):
        # In random order: after a light contender the GPU is cool and its clock is high.
        for name in chance.sample(list(timers), len(timers)):
            samples[name].append(timers[name]())
    return {name: statistics.median(values) for name, values in samples.items()}


# Results as JSON.


@dataclass(frozen=True, kw_only=True)
class RatedResult(Result):
    """A measurement, and what follows from it."""

    bandwidth: float  # bytes per second
    of_copy: float  # bandwidth as a fraction of that of a copy
    teraflops: float  # operations per second
    speedups: Mapping[str, float | None]  # how many times as fast as each contender; null: it was not measured


def results_data(gpu: Gpu, results: Sequence[Result]) -> dict[str, Any]:
    rows = []
    for result in results:
        derived = {"bandwidth": result.bandwidth, "of_copy": result.of_copy, "teraflops": result.teraflops}
        speedups = {name: result.speedup(name) for name in result.microseconds if name != "aot"}
        rows.append({**asdict(result), **derived, "speedups": speedups})
    return {"benchmark": "kernels", "machine": gpu.facts(), "results": rows}


def read_results(path: Path) -> tuple[str, list[Result]]:
    """The GPU and the results of a file that ``bench`` wrote."""
    try:
        data = json.loads(read_given(path))
        results = [decode(Result, row) for row in data["results"]]
        for result in results:
            _check_numbers(result)
        return str(data["machine"]["gpu"]), results
    except OSError as error:
        raise UsageError(
            f"cannot read `{path}`: {error.strerror}", hint="pass the file that `bench --out` wrote"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"`{path}` is not what `bench --out` writes: {_reason(error)}",
            hint="run `python -m aot bench BUNDLE --out FILE` again",
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def _check_numbers(result: Result) -> None:
    """A time of 0, or what is no number, would be divided by."""
    if "aot" not in result.microseconds:
        raise ValueError(f"{result.label} was not measured")
    for number in (*result.microseconds.values(), result.copy_bandwidth):
        if not 0 < number < float("inf"):
            raise ValueError(f"{result.label} has {number!r}, which is no time or bandwidth")
    if result.bytes < 0 or result.operations < 0:
        raise ValueError(f"{result.label} has {result.bytes} bytes and {result.operations} operations")
