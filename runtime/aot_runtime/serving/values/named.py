"""Functions and classes by name: whether a name leads to one, and tells which it is.

A registry may hold ten functions called ``_``, and a factory makes a class of one name for each setting. Only what its
name leads to is known by it. The rest is known by its content: see ``held``.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from .libraries import is_of_cute_dsl, module_of, takes_part
from .sources import class_statements

__all__ = [
    "base_names",
    "foreign_name",
    "has_globals_of_module",
    "has_statement",
    "is_told_by_name",
    "layers",
    "leads_to",
    "name_leads_to",
    "names_in_module",
    "qualified",
    "was_made_for_python",
]

_INSIDE = ("__func__", "fget", "func")  # of methods, of properties, of partials and cached properties
_HEAP = 1 << 9  # the flag of classes that are made when a program runs


def qualified(value: Any) -> str:
    """The module and the name of a class or function; the name alone of what code made that runs in no module."""
    return f"{value.__module__}.{value.__qualname__}" if value.__module__ is not None else str(value.__qualname__)


def leads_to(module: str, path: str) -> Any:
    """What a name with dots stands for in a loaded module, or None. Nothing runs."""
    holder: Any = sys.modules.get(module)
    for name in path.split("."):
        held = getattr(holder, "__dict__", None)
        if held is None or name not in held:
            return None
        holder = held[name]
    return holder


def layers(value: Any) -> Iterator[Any]:
    """A function and what it wraps, the outermost first; the last may be any object."""
    if not isinstance(value, types.FunctionType):
        inside = (getattr(value, name, None) for name in _INSIDE)
        value = next((one for one in inside if isinstance(one, types.FunctionType)), value)
    while value is not None:
        yield value
        value = getattr(value, "__wrapped__", None)


def name_leads_to(value: Any) -> bool:
    """Whether the name of a class or function leads to it; of a function, also to one that wraps it."""
    module, name = sys.modules.get(value.__module__), value.__qualname__
    if module is not None and module.__dict__.get(name) is value:
        return True  # most are, and a look-up asks for many
    found = leads_to(str(value.__module__), name)
    return found is value or (isinstance(value, types.FunctionType) and any(one is value for one in layers(found)))


@functools.lru_cache(maxsize=4096)  # a call names the same few classes again and again
def has_statement(kind: type) -> bool:
    """Whether the source of a class's module has a statement for it. Classes of Python and of C count as if they had.

    What ``exec`` runs without a name says that it is one of ``builtins``.
    """
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if path is None or not path.endswith(".py"):
        return kind.__module__ != "builtins" or name_leads_to(kind) or not kind.__flags__ & _HEAP
    is_stated = "<" not in kind.__qualname__ and kind.__name__.encode() in class_statements(path)
    return is_stated and not any(_is_generated(kind, item) for item in vars(kind).values())


def _is_generated(kind: type, item: Any) -> bool:
    """Whether a function of a class is of a text that ``exec`` ran. Dataclasses and attrs generate some, too."""
    code = getattr(item, "__code__", None)
    if not isinstance(code, types.CodeType) or not code.co_filename.startswith("<"):
        return False
    return not code.co_filename.startswith("<attrs ") and "__dataclass_fields__" not in vars(kind)


def is_told_by_name(kind: type) -> bool:
    """Whether the name of a class tells which it is. A library may have several of one name in one module."""
    if has_statement(kind):
        return name_leads_to(kind) or not takes_part(kind.__module__)
    return name_leads_to(kind) and not takes_part(kind.__module__)  # many of C have no statement


def was_made_for_python(kind: type) -> bool:
    """Whether code made a class that says it is one of Python's own.

    Before Python 3.12 ``dataclasses.make_dataclass`` makes those of ``types``, and ``exec`` makes those of ``builtins``.
    """
    return kind.__module__ in ("builtins", "types") and not is_told_by_name(kind)


def names_in_module(value: Any) -> list[str]:
    """The names that the module of an object's class has for it: all that tells two objects apart that hold nothing."""
    module = sys.modules.get(type(value).__module__)
    return sorted(name for name, item in vars(module).items() if item is value) if module is not None else []


@functools.lru_cache(maxsize=1024)
def base_names(kind: type) -> frozenset[str]:
    """The names of a class and its bases, by which the objects of CuTe DSL are known. A library may have a `Pointer`, too."""
    return frozenset(base.__name__ for base in kind.__mro__ if not takes_part(base.__module__))


def foreign_name(value: Any) -> str:
    """What CuTe DSL offers in ``cutlass`` or ``cute`` has one name in all its versions, and lies in other modules."""
    if is_of_cute_dsl(str(value.__module__)) and "." not in value.__qualname__:
        name = value.__qualname__
        offered = (one for module in ("cutlass", "cutlass.cute") for one in layers(leads_to(module, name)))
        if any(one is value for one in offered):
            return f"cutlass:{name}"
    return f"{value.__module__}:{value.__qualname__}"


def has_globals_of_module(function: types.FunctionType) -> bool:
    """Whether the globals of a function are those of a loaded module. ``exec`` may have given it others."""
    return getattr(sys.modules.get(module_of(function)), "__dict__", None) is function.__globals__
