"""Builds killed at random moments: the bundle stays whole, and the next build continues from what was compiled.

Each round starts a build of another kernel than the bundle holds, ends its whole process group with SIGKILL after
a random time of up to a build's length, and looks: the bundle must verify and be the old one or the new one; the
next build must succeed, take from the cache every variant that the killed one had reported, compile only the
others, and leave nothing of the killed one behind. Every sixth round has a kernel that was never built, so that
all is compiled; the others switch between two kernels that are in the cache, so that what is killed is mostly
linking, verifying and publishing. The CUDA runtime is linked shared, without archives, to have small bundles.
The result is written after every round, and so says how far it came.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from _common import PROJECT, parser, report

from aot.bundle.verifying.verify import verify
from aot.files import sha256_of

sys.path.insert(0, str(PROJECT / "tests"))
from written import FILL

VARIANTS = 3
SOURCES = ("new", "first", "second", "first", "second", "first")  # never the same twice in a row
COMPILED = re.compile(r"\[\d+/\d+\] sm_90a (fill__\w+): [\d.]+ s")
STAGES = {
    "reading declarations": "reading declarations",
    "compiling": "] sm_90a fill__",
    "linking": "linking for",
    "verifying or publishing": "verifying",
}


class Project:
    """A kernel file, a bundle and a cache, built through the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out" / "bundle"
        (folder / "tmp").mkdir()

    def write(self, name: str, value: int) -> None:
        text = FILL.replace("VALUE", str(value)).replace("VARIANTS", str(VARIANTS))
        (self.folder / name).mkdir(exist_ok=True)
        (self.folder / name / "fill.py").write_text(text)

    def start(self, name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "aot", "build", "--source", f"{name}/fill.py", "--name", "bundle"]
        command += ["--arch", "sm90", "--cudart", "shared", "--no-archives", "--jobs", "1"]
        command += ["--out", str(self.out), "--cache", str(self.folder / "cache")]
        return subprocess.Popen(
            command, cwd=self.folder, env={**os.environ, "TMPDIR": str(self.folder / "tmp")}, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def build(self, name: str) -> tuple[str, float]:
        started = time.perf_counter()
        process = self.start(name)
        _, said = process.communicate()
        assert process.returncode == 0, said
        return said, time.perf_counter() - started

    def digest(self) -> str:
        return sha256_of(self.out / "manifest.json")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--kills", type=int, default=1000)
    arguments.add_argument("--seed", type=int, default=2026)
    options = arguments.parse_args()
    chance = random.Random(options.seed)
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="kill-") as scratch:
        project = Project(Path(scratch))
        lengths = {}
        for value, name in enumerate(dict.fromkeys(SOURCES)):
            project.write(name, -value)
            project.build(name)  # the first fills the caches of the tools
            project.write(name, 1 + value)
            lengths[name] = project.build(name)[1]
        for number in range(1, options.kills + 1):
            name = SOURCES[number % len(SOURCES)]
            if name == "new":
                project.write(name, len(SOURCES) + number)
            seconds, compiled = _round(project, name, chance.uniform(0, lengths[name]), seen)
            if name != "new" or compiled == VARIANTS:  # a build that had all to do: the next kill goes by its length
                lengths[name] = seconds
            report("kill", {"kills": number, "seed": options.seed, "seen": dict(seen)}, options.out, quiet=True)
    print(f"{options.kills} kills: {dict(seen)}")


def _round(project: Project, name: str, moment: float, seen: Counter[str]) -> tuple[float, int]:
    """One kill and the next build: how long that build took, and how many variants it compiled."""
    old = project.digest()
    process = project.start(name)
    time.sleep(moment)
    os.killpg(process.pid, signal.SIGKILL)
    _, said = process.communicate()
    seen[_moment(said, process.returncode)] += 1
    check(project)
    seen["the bundle was the old one" if project.digest() == old else "the bundle was the new one"] += 1
    done = set(COMPILED.findall(said))
    seen["variants done when killed"] += len(done)

    again, seconds = project.build(name)
    made = set(COMPILED.findall(again))
    assert not made & done, (made, done)
    seen["variants compiled by the next build"] += len(made)
    check(project)
    assert project.digest() != old
    assert [path.name for path in project.out.parent.iterdir()] == ["bundle"]
    assert not list((project.folder / "tmp").glob("aot-*"))
    return seconds, len(made)


def check(project: Project) -> None:
    problems = verify(project.out)
    assert problems == [], problems


def _moment(said: str, code: int) -> str:
    """How far the build had come, by the last line that it printed."""
    if code == 0:
        return "killed too late"
    reached = [stage for stage, words in STAGES.items() if words in said]
    return f"killed while {reached[-1] if reached else 'starting'}"


main()
