"""Running cases: each has a seed of its own, a limit of CPU time, and one of three outcomes."""

from __future__ import annotations

import random
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ACCEPTED", "REFUSED", "Finding", "Outcome", "Target", "Undetected", "attempt", "run_case", "run_target"]

ACCEPTED, REFUSED = "accepted", "refused"
CPU_SECONDS = 20.0  # of one case; the slowest take some tenths of a second
MOST_FINDINGS = 20  # kept of one target; the rest are counted


class Undetected(Exception):
    """A case passed that should have been refused, or did what it must not do."""


class Hang(Exception):
    """A case did not come to an end."""


@dataclass(frozen=True)
class Target:
    """Something that reads untrusted input. ``case`` runs one input and says what became of it."""

    name: str
    share: float  # of all cases: a cheap reader gets more
    case: Callable[[random.Random], str]
    close: Callable[[], None] = lambda: None  # ends processes that the cases have started


@dataclass(frozen=True)
class Finding:
    case: int
    kind: str  # the type of what was raised
    message: str
    trace: str

    def data(self) -> dict[str, Any]:
        return {"case": self.case, "kind": self.kind, "message": self.message, "trace": self.trace}


@dataclass
class Outcome:
    """What became of the cases of one target."""

    seen: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def note(self, finding: Finding | None) -> None:
        if finding is not None and len(self.findings) < MOST_FINDINGS:
            self.findings.append(finding)

    def data(self) -> dict[str, Any]:
        return {
            "cases": sum(self.seen.values()),
            **dict(sorted(self.seen.items())),
            "findings": [finding.data() for finding in self.findings],
        }


def run_target(target: Target, seed: int, cases: range) -> Outcome:
    outcome = Outcome()
    try:
        for number in cases:
            outcome.note(run_case(target, seed, number, outcome.seen))
    finally:
        target.close()
    return outcome


def run_case(target: Target, seed: int, number: int, seen: Counter[str]) -> Finding | None:
    """One case; the same seed and number give the same case, whatever ran before it."""
    return attempt(lambda: target.case(random.Random(f"{seed} {target.name} {number}")), number, seen)


def attempt(case: Callable[[], str], number: int, seen: Counter[str]) -> Finding | None:
    """Run one case within its limit of CPU time, and count what it says became of it."""
    try:
        with _limited(CPU_SECONDS):
            seen[case()] += 1
    except Exception as error:  # whatever a case raises that its target did not expect is a finding
        seen["found"] += 1
        trace = "".join(traceback.format_exception(error)[-4:])
        return Finding(number, type(error).__name__, str(error)[:400], trace[-2000:])
    return None


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang(f"no end within {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
