"""How a build goes, told while it goes: to a log, to a terminal, or to nobody."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .worker.messages import Compiled, Failure

if TYPE_CHECKING:
    from .executors.jobs import CompileJob

__all__ = ["PlainProgress", "Problem", "Progress", "TerminalProgress", "make_progress"]


@dataclass(frozen=True)
class Problem:
    """A kernel, or one variant of it, that is missing from the bundle."""

    kernel: str
    arch: str
    variant: str
    message: str
    log: str = ""


class Progress:
    """Told how a build goes; does nothing by itself."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None: ...

    def stage(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def total(self, variants: int) -> None: ...

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None: ...


def make_progress() -> Progress:
    return TerminalProgress() if sys.stderr.isatty() else PlainProgress()


class PlainProgress(Progress):
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


class TerminalProgress(Progress):
    """A bar."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task("starting", total=None)

    def __enter__(self) -> TerminalProgress:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def stage(self, text: str) -> None:
        self.bar.update(self.task, description=text)

    def warn(self, text: str) -> None:
        self.bar.console.print(f"warning: {text}", markup=False, highlight=False)

    def total(self, variants: int) -> None:
        self.bar.update(self.task, description="compiling", total=variants)

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None:
        self.bar.update(self.task, description=f"{job.arch} {job.variant}", advance=1)
