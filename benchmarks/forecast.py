"""How well a build tells the time that is left, and whether it says at all times what it does.

Four builds, each read off the lines that it prints: the core families, and some of their kernels, from an empty cache,
with two of them in the cache, and for two architectures. After ten seconds, each time left is compared with what was left
when it was told.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from _common import PROJECT, parser, print_rows, report

_LINE = re.compile(r" *([\d.]+) s  (.*)")
_LEFT = re.compile(r"about (\d+) s left")
_EARLY = 10.0  # seconds; what is told before is not compared
_SHORT = 5.0  # seconds; a time that is wrong by less is right


def of(archs: str, *kernels: str) -> list[str]:
    return ["--arch", archs, *(word for kernel in kernels for word in ("--kernel", kernel))]


SOME = ("activation", "add", "rmsnorm", "softmax", "gemm_gated")
# What is built, and what was built before with the same cache.
BUILDS = {
    "core": ("the core families, empty cache", of("sm90"), None),
    "some": ("five kernels, empty cache", of("sm90", *SOME), None),
    "partly cached": ("five kernels, two of them in the cache", of("sm90", *SOME), of("sm90", "rmsnorm", "add")),
    "two architectures": ("three kernels for two architectures, empty cache", of("sm80,sm90", *SOME[:3]), None),
}


@dataclass(frozen=True)
class Line:
    """A line of progress: when it was printed, and the time left that it tells, if any."""

    at: float
    left: float | None

    def is_right(self, end: float) -> bool:
        actual, told = end - self.at, self.left or 0.0
        return actual / 2 <= told <= actual * 2 or abs(told - actual) < _SHORT


def read(text: str) -> list[Line]:
    """The lines that a build printed while it ran."""
    found = [match for line in text.splitlines() if (match := _LINE.match(line))]
    told = [_LEFT.search(match[2]) for match in found]
    return [Line(float(match[1]), float(left[1]) if left else None) for match, left in zip(found, told, strict=True)]


def build(folder: str, *arguments: str) -> dict[str, Any]:
    """One build: how long it took, and how its times left compare with that."""
    place = ["--cache", f"{folder}/cache", "--out", f"{folder}/bundle", "--replace"]
    command = [sys.executable, "-m", "aot", "build", "--json", *place, *arguments]
    done = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True)
    return judged(read(done.stderr), json.loads(done.stdout)["seconds"]["total"])


def judged(lines: list[Line], end: float) -> dict[str, Any]:
    told = [line for line in lines if line.left is not None and line.at >= _EARLY]
    wrong = [line for line in told if not line.is_right(end)]
    return {
        "seconds": end,
        "first_told_at": next((line.at for line in lines if line.left is not None), None),
        "told": len(told),
        "right": len(told) - len(wrong),
        "wrong": [{"at": line.at, "told": line.left, "left": round(end - line.at, 1)} for line in wrong],
        "longest_silence": round(max(two - one for one, two in pairwise([*(line.at for line in lines), end])), 1),
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--build", action="append", choices=BUILDS, help="only these; repeatable")
    options = arguments.parse_args()
    builds = {}
    for label, wanted, before in (BUILDS[name] for name in options.build or BUILDS):
        with tempfile.TemporaryDirectory() as folder:
            if before is not None:
                build(folder, *before)
            builds[label] = build(folder, *wanted)
    rows = [(name, one["seconds"], one["first_told_at"], one["told"], one["right"]) for name, one in builds.items()]
    print_rows(("build", "seconds", "first told at", "times told", "right within a factor of two"), rows)
    report("forecast", {"cores": len(os.sched_getaffinity(0)), "builds": builds}, options.out)


if __name__ == "__main__":
    main()
