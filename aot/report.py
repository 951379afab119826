"""What people read: tables on stdout, progress and failures on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from .build import Problem, Progress
from .executors.jobs import CompileJob
from .worker.messages import Compiled, Failure

__all__ = [
    "PlainProgress",
    "TerminalProgress",
    "human_size",
    "make_progress",
    "print_json",
    "print_problems",
    "print_table",
]


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    # Piped output is not folded: tools read it line by line.
    width = None if sys.stdout.isatty() else 10_000
    Console(file=sys.stdout, width=width, highlight=False, markup=False, soft_wrap=not sys.stdout.isatty()).print(table)


def human_size(size: int) -> str:
    return f"{size / 1024:.0f} KB" if size < 1 << 20 else f"{size / (1 << 20):.2f} MB"


def print_problems(problems: Iterable[Problem]) -> None:
    explained: set[str] = set()
    for problem in problems:
        where = " ".join(part for part in (problem.arch, problem.variant or problem.kernel) if part)
        print(f"failed: {where}: {problem.message}" if where else f"failed: {problem.message}", file=sys.stderr)
        if problem.message not in explained:  # the log of one speaks for all that failed alike
            print("".join(f"    | {line}\n" for line in problem.log.splitlines()), end="", file=sys.stderr)
        explained.add(problem.message)


def make_progress() -> Progress:
    return TerminalProgress() if sys.stderr.isatty() else PlainProgress()


class PlainProgress(Progress):
    """One line per step, for logs."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.done = self.expected = 0
        self.began = 0.0  # when the first was compiled

    def stage(self, text: str) -> None:
        self._print(text)

    def warn(self, text: str) -> None:
        self._print(f"warning: {text}")

    def total(self, variants: int) -> None:
        self.expected = variants

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None:
        self.done += 1
        verdict = f"{outcome.seconds:.1f} s" if isinstance(outcome, Compiled) else "FAILED"
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
