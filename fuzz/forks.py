"""Forks while threads make their first calls: ``python -m fuzz.forks --forks 100000 --jobs 6 --out FILE``.

A child that ends with a signal or an error, or that does not end, is a finding. `fuzz/forking.py` is what the
processes run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from aot.cache.places import find_places

from .command import parser, run_all
from .corpus import PROJECT, make_samples
from .engine import Finding

# isort: split
from standin import build as build_standin  # the corpus has made it importable
from standin import compiler

__all__ = ["KERNELS", "forks"]

KERNELS = ("fill", "fill_pair", "fill_pointer", "fill_optional", "fill_epilogue", "fill_everywhere")
COPIES = 2  # of the bundle: the more libraries a round opens, the more forks meet one that is being opened
_HERE = Path(__file__).parent


def forks(bundle: Path, standin: Path, folder: Path, count: int, jobs: int = 1, seconds: float = 1e9) -> dict[str, Any]:
    """So many forks, or as many as there is time for; ``findings`` are the children that did not end well."""
    copies = [shutil.copytree(bundle, folder / f"copy-{number}") for number in range(COPIES)]
    crash = folder / "crash.so"
    subprocess.run([*compiler(), "-shared", "-fPIC", str(_HERE / "crash.c"), "-o", str(crash)], check=True)
    paths = os.pathsep.join(str(PROJECT / name) for name in ("tests", "runtime", "."))
    environment = {**os.environ, "PYTHONPATH": paths, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}
    running = []
    for job in range(jobs):
        said = (folder / f"said-{job}").open("w+")
        command = [sys.executable, "-W", "ignore", str(_HERE / "forking.py"), str(standin), str(crash)]
        command += [str(job * 10**9), str(-(-count // jobs)), str(seconds), *map(str, copies)]
        running.append(
            (subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment), said)
        )
    told = [_told(process, said) for process, said in running]
    findings = [finding for _, found in told for finding in found]
    done = sum(number for number, _ in told)
    return {"cases": done, "found": len(findings), "findings": [finding.data() for finding in findings[:20]]}


def _told(process: subprocess.Popen[str], said: Any) -> tuple[int, list[Finding]]:
    """How many forks a process made, and what became of those that went wrong; they share one stream of errors."""
    lines = [json.loads(line) for line in process.communicate()[0].splitlines()]
    with said:
        said.seek(0)
        trace = said.read()[-6000:]
    forked = sum(line.get("forks", 0) for line in lines)
    wrong = [line for line in lines if "forks" not in line]
    if process.returncode != 0:
        wrong.append({"kind": "the program ended", "status": process.returncode, "round": 0})
    return forked, [Finding(line["round"], line["kind"], json.dumps(line), trace) for line in wrong]


def main() -> int:
    arguments = parser("fuzz.forks", __doc__)
    arguments.add_argument("--forks", type=int, default=10_000)
    arguments.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that fork at the same time")
    arguments.add_argument("--seconds", type=float, default=1e9, help="begin no round after this time")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="aot-forks-") as scratch:
        folder = Path(scratch)
        bundle = make_samples(folder, find_places(None, os.environ).tools, KERNELS)
        standin = build_standin(folder / "standin")
        found = forks(bundle, standin, folder, options.forks, options.jobs, options.seconds)
        return run_all("forks", [("first calls", found)], options.out)


if __name__ == "__main__":
    sys.exit(main())
