"""The peak memory of a build with all its processes, relative to the limit given with `--memory`.

The resident memory of every process of the build is read every 20 ms. Shared memory counts once per process, so the sum
is larger than what was really used. Each build compiles and links everything, without a cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time

from _common import PROJECT, parser, print_rows, report

from aot.compile.process import resident_bytes

SMALL, LARGE = ("benchmarks/kernels/many.py", "*"), ("kernels", "rmsnorm")
BUILDS = ((*SMALL, "none"), (*SMALL, "2G"), (*SMALL, "1G"), (*LARGE, "2G"))  # kernels, which of them, `--memory`


def peak(command: list[str], environment: dict[str, str]) -> tuple[int, float]:
    """The peak memory in bytes of a command with all its child processes, and its seconds."""
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
    arguments.add_argument("--jobs", type=int, default=4)
    options = arguments.parse_args()
    rows = []
    for kernels, select, cap in BUILDS:
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "aot", "build", "--kernels", str(PROJECT / kernels), "--kernel", select]
            command += ["--name", "memory", "--arch", "sm90", "--cache", "none", "--out", f"{scratch}/out"]
            command += ["--jobs", str(options.jobs), *(["--memory", cap] if cap != "none" else [])]
            most, seconds = peak(command, {**os.environ, "AOT_BENCHMARK_VARIANTS": "24"})
        allowed = int(cap[:-1]) << 30 if cap != "none" else None
        row = {"kernels": f"{kernels} {select}", "cap": cap, "peak_mb": most >> 20, "seconds": round(seconds, 1)}
        rows.append({**row, "held": None if allowed is None else most <= allowed})
        print_rows(("kernels", "cap", "peak MB", "seconds", "held"), [tuple(rows[-1].values())])
    report("memory", {"jobs": options.jobs, "builds": rows}, options.out)


main()
