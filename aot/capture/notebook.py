"""The code of a Jupyter notebook as an exercise: its cells in order, as one script."""

from __future__ import annotations

import ast
import json
import linecache
import re
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError

__all__ = ["NOTEBOOK", "read_cells"]

NOTEBOOK = ".ipynb"
_BETWEEN = "\n\n"  # an empty line: what stands right above a class belongs to it
_LINE_OF_IPYTHON = re.compile(r"^([ \t]*)([%!].*)$", re.MULTILINE)
_CELL_OF_IPYTHON = re.compile(r"\s*%%(\w+)[^\n]*")
_RUN_THEIR_CELL = frozenset({"capture", "prun", "time", "timeit"})  # the rest of the cell is Python


def read_cells(path: Path) -> list[str]:
    """The cells of code, each with the lines of those before it left empty. The text of their functions is found by its lines.

    Lines that IPython alone understands, which begin with ``%`` or ``!``, do nothing.
    """
    try:
        cells = [cell for cell in json.loads(path.read_bytes())["cells"] if cell["cell_type"] == "code"]
        texts = [_as_python("".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"`{path}` is no notebook of version 4: {type(error).__name__}: {error}",
            hint="`jupyter nbconvert --to notebook` converts older ones",
        ) from None
    whole = _BETWEEN.join(texts) + "\n"
    linecache.cache[str(path)] = (len(whole), None, whole.splitlines(keepends=True), str(path))
    return list(_at_their_lines(texts))


def _at_their_lines(texts: list[str]) -> Iterator[str]:
    line = 0
    for text in texts:
        yield "\n" * line + text
        line += text.count("\n") + len(_BETWEEN)


def _as_python(text: str) -> str:
    if (magic := _CELL_OF_IPYTHON.match(text)) is not None:
        if magic[1] not in _RUN_THEIR_CELL:
            return "\n" * text.count("\n")
        text = text.replace(magic[0], "\n" * magic[0].count("\n"), 1)
    try:
        ast.parse(text)
    except SyntaxError:
        return _LINE_OF_IPYTHON.sub(r"\1pass  # \2", text)
    return text
