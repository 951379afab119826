"""Progress of a build: a bar on a terminal, lines in a log, nothing but warnings if asked to be quiet."""

from __future__ import annotations

import argparse
import sys

from ..compile.messages import Compiled
from ..errors import Failure
from ..pipeline.events import LineProgress, Progress, TimedProgress
from ..pipeline.executing.executor import CompileJob
from ..pipeline.executing.forecast import Forecast
from .report import print_message

__all__ = ["QuietProgress", "TerminalProgress", "make_progress"]


def make_progress(arguments: argparse.Namespace) -> TimedProgress:
    if arguments.quiet:
        return QuietProgress()
    return TerminalProgress() if sys.stderr.isatty() and not arguments.verbose else LineProgress()


class QuietProgress(TimedProgress):
    """Says what must not be missed."""

    def warn(self, text: str) -> None:
        print_message(f"warning: {text}")


class _Left:
    """The time left, whenever the line is drawn."""

    def __init__(self, progress: TimedProgress) -> None:
        self.progress = progress

    def __str__(self) -> str:
        return self.progress.left


class TerminalProgress(TimedProgress):
    """A line for each phase on stderr, with its own clock; a bar for what is counted."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[counted]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self.bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task("starting", total=None, counted="", left="")

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def stage(self, text: str) -> None:
        super().stage(text)
        self._finish()
        self.task = self.bar.add_task(text, total=None, counted="", left=_Left(self))

    def note(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False)

    def warn(self, text: str) -> None:
        self.bar.console.print(f"warning: {text}", markup=False, highlight=False)

    def total(self, variants: int, forecast: Forecast | None = None) -> None:
        super().total(variants, forecast)
        self._finish()
        self.task = self.bar.add_task(
            "compiling", total=self.forecast.expected or variants, counted=f"0/{variants}", left=_Left(self)
        )

    def begins(self, job: CompileJob) -> None:
        super().begins(job)
        self.bar.update(self.task, description=f"compiling {job.label}")

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None:
        advance = int(self.count(job, outcome))
        self.bar.update(
            self.task,
            description=f"compiling {job.label}",
            advance=advance,
            counted=f"{self.done}/{self.expected}",
        )

    def linked(self, label: str, number: int, total: int) -> None:
        self.bar.update(self.task, total=total, completed=number, counted=f"{number}/{total}")

    def _finish(self) -> None:
        """Stop the clock of the phase that ends."""
        self.bar.update(self.task, total=1, completed=1, left="")
