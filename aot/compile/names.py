"""What code reads by name: ``config.fast.level`` is one name. Read off bytecode; nothing is executed."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aot_runtime.serving.forms import UnstableError
from aot_runtime.serving.reads import MISSING, ReadForms, resolve, takes_part

__all__ = ["Reached", "codes_in", "constants", "names_read", "reach"]

_ROOTS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_MEMBERS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


@functools.lru_cache(maxsize=8192)
def names_read(code: types.CodeType) -> frozenset[str]:
    """The globals that code reads, each with the attributes that follow it at once. Nested code is code of its own."""
    found: set[str] = set()
    path: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in _MEMBERS and path:
            path.append(str(instruction.argval))
            continue
        if instruction.opname in ("CACHE", "EXTENDED_ARG", "PRECALL"):
            continue
        if path:
            found.add(".".join(path))
        path = [str(instruction.argval)] if instruction.opname in _ROOTS else []
    return frozenset({*found, *([".".join(path)] if path else [])})


@functools.lru_cache(maxsize=8192)
def constants(code: types.CodeType) -> frozenset[str]:
    """The texts in code that could be the name of an attribute or a variable."""
    return frozenset(item for item in code.co_consts if isinstance(item, str) and item.isidentifier())


@dataclass
class Reached:
    """What functions lead to by the names that they read."""

    modules: set[str] = field(default_factory=set)  # that have such functions
    values: dict[tuple[str, str], str] = field(default_factory=dict)  # module and name -> the value, as text
    functions: list[types.FunctionType] = field(default_factory=list)


def reach(roots: list[Any]) -> Reached:
    """All that functions and classes lead to by name: an upper bound of what tracing them may read by name."""
    reached, waiting, seen = Reached(), list(roots), set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            waiting += [item for base in value.__mro__ if takes_part(base.__module__) for item in vars(base).values()]
            continue
        for function in _layers(value):
            reached.functions.append(function)
            waiting += _read_by(function, reached)
    return reached


def _layers(value: Any) -> Iterator[types.FunctionType]:
    """The functions of libraries inside a value: one that is wrapped, of a method, of a cache."""
    value = getattr(value, "__func__", value)
    while value is not None and (isinstance(value, (types.FunctionType, functools._lru_cache_wrapper))):
        if isinstance(value, types.FunctionType) and takes_part(str(value.__globals__.get("__name__"))):
            yield value
        value = getattr(value, "__wrapped__", None)


def _read_by(function: types.FunctionType, reached: Reached) -> list[Any]:
    """Note what a function reads, and give what of that leads further."""
    module, found = str(function.__globals__["__name__"]), list[Any]()
    reached.modules.add(module)
    for code in codes_in(getattr(function, "_original_code", function.__code__)):
        for path in names_read(code):
            if path.partition(".")[0] not in function.__globals__:
                continue
            value = resolve(module, path)
            found.append(value)
            if (module, path) not in reached.values:
                reached.values[module, path] = _text(value, path)
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue  # not assigned yet
    return [item for item in found if item is not MISSING]


def _text(value: Any, where: str) -> str:
    try:
        return ReadForms().text(value, where)
    except UnstableError:
        return type(value).__qualname__


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code, and the code of functions that it defines."""
    yield code
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield from codes_in(item)
