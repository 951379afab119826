"""What a build reports while it runs: to nobody, or as lines on stderr. The command line draws a bar instead."""

from __future__ import annotations

import sys
import threading
import time

from ..compile.messages import Compiled
from ..errors import Failure
from .executor import CompileJob

__all__ = ["CountingProgress", "LineProgress", "Progress"]


class Progress:
    """Told how a build goes; does nothing by itself."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None: ...

    def stage(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def total(self, variants: int) -> None: ...

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None: ...


class CountingProgress(Progress):
    """Tells another one everything, and counts what was compiled."""

    def __init__(self, listener: Progress) -> None:
        self.listener, self.count = listener, 0

    def stage(self, text: str) -> None:
        self.listener.stage(text)

    def warn(self, text: str) -> None:
        self.listener.warn(text)

    def total(self, variants: int) -> None:
        self.listener.total(variants)

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None:
        self.count += isinstance(outcome, Compiled)
        self.listener.compiled(job, outcome)


class LineProgress(Progress):
    """One line per step, for logs."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.done = self.expected = 0
        self.began = 0.0  # when the first was compiled
        self.lock = threading.Lock()  # several threads have something compiled

    def stage(self, text: str) -> None:
        self._print(text)

    def warn(self, text: str) -> None:
        self._print(f"warning: {text}")

    def total(self, variants: int) -> None:
        self.expected = variants

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None:
        verdict = f"{outcome.seconds:.1f} s" if isinstance(outcome, Compiled) else "FAILED"
        with self.lock:
            self.done += 1
            self.began = self.began or time.monotonic()
            self._print(f"[{self.done}/{self.expected}] {job.arch} {job.variant}: {verdict}{self._left()}")

    def _left(self) -> str:
        """How long the rest takes if it goes on like this; said once there is something to go by."""
        if self.done < 5 or self.done == self.expected:
            return ""
        seconds = (time.monotonic() - self.began) / (self.done - 1) * (self.expected - self.done)
        return f", about {seconds:.0f} s left"

    def _print(self, text: str) -> None:
        print(f"{time.monotonic() - self.started:6.1f} s  {text}", file=sys.stderr, flush=True)
