"""How long the shipped kernels take to build for sm_90a from an empty cache, zig's own included.

Each ``--family`` is a build of its own, as ``aot build --family`` takes it; ``core`` stands for the core families. Numbers
are only valid on an idle machine; the output includes the load.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import PROJECT, parser, print_rows, report


def build(family: str) -> dict[str, Any]:
    """One build: what it compiled, its seconds by phase, and the CPU's of all its processes."""
    with tempfile.TemporaryDirectory() as folder:
        place = ["--cache", f"{folder}/cache", "--out", f"{folder}/bundle"]
        chosen = [] if family == "core" else ["--family", family]
        command = [sys.executable, "-m", "aot", "build", "--arch", "sm90", *place, *chosen, "--json", "--quiet"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = json.loads(subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True).stdout)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        details = json.loads(Path(folder, "bundle", "details", "sm_90a.json").read_text())["variants"]
    return {
        "seconds": done["seconds"],
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "variants": len(details),
        "compiled": len({(variant["kernel"], variant["symbol"]) for variant in details}),  # the others share their code
        "kernels": done["kernels"],
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--family", action="append", help="a family, a comma list, `all` or `core`; repeatable")
    options = arguments.parse_args()
    load = os.getloadavg()[0]
    builds = {family: build(family) for family in options.family or ["core"]}
    rows = [(name, one["variants"], one["compiled"], one["seconds"]["total"]) for name, one in builds.items()]
    print_rows(("families", "variants", "compiled", "seconds"), rows)
    cores = len(os.sched_getaffinity(0))
    report("cold_build", {"cores": cores, "load_average_before": load, "builds": builds}, options.out)


main()
