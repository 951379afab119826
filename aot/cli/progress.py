"""Progress of a build: a bar on a terminal, lines in a log, nothing but warnings if asked to be quiet."""

from __future__ import annotations

import argparse
import sys

from ..compile.messages import Compiled
from ..errors import Failure
from ..pipeline.events import Codes, LineProgress, Progress, TimedProgress
from ..pipeline.executing.executor import CompileJob
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


class TerminalProgress(TimedProgress):
    """A line for each phase on stderr, with its own clock; a bar for what is counted."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[counted]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task("starting", total=None, counted="")
        self.done = self.expected = 0
        self.codes = Codes(0)

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def stage(self, text: str) -> None:
        super().stage(text)
        self._finish()
        self.task = self.bar.add_task(text, total=None, counted="")

    def note(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False)

    def warn(self, text: str) -> None:
        self.bar.console.print(f"warning: {text}", markup=False, highlight=False)

    def total(self, variants: int, codes: int | None = None) -> None:
        super().total(variants)
        self._finish()
        self.done, self.expected, self.codes = 0, variants, Codes(variants if codes is None else codes)
        self.task = self.bar.add_task("compiling", total=self.codes.expected, counted=f"0/{variants}")

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None:
        self.done += 1
        shown = f"compiling {job.arch} {job.variant}"
        advance = int(self.codes.add(job))
        self.bar.update(self.task, description=shown, advance=advance, counted=f"{self.done}/{self.expected}")

    def _finish(self) -> None:
        """Stop the clock of the phase that ends."""
        self.bar.update(self.task, total=1, completed=1)
