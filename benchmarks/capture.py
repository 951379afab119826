"""Other libraries from bundles: the wait for a first result, look-ups, later calls, and the bundle without the library.

Needs a GPU, torch, CuTe DSL, quack and FlashAttention-4, and the bundles that `examples/capture` gives:

    python benchmarks/capture.py --quack dist/quack --fa4 dist/fa4 --out results.json

Every first result comes from a fresh process. All processes import what they need at the same time. Once the last one is
ready, they are measured one by one. Later calls are compared within one process, in turns: the library's host code is the
same, and calls either what CuTe DSL compiled or what the bundle served.
"""

from __future__ import annotations

import json
import os
import signal
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
COMPLETE = {"first result, compiled_ms", "first result, served_ms", "later, served_us", "bundle alone_us"}
NO_DISK_CACHES = {"QUACK_CACHE_ENABLED": "0", "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0"}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--quack", type=Path, required=True, help="the bundle of examples/capture/quack_kernels.py")
    arguments.add_argument("--fa4", type=Path, required=True, help="that of examples/capture/flash_attention_4.py")
    arguments.add_argument("--processes", type=int, default=3, help="fresh processes per figure of a bundle")
    arguments.add_argument("--compiles", type=int, default=3, help="fresh processes per figure of the library alone")
    options = arguments.parse_args()
    bundles = {"quack": str(options.quack.resolve()), "fa4": str(options.fa4.resolve())}
    counts = {"compiled": options.compiles, "served": options.processes}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # what was measured until then is written
    runs: Runs = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            measure(start(bundles, folder, counts), runs)
        finally:
            results = {"limits": LIMITS, "processes": counts, **summary(bundles, runs)}
            report("capture", results, options.out)
    show(results)


Runs = dict[tuple[str, str], list[dict[str, Any]]]  # what processes printed, by library and mode


def start(bundles: dict[str, str], folder: str, counts: dict[str, int]) -> list[_Child]:
    """All processes, in the order in which they are measured: some read what an earlier one has written.

    What ``library`` measures of FlashAttention-4 is also its first result compiled.
    """
    fa4 = "fa4", bundles["fa4"], folder
    served = [_Child("served", name, path, folder) for name, path in bundles.items() for _ in range(counts["served"])]
    later = [_Child(mode, name, path, folder) for mode in ("both", "alone") for name, path in bundles.items()]
    bundle = [_Child("bundle", *fa4) for _ in range(counts["served"])]
    compiled = [_Child("compiled", "quack", bundles["quack"], folder) for _ in range(counts["compiled"])]
    library = [_Child("library", *fa4) for _ in range(counts["compiled"])]
    return [*served, *later, *bundle, *compiled, *library]


def measure(children: list[_Child], runs: Runs) -> None:
    """Measure the processes one by one, when all are ready."""
    for child in children:
        child.wait_until_ready()
    for child in children:
        measured = child.measured()
        for mode in ("library", "compiled") if child.mode == "library" else (child.mode,):
            if measured is not None:
                runs.setdefault((child.library, mode), []).append(measured)


def summary(bundles: dict[str, str], runs: Runs) -> dict[str, Any]:
    """The figures of what has run, by library and operation."""
    found: dict[str, Any] = {}
    for library in bundles:
        served = runs.get((library, "served"), [])
        operations: dict[str, dict[str, Any]] = {}
        for mode in ("compiled", "served", "both", "alone"):
            for name in {name: None for run in runs.get((library, mode), []) for name in run["operations"]}:
                each = [run["operations"][name] for run in runs[library, mode] if name in run["operations"]]
                operations.setdefault(name, {}).update(_figures(mode, each))
        found[library] = {
            "hits and misses": [(run["hits"], run["misses"]) for run in served],
            "opening_ms": _median(served, "opening_ms") if served else None,
            "operations": operations,
        }
    starts = {mode: runs.get(("fa4", mode), []) for mode in ("library", "bundle")}
    found["start_s"] = {
        mode: {step: _median(each, step) for step in each[0] if step != "operations"}
        for mode, each in starts.items()
        if each
    }
    return found


def _figures(mode: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    failed = [run["failed"] for run in runs if "failed" in run]
    if failed:
        return {f"failed, {mode}": failed[0]}
    if mode in ("both", "alone"):
        return runs[0]
    first = {f"first result, {mode}_ms": _median(runs, "first_ms")}
    if mode == "compiled":
        public = {"public function_us": _median(runs, "public_us")} if "public_us" in runs[0] else {}
        return {**first, "wrapper_us": _median(runs, "later_us"), **public}
    look_ups = {"look-up_ms": _median(runs, "look_up_ms"), "look-ups_ms": [round(run["look_up_ms"], 4) for run in runs]}
    return {**first, **look_ups, "wrapper, served_us": _median(runs, "later_us")}


def _median(runs: list[Any], name: str) -> float:
    return round(statistics.median(run[name] for run in runs), 4)


class _Child:
    """A process that imports, says that it is ready, and measures when it is told to."""

    def __init__(self, mode: str, library: str, bundle: str, folder: str) -> None:
        self.mode, self.library = mode, library
        command = [sys.executable, str(CHILD), mode, library, bundle, folder]
        environment = {**os.environ, **NO_DISK_CACHES}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        while self._process.stdout.readline() not in ("ready\n", ""):
            pass

    def measured(self) -> Any:
        """What the process prints once it is told to measure; None if it fails, which its own output explains."""
        output, _ = self._process.communicate("go\n")
        if self._process.returncode != 0:
            print(f"the process that measures {self.mode} of {self.library} failed", file=sys.stderr)
            return None
        return json.loads(output.splitlines()[-1])


def show(results: dict[str, Any]) -> None:
    columns = ("operation", "compiled ms", "served ms", "times", "look-up ms", "later, served us more", "wrapper us")
    rows = []
    for library in ("quack", "fa4"):
        for name, found in results[library]["operations"].items():
            whole = found.keys() >= COMPLETE
            rows.append((f"{library} {name}", *(_cells(found) if whole else ["-"] * (len(columns) - 1))))
    print_rows(columns, rows)
    print(json.dumps(results["start_s"]))


def _cells(found: dict[str, Any]) -> list[str]:
    compiled, served = found["first result, compiled_ms"], found["first result, served_ms"]
    more = found["later, served_us"] - found["later, compiled_us"]
    wrapper = f"{found['wrapper_us']:.1f}, bundle {found['bundle alone_us']:.1f}"
    times = f"{compiled:.1f}", f"{served:.2f}", f"{compiled / served:.0f}", f"{found['look-up_ms']:.2f}"
    return [*times, f"{more:+.2f}", wrapper]


if __name__ == "__main__":
    main()
