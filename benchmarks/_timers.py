"""Three ways to time a call on a GPU. Which one fits depends on how a program makes its calls.

``graph``: many calls in one CUDA graph, with inputs beyond the L2 cache. Only the GPU's work counts, as in an engine that
decodes. ``python``: many calls from Python, one after the other, with the same inputs. What a call costs on the host counts
where it takes longer than the GPU. ``alone``: one call at a time, after the L2 cache was emptied, as Triton's ``do_bench``
measures. Nothing before it overlaps with its start.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

WAYS = ("graph", "python", "alone")
REPEATS = 5  # of calls alone, in one measurement


def medians(runs: Mapping[str, Callable[[int], Any]], way: str, sets: int, calls: int, rounds: int) -> dict[str, float]:
    """Microseconds per call of each contender, which get the number of a set of inputs. They take turns."""
    from aot.gpu.bench import graph_timer, shuffled_medians

    if way == "graph":
        return shuffled_medians({name: graph_timer(run, sets, calls) for name, run in runs.items()}, rounds)
    for run in runs.values():  # code is loaded, and torch has chosen its own
        run(0)
    timers = {name: from_python(run, calls) if way == "python" else alone(run) for name, run in runs.items()}
    return shuffled_medians(timers, rounds)


def from_python(run: Callable[[int], Any], calls: int) -> Callable[[], float]:
    def timed() -> float:
        def all_calls() -> None:
            for _ in range(calls):
                run(0)

        return between_events(all_calls) / calls

    return timed


def alone(run: Callable[[int], Any]) -> Callable[[], float]:
    import torch

    from aot.gpu.bench import cache_bytes

    other = torch.empty(4 * cache_bytes("cuda"), dtype=torch.uint8, device="cuda")

    def timed() -> float:
        return statistics.median(between_events(lambda: run(0), first=other.zero_) for _ in range(REPEATS))

    return timed


def between_events(run: Callable[[], Any], first: Callable[[], Any] = lambda: None) -> float:
    """Microseconds of what a function starts on the GPU, after something else that is not counted."""
    import torch

    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
