"""The mutation check of the runtime, the loader, selection and bundles: each mutation against the tests of its file.

``tests.json`` beside this file names the tests for a file, by the longest beginning of its path. A mutation that they do
not notice survives.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .keeping import FEW, SOURCES
from .report import why_it_survives
from .sites import Mutation, draw
from .trees import PROJECT, Stillborn, Tree, environment

__all__ = ["AREAS", "Check", "Result", "is_prepared", "named_tests", "prepare"]

AREAS: dict[str, tuple[int, tuple[str, ...]]] = {
    "runtime/src": (70, ("runtime/src/*.c", "runtime/src/*.h", "runtime/src/torch/*.c")),
    "runtime/include": (30, ("runtime/include/aot/**/*.h", "runtime/include/aot/*.hpp")),
    "loader": (50, ("runtime/aot_runtime/**/*.py",)),
    "selection": (25, ("aot/selection/*.py",)),
    "bundle": (25, ("aot/bundle/*.py",)),
}
SPARE = 3  # times as many are drawn: some do not compile
LIMIT = 400.0  # seconds for the tests of one mutation, on a busy machine; one that hangs is noticed
_TESTS = json.loads(Path(__file__).with_name("tests.json").read_text())
_PYTEST = ("-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header")


def named_tests(path: str) -> list[str]:
    longest = max((start for start in _TESTS if path.startswith(start)), key=len)
    return list(_TESTS[longest])


def prepare(folder: Path, jobs: int, paths: set[str], *, few: bool = False) -> None:
    """Run the tests on the unaltered code. What they build is used for all mutations.

    A test that fails already, as one that needs what this machine lacks, would notice every mutation. It is left out.
    With ``few``, only what they share is made: for a machine on which they are known to pass.
    """
    files = sorted({test.partition("::")[0] for path in paths for test in named_tests(path)})
    variables = {
        "AOT_TESTS_RUN": str(folder / "shared"),
        SOURCES: str(folder / "sources"),
        "PYTEST_PLUGINS": "tools.mutants.keeping",  # in processes with frameworks too
        **({FEW: "1"} if few else {}),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider"]
    command += ["-n", str(jobs), "--dist", "loadfile", *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, env=environment(PROJECT, **variables))
    failing = [_failed(line) for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    print("\n".join(done.stdout.splitlines()[-5 - len(failing) :]), done.stderr[-2000:], file=sys.stderr, flush=True)
    (folder / "failing.json").write_text(json.dumps(failing))


def is_prepared(folder: Path) -> bool:
    """Whether a run came to its end there. One that was ended before is gone on with."""
    return (folder / "failing.json").exists()


@dataclass(frozen=True)
class Result:
    mutation: Mutation
    area: str
    killed: bool
    how: str  # the test that failed, or why it counts as noticed
    seconds: float
    stillborn: bool = False  # no compiler accepts it, or sees it on this machine: it does not count
    host: str = platform.machine()  # a record may be gone on with on another machine

    def data(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("area", "killed", "how", "seconds", "stillborn", "host")}
        return {**self.mutation.data(), **facts}


class Check:
    """The mutations of one seed, shared out among copies of the project.

    ``known`` has lines of an earlier run by the mutations' ids. What was noticed then is not tried again.
    """

    def __init__(
        self,
        folder: Path,
        prepared: Path,
        jobs: int,
        seconds: float = 1e9,
        known: dict[str, dict[str, Any]] | None = None,
        limit: float = LIMIT,
    ) -> None:
        self.prepared, self.known, self.limit = prepared, known or {}, limit
        failing = json.loads((prepared / "failing.json").read_text())
        self.left_out = [word for test in failing for word in ("--deselect", test)]
        self.until = time.monotonic() + seconds
        self.trees: queue.Queue[Tree] = queue.Queue()
        self.jobs = jobs
        for number in range(jobs):
            self.trees.put(Tree.make(folder / f"tree-{number}", prepared))

    def run(self, seed: int, areas: dict[str, tuple[int, tuple[str, ...]]]) -> Iterator[Result]:
        """In the order in which they end. What there is no time for is left out."""
        with ThreadPoolExecutor(self.jobs) as pool:
            tasks = []
            for area, (count, patterns) in areas.items():
                spare = {area: (count * SPARE, patterns)}
                drawn = _Shared(iter(draw(PROJECT, spare, seed)))
                tasks.append([(area, drawn)] * count)
            interleaved = itertools.chain.from_iterable(itertools.zip_longest(*tasks))
            futures = [pool.submit(self._until_born, *task) for task in interleaved if task is not None]
            for future in as_completed(futures):
                yield from future.result()

    def _until_born(self, area: str, drawn: _Shared) -> list[Result]:
        """Of the next mutation that compiles, and of those before it."""
        results: list[Result] = []
        tree = self.trees.get()
        try:
            while True:
                mutation = drawn.next()
                result = self._earlier(area, mutation)
                if result is None and time.monotonic() < self.until:
                    result = self._tested(tree, area, mutation)
                results += [] if result is None else [result]
                if result is None or not result.stillborn:
                    return results
        finally:
            self.trees.put(tree)

    def _earlier(self, area: str, mutation: Mutation) -> Result | None:
        """A survivor is tried again, as long as there is time: tests may have come since. One with a reason is not.

        What another machine's compiler refused or did not see is tried again, too.
        """
        line = self.known.get(mutation.id)
        if line is None:
            return None
        host = line.get("host", "unknown")
        unknown = (
            host != platform.machine() if line["stillborn"] else not line["killed"] and not why_it_survives(mutation)
        )
        if unknown and time.monotonic() < self.until:
            return None
        return Result(mutation, area, line["killed"], line["how"], line["seconds"], line["stillborn"], host)

    def _tested(self, tree: Tree, area: str, mutation: Mutation) -> Result:
        started = time.monotonic()
        try:
            with tree.mutated(mutation), tree.fresh_run(mutation, self.prepared / "sources") as run:
                command = [sys.executable, *_PYTEST, *self.left_out, *named_tests(mutation.path)]
                status, said = _ended(command, tree.root, environment(tree.root, AOT_TESTS_RUN=str(run)), self.limit)
        except Stillborn as error:
            return Result(mutation, area, False, str(error)[-200:], 0.0, stillborn=True)
        if not mutation.path.endswith(".py") and _is_stillborn(said):
            return Result(mutation, area, False, "", 0.0, stillborn=True)
        return Result(mutation, area, status != 0, _how(status, said), round(time.monotonic() - started, 1))


def _ended(command: list[str], folder: Path, variables: dict[str, str], limit: float) -> tuple[int | None, str]:
    """How a command ended and what it said. One that takes too long is ended, with what it has started."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, cwd=folder, env=variables, start_new_session=True, **pipes) as process:
        try:
            said = process.communicate(timeout=limit)[0]
            return process.returncode, said
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]


class _Shared:
    """An iterator that several threads take from."""

    def __init__(self, items: Iterator[Mutation]) -> None:
        self.items, self.lock = items, threading.Lock()

    def next(self) -> Mutation:
        with self.lock:
            return next(self.items)


def _is_stillborn(said: str) -> bool:
    """Whether a compiler refused it, in a test that compiles."""
    return any(
        " error: " in line and any(f"{end}:" in line for end in (".c", ".h", ".hpp")) for line in said.splitlines()
    )


def _how(status: int | None, said: str) -> str:
    if status == 0:
        return ""
    if status is None:
        return "the tests do not end"
    failed = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return _failed(failed[0]) if failed else f"pytest ended with {status}: {said[-200:]}"


def _failed(line: str) -> str:
    """The test that a line of pytest's summary names."""
    return line.split(" - ")[0].partition(" ")[2]
