"""What serving adds to the start of a process: 8 processes that start at once, with a bundle of 1,000 captured calls.

Needs CuTe DSL, but no GPU. The first run builds the bundle, which takes some minutes:

    python benchmarks/serve_start.py --bundle build/calls --out benchmarks/results/serve-start.json

Each process imports CuTe DSL and TVM-FFI, as it would anyway, and waits for the others. Then it serves the bundle, opens it,
and finds one of the calls. Memory is what is resident and of the process alone. Python has collected the garbage of these imports
before: it takes longer than all else, and would come at some allocation anyway.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import parser, print_rows, report

LIMITS = {"added, ms": 20.0, "added, MB": 5.0}
LIBRARY = """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream


@cute.kernel
def kernel(x: cute.Tensor, factor: cutlass.Constexpr[int]):
    x[cute.arch.thread_idx()[0]] *= factor


@cute.jit
def scale(x: cute.Tensor, factor: cutlass.Constexpr[int], stream):
    kernel(x, factor).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


def compile_scale(factor):
    x = make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),), assumed_align=16)
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(scale, x, factor, stream, options="--enable-tvm-ffi")
"""
EXERCISE = "from scales import compile_scale\n\nfor factor in range({calls}):\n    compile_scale(factor)\n"
# Prints what it added: milliseconds by the clock and of the processor, and megabytes.
CHILD = """
import gc, json, sys, time
import cutlass.cute, tvm_ffi
sys.path.insert(0, sys.argv[2])
import scales
def private():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty"))) / 1024
gc.collect()
before = private()
print("ready", flush=True)
begin = float(sys.stdin.readline())
while time.time() < begin:
    time.sleep(0.0005)
clock, processor = time.perf_counter(), time.process_time()
import aot_runtime
serving = aot_runtime.serve(sys.argv[1])
served = time.perf_counter()
scales.compile_scale(int(sys.argv[3]))
assert serving.hits == 1
done = time.perf_counter()
print(json.dumps({
    "serve, ms": (served - clock) * 1e3, "open and first look-up, ms": (done - served) * 1e3,
    "added, ms": (done - clock) * 1e3, "added, ms of the processor": (time.process_time() - processor) * 1e3,
    "added, MB": private() - before,
}))
"""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--bundle", type=Path, required=True, help="where the bundle is, or goes")
    arguments.add_argument("--calls", type=int, default=1000, help="captured calls (default: 1000)")
    arguments.add_argument("--processes", type=int, default=8, help="that start at once (default: 8)")
    arguments.add_argument("--rounds", type=int, default=5, help="how often they start (default: 5)")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compile workers")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "scales.py").write_text(LIBRARY)
        if not (options.bundle / "manifest.json").is_file():
            _build(Path(folder), options.bundle, options.calls, options.jobs)
        _round(folder, options, 1)  # it writes bytecode
        found = [one for _ in range(options.rounds) for one in _round(folder, options, options.processes)]
    results = {
        name: [statistics.median(one[name] for one in found), max(one[name] for one in found)] for name in found[0]
    }
    facts = {"calls": options.calls, "processes": options.processes, "cores": os.cpu_count(), "limits": LIMITS}
    report("serve_start", {**facts, "median and largest": results}, options.out, quiet=True)
    print_rows(
        ("", "median", "largest"), [(name, *(f"{value:.2f}" for value in both)) for name, both in results.items()]
    )


def _build(folder: Path, bundle: Path, calls: int, jobs: int) -> None:
    exercise = folder / "exercise.py"
    exercise.write_text(EXERCISE.format(calls=calls))
    options = ["--arch", "sm90", "--name", "scales", "--no-archives", "--jobs", str(jobs), "-q", "--out", str(bundle)]
    command = [sys.executable, "-m", "aot", "capture", str(exercise), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _round(folder: str, options: Any, processes: int) -> list[dict[str, float]]:
    """Start all processes, which begin at the same moment once all are ready."""
    command = [sys.executable, "-c", CHILD, str(options.bundle.resolve()), folder]
    environment = {**os.environ, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1", "CUTE_DSL_ARCH": "sm_90a"}
    # As if the library was installed.
    environment |= {
        "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    children = [subprocess.Popen([*command, str(number % options.calls)], **pipes) for number in range(processes)]
    for child in children:
        assert child.stdout is not None
        while child.stdout.readline() not in ("ready\n", ""):
            pass
    begin = f"{time.time() + 0.5}\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write(begin)
        child.stdin.flush()
    outputs = [child.communicate()[0] for child in children]
    return [json.loads(text.splitlines()[-1]) for text in outputs]


if __name__ == "__main__":
    main()
