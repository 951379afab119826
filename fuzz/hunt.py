"""All fuzzers in turn until one finds something, or until the time is up: ``python -m fuzz.hunt --seconds 60``.

Time is that of the CPU, so that a busy machine finds as much. Rounds begin short and become longer: what many cases
would find is often found by few. The exit code is 1 if something was found.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from . import dispatch, overlap, worlds
from .__main__ import _targets
from .command import corpus_and_folder, corpus_parser
from .corpus import Corpus
from .engine import Finding, Target, run_case

__all__ = ["hunt"]

FIRST_SLICE = 1.0  # seconds of each target in the first round; each round has three times as many
PER_SECOND = {"worlds": 10_000, "overlap": 50_000, "dispatch": 10_000}  # cases of the programs in C

_Run = Callable[[int, float], Finding | None]


def hunt(corpus: Corpus, folder: Path, seed: int, seconds: float) -> Finding | None:
    """What was found first."""
    until = _cpu() + seconds
    runs = list(_runs(corpus, folder))
    for number in itertools.count():
        for name, run in runs:
            found = run(seed + number, FIRST_SLICE * 3**number)
            if found is not None:
                return Finding(found.case, f"{name}: {found.kind}", found.message, found.trace)
            if _cpu() > until:
                return None
    raise AssertionError("rounds have no end")


def _cpu() -> float:
    """Of this process, and of those it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _runs(corpus: Corpus, folder: Path) -> Iterator[tuple[str, _Run]]:
    targets = _targets(corpus, folder)
    yield from ((target.name, _slices(target)) for target in targets if target.name not in _SLOW)
    yield from _programs(corpus, folder)
    yield from ((target.name, _slices(target)) for target in targets if target.name in _SLOW)


_SLOW = ("bundles", "kept books", "launchers", "libraries", "stored entries")


def _slices(target: Target) -> _Run:
    def run(seed: int, seconds: float) -> Finding | None:
        until = _cpu() + seconds
        for number in itertools.count():
            found = run_case(target, seed, number, Counter())
            if found is not None or _cpu() > until:
                return found
        return None

    return run


def _programs(corpus: Corpus, folder: Path) -> Iterator[tuple[str, _Run]]:
    """In C. Each is compiled when it is first needed."""

    def cases(name: str, seconds: float) -> int:
        return round(PER_SECOND[name] * seconds)

    def in_worlds(seed: int, seconds: float) -> Finding | None:
        if not (folder / "worlds").exists():
            worlds.compile_program(folder, corpus.standin)
        return _first(worlds.run(folder / "worlds", seed, cases("worlds", seconds), leaks=False).findings)

    def overlapping(seed: int, seconds: float) -> Finding | None:
        if not (folder / "overlap").exists():
            overlap.compile_program(folder)
        return _first(overlap.run(folder / "overlap", seed, cases("overlap", seconds)).findings)

    compiled: list[dispatch.Program] = []

    def dispatched(seed: int, seconds: float) -> Finding | None:
        if not compiled:
            compiled.append(dispatch.compile_program(corpus.bundle.with_name("samples"), corpus.standin, folder))
        return _first(dispatch.run(compiled[0], seed, cases("dispatch", seconds), leaks=False).findings)

    yield from (("worlds", in_worlds), ("overlap", overlapping), ("dispatch", dispatched))


def _first(findings: list[Finding]) -> Finding | None:
    return findings[0] if findings else None


def main() -> int:
    arguments = corpus_parser("fuzz.hunt", __doc__)
    arguments.add_argument("--seconds", type=float, default=60)
    options = arguments.parse_args()
    with corpus_and_folder(options.corpus) as (corpus, folder):
        try:
            found = hunt(corpus, folder, options.seed, options.seconds)
        except AssertionError as error:  # what must hold before the first case
            found = Finding(0, "unaltered input", str(error), "")
    print(
        "nothing was found" if found is None else f"case {found.case}: {found.kind}: {found.message[:300]}", flush=True
    )
    return 0 if found is None else 1


if __name__ == "__main__":
    sys.exit(main())
