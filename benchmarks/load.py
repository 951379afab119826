"""What a fresh process pays to load a bundle, and what a process pays that has loaded others before.

Fresh: `import aot_runtime` and the first `load`, beyond `import tvm_ffi`, with bytecode present. Without torch; with torch
installed, which `import tvm_ffi` then imports; with torch imported before. Python collects garbage after a number of
allocations, no matter who made them. If the imports before left an old generation to be collected, the first allocations here
collect it, which takes more than a millisecond after torch. Each figure includes that; `collecting_older` is its share.
`lists_instead` is the control: the same process makes 1,000 empty lists in the place of `import aot_runtime` and `load`.

Warm: `load`, the first use of a kernel and two calls, against the CUDA stand-in of the tests, in a process
that has imported everything. The first error: a call that no variant takes, in a process that has called the kernel before,
and in one that has not, where the error also opens the library of the kernel, as a first call does. A bundle of one kernel
with one variant, and one of 10,000 variants in 50 kernels. Each figure is the median over 20 processes of their own, by the
clock and in the processor's time: on a machine that others use too the two are far apart.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import many
from _common import PROJECT, parser, print_rows, report
from dispatch import build

PROCESSES = 20
LIMIT_MS = 4.0  # of import and first load together, on a Neoverse-N1
ERROR_LIMIT_MS = 1.0

# Each runs in a process of its own and prints milliseconds by the clock, then of the processor.
WATCHING = """
import gc, json, sys, time
if sys.argv[2] == "torch":
    import torch
import tvm_ffi
def now():
    return time.perf_counter(), time.process_time()
older = [0.0, 0.0]
def watch(phase, collection):
    if collection["generation"] > 0:
        for clock, time in enumerate(now()):
            older[clock] += time if phase == "stop" else -time
gc.callbacks.append(watch)
started = now()
"""
FRESH = f"""{WATCHING}
import aot_runtime
imported = now()
aot_runtime.load(sys.argv[1])
loaded = now()
steps = (started, imported), (imported, loaded), (started, loaded)
gc.callbacks.remove(watch)
times = [[*(b[clock] - a[clock] for a, b in steps), older[clock]] for clock in (0, 1)]
print(json.dumps([1e3 * time for clock in times for time in clock]))
"""
LISTS = f"""{WATCHING}
kept = [[] for _ in range(1000)]
ended = now()
gc.callbacks.remove(watch)
print(json.dumps([1e3 * time for clock in (0, 1) for time in (ended[clock] - started[clock], older[clock])]))
"""
IMPORTED = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import standin
cuda = standin.Standin.load(Path(sys.argv[3]))
cuda.reset(capabilities=[(9, 0)])
import tvm_ffi, aot_runtime
aot_runtime.load
tensor = cuda.tensor((64,), "float16")
def now():
    return time.perf_counter(), time.process_time()
"""
WARM = f"""{IMPORTED}
moments = [now()]
bundle = aot_runtime.load(sys.argv[1])
moments.append(now())
function = bundle.copy0
moments.append(now())
function(tensor, tensor)
moments.append(now())
function(tensor, tensor)
moments.append(now())
print(json.dumps([1e3 * (b[clock] - a[clock]) for clock in (0, 1) for a, b in zip(moments, moments[1:])]))
"""
FIRST_ERROR = f"""{IMPORTED}
function = aot_runtime.load(sys.argv[1]).copy0
wrong = cuda.tensor((64,), "int32")
if sys.argv[4] == "after a call":
    function(tensor, tensor)
started = now()
try:
    function(wrong, wrong)
except aot_runtime.ArgumentError:
    ended = now()
print(json.dumps([1e3 * (ended[clock] - started[clock]) for clock in (0, 1)]))
"""
FRESH_STEPS = ("import", "first_load", "import_and_first_load", "collecting_older")
WARM_STEPS = ("warm_load", "first_attribute", "first_call", "second_call")


def measure(python: str, code: str, steps: Sequence[str], *arguments: object) -> dict[str, float]:
    """Medians by step; the first process writes the bytecode and does not count."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [python, "-c", code, *map(str, arguments)]
    runs = [json.loads(subprocess.check_output(command, env=environment)) for _ in range(1 + PROCESSES)][1:]
    names = [*(f"{step}_ms" for step in steps), *(f"{step}_cpu_ms" for step in steps)]
    return {name: statistics.median(column) for name, column in zip(names, zip(*runs, strict=True), strict=True)}


def measure_bundle(bundle: Path, standin: Path, with_torch: str | None) -> dict[str, Any]:
    results: dict[str, Any] = {}
    if not _has_torch(sys.executable):
        results["without_torch"] = measure(sys.executable, FRESH, FRESH_STEPS, bundle, "")
    if with_torch is not None:
        results["with_torch"] = measure(with_torch, FRESH, FRESH_STEPS, bundle, "torch")
        results["torch_installed_not_imported"] = measure(with_torch, FRESH, FRESH_STEPS, bundle, "")
    imported = (bundle, PROJECT / "tests", standin)
    results["warm"] = measure(sys.executable, WARM, WARM_STEPS, *imported)
    results["first_error"] = {
        **measure(sys.executable, FIRST_ERROR, ("after_a_call",), *imported, "after a call"),
        **measure(sys.executable, FIRST_ERROR, ("opening_the_library",), *imported, "at once"),
    }
    sizes = {f"{name}_bytes": (bundle / f"{name}.json").stat().st_size for name in ("manifest", "kernels", "files")}
    return {**results, **sizes}


def _has_torch(python: str) -> bool:
    found = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([python, "-c", found]).returncode == 0


def rows_of(results: dict[str, dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (bundle, process, name, f"{value:.3f}")
        for bundle, found in results.items()
        for process in ("without_torch", "with_torch", "torch_installed_not_imported", "warm", "first_error")
        for name, value in found.get(process, {}).items()
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--bundles", type=Path, help="keep the bundles below this folder, or find them there")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments.add_argument("--small-only", action="store_true", help="leave the bundle of 10,000 variants out")
    arguments.add_argument("--torch-python", help="an interpreter with torch, if this one has none")
    options = arguments.parse_args()
    with_torch = options.torch_python or (sys.executable if _has_torch(sys.executable) else None)
    sys.path.insert(0, str(PROJECT / "tests"))
    import standin

    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.bundles or Path(scratch)
        built = standin.build(Path(scratch) / "standin")
        one = build(PROJECT / "benchmarks" / "kernels", folder / "one", "sm_90a", AOT_BENCHMARK_VARIANTS="1")
        results["1 kernel, 1 variant"] = measure_bundle(one, built, with_torch)
        if not options.small_only:
            bundle = many.build(folder, options.jobs)
            results["50 kernels, 10,000 variants"] = measure_bundle(bundle, built, with_torch)
    print_rows(("bundle", "process", "what", "ms"), rows_of(results))
    facts = {"processes": PROCESSES, "load_average": os.getloadavg()[0]}
    limits = {"limit_ms": LIMIT_MS, "error_limit_ms": ERROR_LIMIT_MS}
    if with_torch is not None:
        lists = measure(with_torch, LISTS, ("lists", "collecting_older"), "", "")
        facts["lists_instead"] = {"torch_installed_not_imported": lists}
    report("load", {**facts, **limits, **results}, options.out)


if __name__ == "__main__":
    main()
