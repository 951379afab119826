"""Progress of a build: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys

from ..compile.messages import Compiled
from ..errors import Failure
from ..pipeline.events import LineProgress, Progress
from ..pipeline.executor import CompileJob

__all__ = ["TerminalProgress", "make_progress"]


def make_progress() -> Progress:
    return TerminalProgress() if sys.stderr.isatty() else LineProgress()


class TerminalProgress(Progress):
    """A progress bar on stderr."""

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
