"""Where functions are defined, and how they are annotated: which of several definitions of a name it is."""

from __future__ import annotations

import linecache
import types
from collections.abc import Iterator
from typing import Any

from ..values.digests import short_digest
from ..values.held import hints_of
from ..values.libraries import module_of, takes_part
from ..values.named import layers
from ..values.sources import original_code
from .guards import Remembered
from .read_forms import shortened
from .resolving import WHOLE, member, resolve

__all__ = ["PLACE", "places_in"]

PLACE = "@"  # between a class, or nothing, and the names of functions: asks where they are defined


def places_in(module: str, holder: str, names: str) -> str:
    """Where the functions of a class or module are defined, and how they are annotated.

    The sources of modules whose functions ran are compared. So a line tells which of several definitions of a name it is.
    """
    held = resolve(module, holder or WHOLE)
    text = " ".join(_place(member(held, name)) for name in names.split(","))
    return shortened(text, text)


def _place(value: Any) -> str:
    guard = [value]
    for layer in layers(value):
        guard += (layer, getattr(layer, "__code__", None))
    if (known := _known.find(value, guard)) is not None:
        return known
    text = ",".join(_places(value)) or type(value).__name__
    _known.keep(value, guard, text)
    return text


_known = Remembered()


def _places(value: Any) -> Iterator[str]:
    for layer in layers(value):
        code = original_code(layer)
        if code is None:
            continue
        module = module_of(layer)
        if takes_part(module):
            hints = hints_of(layer)
            word = f":{short_digest(hints)}" if hints else ""
            yield f"{module.rpartition('.')[2]}:{_first_line(layer, code)}{word}"
        else:
            yield f"{module.partition('.')[0]}:{layer.__name__}"


def _first_line(function: Any, code: types.CodeType) -> int:
    """The line that a function begins with. CuTe DSL before 4.8 replaces code and keeps none: its decorators are above it."""
    line = code.co_firstlineno
    if getattr(function, "_preprocessed", False) and not hasattr(function, "_original_code"):
        while linecache.getline(code.co_filename, line - 1).lstrip().startswith("@"):
            line -= 1
    return line
