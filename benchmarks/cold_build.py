"""How long the shipped kernels take to build for sm_90a from an empty cache, zig's own included.

Each ``--family`` is a build of its own, as ``aot build --family`` takes it; ``core`` stands for the core families. So is each
``--tilings``. Seconds
are only valid if nothing else runs: ``alone`` says whether the processes of the build had all the CPU time that was used
meanwhile of the cores that they may use, but for a tenth of a core. The seconds of CPU are the build's own in any case.
``taskset`` limits a build to some cores.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import PROJECT, parser, print_rows, report


def build(family: str, tilings: str) -> dict[str, Any]:
    """One build: what it compiled, its seconds by phase, and the CPU's of all its processes."""
    with tempfile.TemporaryDirectory() as folder:
        place = ["--cache", f"{folder}/cache", "--out", f"{folder}/bundle"]
        chosen = ["--tilings", tilings, *([] if family == "core" else ["--family", family])]
        command = [sys.executable, "-m", "aot", "build", "--arch", "sm90", *place, *chosen, "--json", "--quiet"]
        began, busy = time.monotonic(), _busy()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = json.loads(subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True).stdout)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        others = (_busy() - busy - own) / (time.monotonic() - began)
        size = sum(path.stat().st_size for path in Path(folder, "bundle", "lib").rglob("*.so"))
        details = json.loads(Path(folder, "bundle", "details", "sm_90a.json").read_text())["variants"]
    return {
        "seconds": done["seconds"],
        "cpu_seconds": round(own, 1),
        "alone": others < 0.1,
        "cores_of_others": round(others, 2),
        "variants": len(details),
        "compiled": len({(variant["kernel"], variant["symbol"]) for variant in details}),  # the others share their code
        "megabytes": round(size / 1e6, 1),  # of the libraries, without archives
        "kernels": done["kernels"],
    }


def _busy() -> float:
    """The seconds that the cores have worked that this process may use."""
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    own = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    times = [list(map(int, counts)) for name, *counts in lines if name in own]
    idle, waiting, guest = 3, 4, 8  # fields; time of guests is counted before, too
    worked = sum(sum(one[:guest]) - one[idle] - one[waiting] for one in times)
    return worked / os.sysconf("SC_CLK_TCK")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--family", action="append", help="a family, a comma list, `all` or `core`; repeatable")
    arguments.add_argument("--tilings", action="append", choices=("core", "all"), help="repeatable (default: core)")
    options = arguments.parse_args()
    load = os.getloadavg()[0]
    builds = {
        family if tilings == "core" else f"{family}, all tilings": build(family, tilings)
        for family in options.family or ["core"]
        for tilings in options.tilings or ["core"]
    }
    rows = [(name, one["variants"], one["compiled"], one["seconds"]["total"]) for name, one in builds.items()]
    print_rows(("families", "variants", "compiled", "seconds"), rows)
    cores = len(os.sched_getaffinity(0))
    report("cold_build", {"cores": cores, "load_average_before": load, "builds": builds}, options.out)


main()
