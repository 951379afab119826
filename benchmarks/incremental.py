"""A build of many variants: the first, with nothing changed, and with one kernel changed.

Each build is a separate process, as a user runs it. Times include the start of the interpreter.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import PROJECT, parser, print_rows, report


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--kernels", type=int, default=20)
    arguments.add_argument("--variants", type=int, default=50, help="of each kernel")
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--folder", type=Path, help="keep kernels, cache and bundle here, or find them there")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = measure(options.folder or Path(scratch), options.kernels, options.variants, options.jobs)
    rows = [(name, *values.values()) for name, values in results.items()]
    print_rows(("build", "seconds", "CPU seconds", "compiled"), rows)
    sizes = {"kernels": options.kernels, "variants": options.variants, "load_average": os.getloadavg()[0]}
    report("incremental", {**sizes, "builds": results}, options.out)


def measure(scratch: Path, kernels: int, variants: int, jobs: int) -> dict[str, dict[str, float]]:
    source = write_kernels(scratch / "kernels", kernels)
    run = lambda *extra: build(scratch, source, variants, jobs, *extra)  # noqa: E731
    results = {"at first": run()}
    unchanged = [run() for _ in range(9)]
    assert not any(one["compiled"] for one in unchanged)
    results["nothing changed"] = {key: statistics.median(one[key] for one in unchanged) for key in unchanged[0]}
    shutil.rmtree(scratch / "out")
    results["bundle gone"] = run()
    path = source / "copy0.py"
    number = time.time_ns() % 1_000_000_000  # a value that was never built before
    path.write_text(re.sub(r"out\[index\] = .*", f"out[index] = x[index] + x.element_type({number})", path.read_text()))
    results["one kernel changed"] = run()
    return results


def write_kernels(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = (PROJECT / "benchmarks" / "kernels" / "many.py").read_text()
    for number in range(count):  # one file per kernel, so that one can change alone
        own = text.replace('f"copy{i}"', f'"copy{number}"').replace("range(KERNELS)", "range(1)")
        (folder / f"copy{number}.py").write_text(own)
    return folder


def build(scratch: Path, source: Path, variants: int, jobs: int, *extra: str) -> dict[str, float]:
    command = [sys.executable, "-m", "aot", "build", "--source", str(source), "--name", "many", "--arch", "sm90"]
    command += ["--out", str(scratch / "out"), "--cache", str(scratch / "cache"), "--jobs", str(jobs), *extra]
    environment = {**os.environ, "AOT_BENCHMARK_VARIANTS": str(variants)}
    started, before = time.perf_counter(), _cpu_seconds()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds, taken = time.perf_counter() - started, _cpu_seconds() - before
    if done.returncode != 0:
        sys.exit(done.stderr)
    compiled = len(re.findall(r" s  \[\d+/\d+\] ", done.stderr))
    return {"seconds": round(seconds, 2), "cpu_seconds": round(taken, 2), "compiled": compiled}


def _cpu_seconds() -> float:
    """CPU seconds of ended processes. On a busy machine they say more than wall-clock time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
