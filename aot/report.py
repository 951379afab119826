"""What people read: tables and data on stdout, failures on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .progress import Problem

__all__ = ["human_size", "print_json", "print_problems", "print_table"]


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    from rich.console import Console
    from rich.table import Table

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
