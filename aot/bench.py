"""Measuring the kernels of a bundle on a GPU, against the bandwidth of a copy and against torch.

A measurement is a CUDA graph of many calls, replayed between two events: what is timed is the GPU's work,
not Python's. The calls go through as many sets of buffers as it takes to leave the L2 cache behind. Contenders
take turns, and medians are reported, so that ratios hold on a machine whose clocks move.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .contracts import Contract
from .inputs import InputMaker
from .running import Gpu, arguments_text, choices_of, make_outputs

__all__ = ["AGAINST", "Result", "bench", "copies_beyond", "plot", "results_data"]

AGAINST = ("torch", "torch.compile")
DTYPES = ("bf16",)
ROUNDS = 21
_CALLS = 16  # in one graph, at least
_COPY_BYTES = 1 << 30
_CACHE = 128 << 20  # where torch does not tell the size of the L2 cache
_MEMORY = 24 << 30  # for the sets of buffers of one measurement


@dataclass(frozen=True)
class Result:
    """One problem. Times are medians, in microseconds per call, by contender; ours is ``aot``."""

    kernel: str
    dtype: str
    choices: Mapping[str, str]
    arguments: str
    variant: str
    microseconds: Mapping[str, float]
    bytes: int
    operations: int
    copy_bandwidth: float  # bytes per second, measured beside it

    @property
    def bandwidth(self) -> float:
        return self.bytes / self.microseconds["aot"] * 1e6

    @property
    def of_copy(self) -> float:
        return self.bandwidth / self.copy_bandwidth

    @property
    def teraflops(self) -> float:
        return self.operations / self.microseconds["aot"] * 1e-6

    def speedup(self, contender: str) -> float | None:
        """How many times faster than a contender; None where that one was not measured."""
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
    against: Sequence[str] = (),
    rounds: int = ROUNDS,
) -> Iterator[Result]:
    """Measure the problems that contracts name, in the dtypes given."""
    for kernel in kernels:
        contract = contracts.get(kernel)
        if contract is None or contract.bench_inputs is None or contract.cost is None:
            continue
        for choices in choices_of(bundle.manifest.kernels[kernel]):
            for dtype in dtypes or DTYPES:
                for arguments in contract.bench_inputs(InputMaker(gpu.device), dtype):
                    yield _measure(bundle, kernel, contract, dtype, choices, arguments, gpu, against, rounds)


def copies_beyond(cache: int, of_call: int, memory: int = _MEMORY) -> int:
    """How many sets of buffers push each other out of a cache: twice its size, in as much memory as there is."""
    wanted = -(-2 * cache // max(of_call, 1))
    return max(1, min(max(2, wanted), memory // max(of_call, 1)))


def _measure(
    bundle: Any,
    kernel: str,
    contract: Contract,
    dtype: str,
    choices: Mapping[str, str],
    arguments: dict[str, Any],
    gpu: Gpu,
    against: Sequence[str],
    rounds: int,
) -> Result:
    import torch

    assert contract.cost is not None
    cost = contract.cost(**arguments, **choices)
    cache = int(getattr(torch.cuda.get_device_properties(gpu.device), "L2_cache_size", _CACHE))
    sets = [arguments, *(_copied(arguments) for _ in range(copies_beyond(cache, cost.bytes) - 1))]
    outputs = [make_outputs(bundle.manifest.kernels[kernel], own, gpu.device) for own in sets]
    chosen = bundle.explain(kernel, gpu.capability, **arguments, **outputs[0], **choices).chosen
    function = bundle[kernel]
    runs: dict[str, Callable[[int], Any]] = {"aot": lambda i: function(**sets[i], **outputs[i], **choices)}
    for contender in against if contract.torch_equivalent is not None else ():
        runs[contender] = _contender(contender, contract.torch_equivalent, sets, choices)
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=gpu.device)
    target = torch.empty_like(source)
    timers = {name: _timer(run, len(sets)) for name, run in runs.items()}
    timers["copy"] = _events_around(lambda: target.copy_(source), 1)
    medians = _medians(timers, rounds)
    return Result(
        kernel,
        dtype,
        choices,
        arguments_text(arguments),
        chosen.variant if chosen is not None else "",
        {name: medians[name] for name in runs},
        cost.bytes,
        cost.operations,
        2 * _COPY_BYTES / medians["copy"] * 1e6,
    )


def _copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same values in other memory, laid out alike."""
    return {name: _clone(value) if hasattr(value, "shape") else value for name, value in arguments.items()}


def _clone(tensor: Any) -> Any:
    import torch

    other = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return other.copy_(tensor)


def _contender(
    name: str, equivalent: Callable[..., Any] | None, sets: Sequence[Mapping[str, Any]], choices: Mapping[str, str]
) -> Callable[[int], Any]:
    import torch

    assert equivalent is not None
    function = equivalent if name == "torch" else torch.compile(equivalent, dynamic=False)
    return lambda i: function(**sets[i], **choices)


def _timer(run: Callable[[int], Any], sets: int, calls: int = _CALLS) -> Callable[[], float]:
    """A function that replays many calls as one graph and returns microseconds per call."""
    import torch

    count = max(sets, -(-calls // sets) * sets)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm: code is loaded, and compiled by those that compile
        for i in range(3):
            run(i % sets)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    kept: dict[int, Any] = {}  # results of one round of the sets: freed at once, they would share memory
    with torch.cuda.graph(graph):
        for i in range(count):
            kept[i % sets] = run(i % sets)
    graph.replay()

    return _events_around(graph.replay, count)


def _events_around(run: Callable[[], Any], calls: int) -> Callable[[], float]:
    """Microseconds of one of so many calls. A large copy is measured so: in a graph, slower engines would do it."""
    import torch

    def timed() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / calls

    return timed


def _medians(timers: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            samples[name].append(timer())
    return {name: statistics.median(values) for name, values in samples.items()}


# What people read.


def results_data(gpu: Gpu, results: Sequence[Result]) -> dict[str, Any]:
    rows = []
    for result in results:
        derived = {"bandwidth": result.bandwidth, "of_copy": result.of_copy, "teraflops": result.teraflops}
        rows.append({**asdict(result), **derived})
    return {"benchmark": "kernels", "machine": gpu.facts(), "results": rows}


_BAR, _GAP, _LEFT, _WIDTH = 11, 9, 330, 420
_COLOURS = {"aot": "#2b6cb0", "torch": "#dd6b20", "torch.compile": "#a0aec0"}


def plot(gpu: Gpu, results: Sequence[Result]) -> str:
    """Bars of bandwidth as a fraction of a copy's, as SVG."""
    parts, y = [], 48
    largest = max([1.0, *(fraction for result in results for fraction in _fractions(result).values())])
    for result in results:
        fractions = _fractions(result)
        middle = y + len(fractions) * _BAR / 2 + 4
        shape = result.arguments.split(",")[0]
        parts.append(_text(_LEFT - 8, middle, f"{result.label}, {shape}", "end"))
        for name, fraction in fractions.items():
            length = fraction / largest * _WIDTH
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_BAR - 1}" fill="{_COLOURS[name]}"/>'
            )
            parts.append(_text(_LEFT + length + 4, y + _BAR - 2, f"{fraction:.2f}", "start"))
            y += _BAR
        y += _GAP
    limit = _LEFT + _WIDTH / largest
    line = f'<line x1="{limit:.1f}" y1="40" x2="{limit:.1f}" y2="{y}" stroke="#718096" stroke-dasharray="3 3"/>'
    legend = [_text(8, 16, f"{gpu.name}: bandwidth as a fraction of a copy's", "start", 13)]
    for i, name in enumerate(name for name in _COLOURS if any(name in r.microseconds for r in results)):
        legend.append(f'<rect x="{_LEFT + i * 110}" y="24" width="10" height="10" fill="{_COLOURS[name]}"/>')
        legend.append(_text(_LEFT + i * 110 + 14, 33, name, "start"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 60}" height="{y}" font-family="sans-serif">'
        '<rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join((head, *legend, line, *parts, "</svg>")) + "\n"


def _fractions(result: Result) -> dict[str, float]:
    return {
        name: result.bytes / time * 1e6 / result.copy_bandwidth
        for name, time in result.microseconds.items()
        if name in _COLOURS
    }


def _text(x: float, y: float, text: str, anchor: str, size: int = 10) -> str:
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{safe}</text>'
