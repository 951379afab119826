"""A build of many variants: from nothing, with nothing changed, with one kernel changed, on one worker and on two.

Each build is a process of its own, interpreter start included, as a user runs it.
"""

from __future__ import annotations

import os
import re
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
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = measure(Path(scratch), options.kernels, options.variants, options.jobs)
    print_rows(("build", "seconds", "compiled"), [(name, *values.values()) for name, values in results.items()])
    report("incremental", {"kernels": options.kernels, "variants": options.variants, "builds": results}, options.out)


def measure(scratch: Path, kernels: int, variants: int, jobs: int) -> dict[str, dict[str, float]]:
    source = scratch / "kernels"
    source.mkdir()
    text = (PROJECT / "benchmarks" / "kernels" / "many.py").read_text()
    for number in range(kernels):  # a file each, so that one can change alone
        own = text.replace('f"copy{i}"', f'"copy{number}"').replace("range(KERNELS)", "range(1)")
        (source / f"copy{number}.py").write_text(own)
    run = lambda *extra: build(scratch, source, variants, jobs, *extra)  # noqa: E731
    results = {"from nothing": run()}
    unchanged = [run() for _ in range(5)]
    results["nothing changed"] = {"seconds": statistics.median(one["seconds"] for one in unchanged), "compiled": 0}
    shutil.rmtree(scratch / "out")
    results["bundle gone"] = run()
    path = source / "copy0.py"
    path.write_text(path.read_text().replace("out[index] = x[index]", "out[index] = x[index] + x[index]"))
    results["one kernel changed"] = run()
    return results


def build(scratch: Path, source: Path, variants: int, jobs: int, *extra: str) -> dict[str, float]:
    command = [sys.executable, "-m", "aot", "build", "--kernels", str(source), "--name", "many", "--arch", "sm90"]
    command += ["--out", str(scratch / "out"), "--cache", str(scratch / "cache"), "--jobs", str(jobs), *extra]
    environment = {**os.environ, "AOT_BENCHMARK_VARIANTS": str(variants)}
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        sys.exit(done.stderr)
    return {"seconds": round(seconds, 2), "compiled": len(re.findall(r"^ *\S+ s  \[\d+/", done.stderr, re.MULTILINE))}


main()
