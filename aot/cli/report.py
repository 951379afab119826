"""What people read: tables and data on stdout, failures on stderr."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from ..errors import Failure, failure_lines

__all__ = [
    "WIDTH", "coloured", "first_line", "fitted_table", "human_size", "human_time", "note", "print_failures", "print_json", "print_message", "print_table", "print_wrapped", "table",
]  # fmt: skip

WIDTH = 80  # of a terminal that nobody widened
# Our own words, as they are coloured on a terminal.
_COLOURS = {"error:": "1;31", "failed:": "31", "interrupted:": "31", "warning:": "33", "hint:": "36"}


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table: fitted to the width of a terminal; without wrapping if tools read the output line by line."""
    if not sys.stdout.isatty():
        print(*([title] if title else []), table(columns, rows), sep="\n")
        return
    from rich.console import Console
    from rich.table import Table

    shown = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        shown.add_row(*(str(cell) for cell in row))
    Console(file=sys.stdout, highlight=False, markup=False).print(shown)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned with spaces; columns of numbers are right-aligned."""
    cells = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    numeric = [bool(rows) and all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(columns))]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def fitted_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, optional: Sequence[str] = (), indent: str = ""
) -> str:
    """A table of at most :data:`WIDTH` columns if that can be had.

    ``optional`` columns are left out if all of their cells are "-". What is still too wide is shown as a line of what is
    before the first number, and a line of the rest.
    """
    kept = [at for at, name in enumerate(columns) if name not in optional or any(row[at] != "-" for row in rows)]
    columns, rows = [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]
    text = textwrap.indent(table(columns, rows), indent)
    if max(map(len, text.splitlines())) <= WIDTH or not rows:
        return text
    first = next((at for at in range(len(columns)) if all(isinstance(row[at], int) for row in rows)), len(columns))
    numbers = table(columns[first:], [row[first:] for row in rows]).splitlines()
    names = [" ".join(map(str, row[:first])) for row in (columns, *rows)]
    return "\n".join(f"{indent}{name}\n{indent}    {line}" for name, line in zip(names, numbers, strict=True))


def print_wrapped(text: str, indent: str = "  ") -> None:
    """Print a text in lines of :data:`WIDTH` columns, without cutting words."""
    print(textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False))


def first_line(documentation: str) -> str:
    """The first line of a docstring, with the quotes that people write elsewhere.

    A bundle may be anybody's: what would move the cursor of a terminal is left out.
    """
    line = (documentation.splitlines() or [""])[0].replace("``", "`")
    return line if line.isprintable() else "".join(filter(str.isprintable, line))


def human_size(size: int) -> str:
    return f"{size / 1024:.0f} KB" if size < 1 << 20 else f"{size / (1 << 20):.2f} MB"


def human_time(seconds: float) -> str:
    if seconds < 59.95:  # what is rounded to a minute is written as one
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def print_failures(arguments: argparse.Namespace, failures: Iterable[Failure]) -> None:
    for line in failure_lines(failures, verbose=arguments.verbose):
        print_message(line)


def print_message(line: str) -> None:
    """Print a line to stderr; on a terminal, the word that says what it is has a colour."""
    word, space, rest = line.partition(" ")
    if word in _COLOURS and coloured(sys.stderr):
        word = f"\x1b[{_COLOURS[word]}m{word}\x1b[0m"
    print(f"{word}{space}{rest}", file=sys.stderr)


def note(arguments: argparse.Namespace, text: str) -> None:
    """Print what is not a result to stderr, unless ``--quiet`` was passed."""
    if not arguments.quiet:
        print(text, file=sys.stderr)


def coloured(stream: TextIO) -> bool:
    """Whether a stream shows colours, and they are wanted."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
