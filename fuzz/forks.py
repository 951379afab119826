"""Forks while threads make their first calls: ``python -m fuzz.forks --forks 100000 --jobs 6 --out FILE``.

A child that ends with a signal or an error, or that does not end, is a finding. `fuzz/forking.py` is what the
processes run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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
PART = 1200  # forks of each process until the figures are written
NAME = "first calls"
_HERE = Path(__file__).parent


def forks(
    bundle: Path, standin: Path, folder: Path, count: int, jobs: int = 1, seconds: float = 1e9, first: int = 0
) -> dict[str, Any]:
    """So many forks, or as many as there is time for; ``findings`` are the children that did not end well.

    ``first`` is how many were made before: other forks give other rounds.
    """
    copies = [shutil.copytree(bundle, folder / f"copy-{number}") for number in range(COPIES)]
    crash = folder / "crash.so"
    subprocess.run([*compiler(), "-shared", "-fPIC", str(_HERE / "crash.c"), "-o", str(crash)], check=True)
    paths = os.pathsep.join(str(PROJECT / name) for name in ("tests", "runtime", "."))
    environment = {**os.environ, "PYTHONPATH": paths, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}
    running = []
    for job in range(jobs):
        said = (folder / f"said-{job}").open("w+")
        command = [sys.executable, "-W", "ignore", str(_HERE / "forking.py"), str(standin), str(crash)]
        command += [str(job * 10**9 + first * 1000), str(-(-count // jobs)), str(seconds), *map(str, copies)]
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


def in_parts(bundle: Path, standin: Path, folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """What there is after each part: a run that is ended leaves what it has done."""
    until = time.monotonic() + options.seconds
    nothing: dict[str, Any] = {"cases": 0, "found": 0, "findings": []}
    total = _earlier(options.out) if options.resume and options.out.exists() else nothing
    yield NAME, total
    while total["cases"] < options.forks and time.monotonic() < until:
        count = min(PART * options.jobs, options.forks - total["cases"])
        with tempfile.TemporaryDirectory(dir=folder) as part:
            left = until - time.monotonic()
            made = forks(bundle, standin, Path(part), count, options.jobs, left, total["cases"])
        total = {name: total[name] + made[name] for name in total}
        yield NAME, total


def _earlier(out: Path) -> dict[str, Any]:
    return dict(json.loads(out.read_text())["results"]["targets"][NAME])


def main() -> int:
    arguments = parser("fuzz.forks", __doc__)
    add = arguments.add_argument
    add("--forks", type=int, default=10_000)
    add("--jobs", type=int, default=1, metavar="N", help="processes that fork at the same time")
    add("--seconds", type=float, default=1e9, help="begin no round after this time")
    add("--resume", action="store_true", help="go on from what the file of --out has")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="aot-forks-") as scratch:
        folder = Path(scratch)
        bundle = make_samples(folder, find_places(None, os.environ).tools, KERNELS)
        standin = build_standin(folder / "standin")
        return run_all("forks", in_parts(bundle, standin, folder, options), options.out)


if __name__ == "__main__":
    sys.exit(main())
