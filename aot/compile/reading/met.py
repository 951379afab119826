"""What forms meet beside the values that they are made of: classes, functions and modules whose attributes code may name."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from typing import Any

from aot_runtime.serving.reading.places import PLACE
from aot_runtime.serving.reading.read_forms import ReadForms
from aot_runtime.serving.reading.reads import ABSENT, OF_CLASS
from aot_runtime.serving.reading.resolving import resolve
from aot_runtime.serving.values.digests import UnstableError
from aot_runtime.serving.values.libraries import MAIN, is_of_library, is_of_python, takes_part

from .names import names_in_hints, names_tried, private
from .paths import GIVEN_BY_PYTHON, Read, cached_of, counts_in, ran

__all__ = ["Met", "held_by", "is_of_c"]

_GIVEN_TO_FUNCTIONS = frozenset({"__annotations__", "__doc__"})  # what a library may change
# Attributes of `sys` that differ in each process, and whose names much else has, too.
_OF_THIS_PROCESS = frozenset({"modules", "path"})
# What CuTe DSL gives to functions that it decorates.
_OF_JIT = frozenset(
    {"_decorator_kind", "_decorator_location", "_dsl_cls", "_dsl_object", "_name_prefix", "_original_code"}
    | {"_preprocess_enabled", "_transformed_ast", "set_name_prefix", "__wrapped__"}
)


class Met:
    """What forms met that may hold attributes which code names."""

    def __init__(self) -> None:
        self.modules: set[types.ModuleType] = set()
        self._classes: set[type] = set()
        self._functions: set[types.FunctionType] = set()
        self._members: set[Read] = set()
        self._cached: dict[int, Any] = {}

    def add(self, forms: ReadForms) -> None:
        self.modules |= forms.modules
        self._classes |= forms.classes
        self._functions.update(forms.functions)
        self._cached.update((id(function), function) for function in forms.cached)
        self._members |= {(type(one).__module__, f"{type(one).__qualname__}.{one.name}") for one in forms.members}

    def members(self) -> set[Read]:
        """The members of enumerations, which a key knows by their names."""
        return self._members

    def cached(self, names: Set[str]) -> list[Any]:
        """The functions that keep their answers: those of classes with one of the names, and what was held and called."""
        of_classes = [function for kind in self._classes for function in cached_of(kind, names)]
        return [*of_classes, *(one for one in self._cached.values() if one.cache_info().currsize)]

    def attributes(self, names: Set[str], codes: Mapping[types.CodeType, str]) -> Iterator[Read]:
        """What has one of the names in a module, function or class; ``codes`` are those that ran."""
        for module in self.modules:
            held = (names & vars(module).keys()) - GIVEN_BY_PYTHON
            if not takes_part(module.__name__):
                held = {name for name in held - _OF_THIS_PROCESS if counts_in(module, name)}
            yield from ((module.__name__, name) for name in held)
        for function in self._functions:
            if _inside(resolve(function.__module__, function.__qualname__)) is function:
                given = names & (vars(function).keys() | _GIVEN_TO_FUNCTIONS)
                yield from ((function.__module__, f"{function.__qualname__}.{name}") for name in given - _OF_JIT)
            if ran(function, codes):  # one that another function made, perhaps
                yield from names_in_hints(function)
        for kind in self._classes:
            if resolve(kind.__module__, kind.__qualname__) is kind:
                yield from ((kind.__module__, path) for path in _paths_in(kind, names, codes))


def _paths_in(kind: type, names: Set[str], codes: Mapping[types.CodeType, str]) -> Iterator[str]:
    """A class, where its methods that ran are defined, and its attributes that are named.

    A plain method says no more than the source of its module does. The form of a class has its public names; private ones
    that it does not have are asked for by code that goes on without them.
    """
    ran_names = {code.co_name for code in codes}
    held = {name: item for base in reversed(kind.__mro__) for name, item in vars(base).items()}
    placed = sorted(name for name, item in held.items() if ran(item, codes))  # a function may be there by another name
    if placed and kind.__module__ != MAIN:
        yield f"{kind.__qualname__}{PLACE}{','.join(placed)}"
    tried = sorted(
        (private(names) if "__getattr__" in held else frozenset().union(*map(names_tried, codes))) - held.keys()
    )
    if tried:
        yield f"{ABSENT}{','.join(tried)}{OF_CLASS}{kind.__qualname__}"
    asked = names & held.keys()
    if "__dict__" in names and not isinstance(kind, enum.EnumMeta):
        asked |= {name for name in held if name[:2] != "__"} - {"_abc_impl"}
    for name in (asked - GIVEN_BY_PYTHON) | (ran_names & held.keys()):
        if not _is_bare(held[name]):
            yield f"{kind.__qualname__}.{name}"
    yield kind.__qualname__


class _HeldForms(ReadForms):
    """Forms of what a kernel is compiled with. Its key has the names of the modules in it: their values count apart."""

    def _module(self, module: types.ModuleType) -> Any:
        if takes_part(module.__name__) or is_of_python(module.__name__):
            self.modules.add(module)
        return ["module", module.__name__]


def held_by(values: Iterable[Any]) -> Met:
    """What the values lead to that a kernel is compiled with."""
    met = Met()
    for value in values:
        forms = _HeldForms()
        with suppress(UnstableError):  # the key of the call has what the compiler is told of an argument
            forms.of(value, "")
        met.add(forms)
    return met


def _inside(value: Any) -> Any:
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def _is_bare(item: Any) -> bool:
    """Whether what a class holds says nothing beyond its source: a plain method, or what Python makes for a slot."""
    function = getattr(item, "__func__", item)
    layers = [function]
    while (function := getattr(function, "__wrapped__", None)) is not None:
        layers.append(function)
    functions = [layer for layer in layers if is_of_library(layer)]
    if functions and all(isinstance(layer, types.FunctionType) for layer in layers):
        (first, *others) = functions
        return not others and not (first.__closure__ or first.__defaults__ or first.__kwdefaults__)
    return is_of_c(item)


def is_of_c(item: Any) -> bool:
    """Whether something is what Python makes for a slot or for a field of a named tuple, which has no attributes."""
    of_library = takes_part(type(item).__module__)  # a descriptor with slots
    return hasattr(item, "__get__") and not (hasattr(item, "__dict__") or isinstance(item, property) or of_library)
