"""Other libraries from bundles: the wait for a first result, look-ups, later calls, and the bundle without the library.

Needs a GPU, torch, CuTe DSL, quack and FlashAttention-4, and the bundles that `examples/capture` gives:

    python benchmarks/capture.py --quack dist/quack --fa4 dist/fa4 --out results.json

Every first result comes from a fresh process. All processes import what they need at the same time, and are then
measured one by one. Later calls are compared within one process, in turns: the library's host code is the same, and
calls either what CuTe DSL compiled or what the bundle served.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import parser, print_rows, report

CHILD = Path(__file__).with_name("_capture_child.py")
LIMITS = {
    "fa4: compiled over served": 300,
    "quack: compiled over served": 30,
    "look-up_ms": 1.0,
    "served over compiled, later calls_us": 0.3,
    "fa4: library over bundle alone, from the end of import torch": 20,
    "host time of the library's wrapper over the bundle's function": 5,
}
NO_DISK_CACHES = {"QUACK_CACHE_ENABLED": "0", "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0"}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--quack", type=Path, required=True, help="the bundle of examples/capture/quack_kernels.py")
    arguments.add_argument("--fa4", type=Path, required=True, help="that of examples/capture/flash_attention_4.py")
    arguments.add_argument("--processes", type=int, default=3, help="fresh processes per figure of a bundle")
    arguments.add_argument("--compiles", type=int, default=3, help="fresh processes per figure of the library alone")
    options = arguments.parse_args()
    bundles = {"quack": str(options.quack.resolve()), "fa4": str(options.fa4.resolve())}
    counts = {"served": options.processes, "compiled": options.compiles}
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(bundles, folder, counts)
        start = measure_start(bundles["fa4"], folder, counts)
    results = {"limits": LIMITS, "processes": counts, "start_s": start, **measured}
    show(results)
    report("capture", results, options.out)


def measure(bundles: dict[str, str], folder: str, counts: dict[str, int]) -> dict[str, Any]:
    """The figures of each operation of each library. The processes are measured one by one, once all are ready."""
    later = _started(bundles, folder, ["both"])
    first = _started(bundles, folder, [mode for mode, count in counts.items() for _ in range(count)])
    _wait_for(later + first)
    compared = {child.library: child.result() for child in later}  # writes the arguments that `alone` reads
    alone = _started(bundles, folder, ["alone"])
    _wait_for(alone)
    without = {child.library: child.result() for child in alone}
    runs = [(child.library, child.mode, child.result()) for child in first]
    found = {}
    for library in bundles:
        own = {mode: [run for name, how, run in runs if (name, how) == (library, mode)] for mode in counts}
        found[library] = {
            "hits and misses": [(run["hits"], run["misses"]) for run in own["served"]],
            "opening_ms": _median(own["served"], "opening_ms"),
            "operations": {
                name: {
                    **_first_results({mode: [run["operations"][name] for run in own[mode]] for mode in own}),
                    **compared[library]["operations"][name],
                    **without[library]["operations"].get(name, {}),
                }
                for name in compared[library]["operations"]
            },
        }
    return found


def _first_results(waits: dict[str, list[Any]]) -> dict[str, float]:
    return {
        **{f"first result, {mode}_ms": _median(runs, "first_ms") for mode, runs in waits.items()},
        "look-up_ms": _median(waits["served"], "look_up_ms"),
        "wrapper_us": _median(waits["compiled"], "later_us"),
    }


def measure_start(bundle: str, folder: str, counts: dict[str, int]) -> dict[str, Any]:
    """Seconds from the end of ``import torch`` to FlashAttention-4's first result, one process at a time."""
    modes = {"library": ("start library", counts["compiled"]), "bundle": ("start bundle", counts["served"])}
    found = {}
    for who, (mode, count) in modes.items():
        runs = [_Child(mode, "fa4", bundle, folder).result() for _ in range(count)]
        found[who] = {step: _median(runs, step) for step in runs[0]}
    return found


def _median(runs: list[Any], name: str) -> float:
    return round(statistics.median(run[name] for run in runs), 4)


def _started(bundles: dict[str, str], folder: str, modes: list[str]) -> list[_Child]:
    return [_Child(mode, library, bundle, folder) for library, bundle in bundles.items() for mode in modes]


def _wait_for(children: list[_Child]) -> None:
    for child in children:
        child.until_ready()


class _Child:
    """A process that imports, says that it is ready, and measures when it is told to."""

    def __init__(self, mode: str, library: str, bundle: str, folder: str) -> None:
        self.mode, self.library = mode, library
        command = [sys.executable, str(CHILD), mode, library, bundle, folder]
        environment = {**os.environ, **NO_DISK_CACHES}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def until_ready(self) -> None:
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()) != "ready\n":
            if not line:
                self._process.wait()
                sys.exit(f"the process that measures {self.mode} failed")

    def result(self) -> Any:
        output, _ = self._process.communicate("go\n")
        if self._process.returncode != 0:
            sys.exit(f"the process that measures {self.mode} failed")
        return json.loads(output.splitlines()[-1])


def show(results: dict[str, Any]) -> None:
    columns = ("operation", "compiled ms", "served ms", "times", "look-up ms", "later, served us more", "wrapper us")
    rows = []
    for library in ("quack", "fa4"):
        for name, found in results[library]["operations"].items():
            compiled, served = found["first result, compiled_ms"], found["first result, served_ms"]
            more = found["later, served_us"] - found["later, compiled_us"]
            wrapper = f"{found['wrapper_us']:.1f}, bundle {found['bundle alone_us']:.1f}"
            cells = (f"{compiled:.1f}", f"{served:.2f}", f"{compiled / served:.0f}", f"{found['look-up_ms']:.2f}")
            rows.append((f"{library} {name}", *cells, f"{more:+.2f}", wrapper))
    print_rows(columns, rows)
    print(json.dumps(results["start_s"]))


if __name__ == "__main__":
    main()
