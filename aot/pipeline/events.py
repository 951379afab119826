"""What a build reports while it runs: to nobody, or as lines on stderr. The command line draws a bar instead."""

from __future__ import annotations

import sys
import threading
import time

from ..compile.messages import Compiled
from ..errors import Failure, counted
from .executing.executor import CompileJob
from .executing.forecast import Forecast

__all__ = ["Clock", "CountingProgress", "LineProgress", "Progress", "TimedProgress"]


class Progress:
    """Told how a build goes; does nothing by itself."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None: ...

    def stage(self, text: str) -> None:
        """A phase begins."""

    def note(self, text: str) -> None:
        """Something that people may want to know; no phase ends with it."""

    def warn(self, text: str) -> None: ...

    def total(self, variants: int, forecast: Forecast | None = None) -> None:
        """The number of variants that are to be compiled, and who knows how long this may take."""

    def begins(self, job: CompileJob) -> None:
        """A worker of this machine compiles a variant from now on."""

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None: ...

    def linked(self, label: str, number: int, total: int) -> None:
        """A kernel library is there, linked now or before: ``number`` of ``total``."""


class CountingProgress(Progress):
    """Tells another one everything, and counts what was compiled."""

    def __init__(self, listener: Progress) -> None:
        self.listener, self.count = listener, 0

    def stage(self, text: str) -> None:
        self.listener.stage(text)

    def note(self, text: str) -> None:
        self.listener.note(text)

    def warn(self, text: str) -> None:
        self.listener.warn(text)

    def total(self, variants: int, forecast: Forecast | None = None) -> None:
        self.listener.total(variants, forecast)

    def begins(self, job: CompileJob) -> None:
        self.listener.begins(job)

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None:
        self.count += isinstance(outcome, Compiled)
        self.listener.compiled(job, outcome)

    def linked(self, label: str, number: int, total: int) -> None:
        self.listener.linked(label, number, total)


class Clock:
    """How long each phase took."""

    def __init__(self) -> None:
        self.started = self.since = time.monotonic()
        self.phase = ""  # the one that runs
        self.took: dict[str, float] = {}

    def enter(self, phase: str) -> None:
        """Begin a phase; the one that ran ends."""
        now = time.monotonic()
        if self.phase:
            self.took[self.phase] = self.took.get(self.phase, 0.0) + now - self.since
        self.phase, self.since = phase, now

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started


class TimedProgress(Progress):
    """Keeps the time of each phase, and counts what is compiled."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.done = self.expected = 0
        self.forecast = Forecast()
        self.compiling_since = self.clock.started
        self.ends: float | None = None  # when the build will, as forecast last
        self.lock = threading.RLock()  # several threads have something compiled

    def stage(self, text: str) -> None:
        self.clock.enter(text.partition(" for ")[0])

    def total(self, variants: int, forecast: Forecast | None = None) -> None:
        self.clock.enter("compiling" if variants else "")
        self.done, self.expected = 0, variants
        self.forecast, self.compiling_since = forecast or Forecast(), time.monotonic()
        self._look_ahead()

    def begins(self, job: CompileJob) -> None:
        with self.lock:
            self.forecast.begin(job.code, time.monotonic() - self.compiling_since)

    def count(self, job: CompileJob, outcome: Compiled | Failure) -> bool:
        """Count what was compiled. Whether it is the first of its code."""
        with self.lock:
            self.done += 1
            is_first = self.forecast.add(job.code, outcome.seconds if isinstance(outcome, Compiled) else None)
            self._look_ahead()
            return is_first

    def _look_ahead(self) -> None:
        now = time.monotonic()
        seconds = self.forecast.whole(now - self.compiling_since)
        self.ends = None if seconds is None else now + seconds

    @property
    def left(self) -> str:
        """How long the build takes from now on, for people. What was forecast last holds while the build is finished."""
        ends = self.ends  # threads that count alter it
        return "" if ends is None else f"about {max(ends - time.monotonic(), 1.0):.0f} s left"


class LineProgress(TimedProgress):
    """One line per step, for logs."""

    def stage(self, text: str) -> None:
        self._end_phase()
        super().stage(text)
        self._print(", ".join(filter(None, (text, self.left))))

    def note(self, text: str) -> None:
        self._print(text)

    def warn(self, text: str) -> None:
        self._print(f"warning: {text}")

    def total(self, variants: int, forecast: Forecast | None = None) -> None:
        self._end_phase()
        super().total(variants, forecast)
        if variants:
            self._print(", ".join(filter(None, (f"compiling {counted(variants, 'variant')}", self.left))))

    def _end_phase(self) -> None:
        clock = self.clock
        if clock.phase:
            self._print(f"{clock.phase}: done in {time.monotonic() - clock.since:.1f} s")

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None:
        verdict = f"{outcome.seconds:.1f} s" if isinstance(outcome, Compiled) else "FAILED"
        with self.lock:
            self.count(job, outcome)
            told = ", ".join(filter(None, (verdict, self.left)))
            self._print(f"[{self.done}/{self.expected}] {job.label}: {told}")

    def linked(self, label: str, number: int, total: int) -> None:
        self._print(", ".join(filter(None, (f"[{number}/{total}] library of {label}", self.left))))

    def _print(self, text: str) -> None:
        print(f"{self.clock.elapsed:6.1f} s  {text}", file=sys.stderr, flush=True)
