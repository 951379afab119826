"""What a look-up need not work out again: texts of functions and classes in which nothing changed."""

from __future__ import annotations

import abc
import enum
import operator
import types
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ..values.function_forms import REGISTRY
from ..values.held import PLAIN, constructor_defaults, fields_of, is_special
from ..values.libraries import MAIN, module_of, takes_part
from ..values.named import has_globals_of_module, is_told_by_name, name_leads_to, was_made_for_python

__all__ = ["Remembered", "guard_of"]

_MOST_KNOWN = 16384


class Remembered:
    """Texts of values, by identity, each with a guard: what in the value could change. All of it is the same object then."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[Any, Sequence[Any], str]] = {}

    def find(self, value: Any, guard: Sequence[Any]) -> str | None:
        """The text of a value; None if it is not known, or if something changed in the value since."""
        known = self._texts.get(id(value))
        if known is None or known[0] is not value or len(known[1]) != len(guard):
            return None
        return known[2] if all(map(operator.is_, known[1], guard)) else None

    def keep(self, value: Any, guard: Sequence[Any], text: str) -> None:
        if len(self._texts) >= _MOST_KNOWN:
            self._texts.clear()
        self._texts[id(value)] = value, guard, text


def guard_of(value: Any) -> tuple[Any, ...] | None:
    """What in a function or class could change; None if that cannot be said, or for other values.

    Most names stand for functions and classes, and a look-up reads hundreds of them.
    """
    if isinstance(value, type):
        return _guard_of_class(value)
    if isinstance(value, types.ModuleType):
        return () if not takes_part(value.__name__) else None
    found: list[Any] = []
    while isinstance(value, types.FunctionType):
        if takes_part(module_of(value)):
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            if value.__closure__ or value.__module__ == MAIN or not PLAIN.issuperset(map(type, defaults)):
                return None
            if not has_globals_of_module(value) or not name_leads_to(value):
                return None
            found += (*defaults, value.__code__, value.__name__)
        elif hasattr(value, REGISTRY):
            return None
        value = getattr(value, "__wrapped__", None)
        if value is None:
            return tuple(found)
    return None


def _guard_of_class(kind: type) -> tuple[Any, ...] | None:
    if not takes_part(kind.__module__):
        return () if not was_made_for_python(kind) else None
    if isinstance(kind, enum.EnumMeta) or not is_told_by_name(kind):
        return None
    token = [abc.get_cache_token()] if isinstance(kind, abc.ABCMeta) else []  # of virtual subclasses
    held = [base.__dict__ for base in kind.__mro__ if takes_part(base.__module__)]
    fields = [field for names in held for field in names.get("__dataclass_fields__", {}).values()]
    defaults = [
        *constructor_defaults(kind),
        *(one for field in fields for one in (field.default, field.default_factory)),
    ]
    if any(field.metadata for field in fields) or not all(map(_is_fixed, defaults)):
        return None  # something in it can be changed
    patterns = [names.get("__match_args__") for names in held]
    stored = (names.get(name) for names in held for name in ("__annotations__", "__annotations_cache__"))  # since 3.14
    hints = [one for found in stored if isinstance(found, dict) for one in found.values()]
    special = [item for names in held for name, item in names.items() if is_special(name)]  # whose module counts, too
    special += fields_of(kind).values()
    return (kind.__name__, *kind.__mro__, *token, *chain.from_iterable(held), *special, *patterns, *hints, *defaults)


def _is_fixed(value: Any) -> bool:
    """Whether nothing in a default can be another object later. Dataclasses have objects that stand for no default."""
    return type(value) in PLAIN or isinstance(value, (type, enum.Enum)) or type(value).__module__ == "dataclasses"
