"""The most memory that a build takes with all its processes, against the cap given with `--memory`.

Every process below the build is looked at every 20 ms: resident memory, in which what processes share counts for
each of them, so that the sum is more than was taken. Each build compiles and links all, without a cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time

from _common import PROJECT, parser, print_rows, report

from aot.worker.process import resident_bytes

KERNELS = {"shipped kernels": PROJECT / "kernels", "small copies": PROJECT / "benchmarks" / "kernels" / "many.py"}


def peak(command: list[str], environment: dict[str, str]) -> tuple[int, float]:
    """The most bytes that a command and all below it took at once, and its seconds."""
    started, most = time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        ended = threading.Event()
        threading.Thread(target=lambda: (process.wait(), ended.set()), daemon=True).start()
        while not ended.wait(0.02):
            most = max(most, resident_bytes(process.pid))
        said.seek(0)
        if process.returncode != 0:
            sys.exit(said.read())
    return most, time.perf_counter() - started


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--caps", nargs="+", default=["none", "3G", "2G", "1G"], help="values of `--memory`")
    arguments.add_argument("--jobs", type=int, default=4)
    options = arguments.parse_args()
    rows = []
    for kernels, source in KERNELS.items():
        for cap in options.caps:
            with tempfile.TemporaryDirectory() as scratch:
                command = [sys.executable, "-m", "aot", "build", "--kernels", str(source), "--name", "memory"]
                command += ["--arch", "sm90", "--cache", "none", "--out", f"{scratch}/out", "--jobs", str(options.jobs)]
                command += [] if cap == "none" else ["--memory", cap]
                most, seconds = peak(command, {**os.environ, "AOT_BENCHMARK_VARIANTS": "24"})
            allowed = None if cap == "none" else int(cap[:-1]) << 30
            row = {"kernels": kernels, "cap": cap, "peak_mb": most >> 20, "seconds": round(seconds, 1)}
            rows.append({**row, "held": None if allowed is None else most <= allowed})
            print_rows(("kernels", "cap", "peak MB", "seconds", "held"), [tuple(rows[-1].values())])
    report("memory", {"jobs": options.jobs, "builds": rows}, options.out)


main()
