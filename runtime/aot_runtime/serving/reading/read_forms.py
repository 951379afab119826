"""Forms of the values that tracing read beside the arguments of a call."""

from __future__ import annotations

import abc
import enum
import functools
import json
import os
import sys
import types
from collections.abc import Mapping
from typing import Any

from ..values.digests import UnstableError, short_digest
from ..values.forms import Forms
from ..values.held import defaults_of, fields_of, hints_of, is_special, member_attributes
from ..values.libraries import COMPILER, MAIN, is_of_cute_dsl, is_of_python, module_of, takes_part
from ..values.named import foreign_name, is_told_by_name, qualified, was_made_for_python
from ..values.sources import class_text
from .resolving import MISSING, resolve

__all__ = ["ReadForms", "shortened"]

_SHOWN = 72
_OF_FIELDS = ("_tuplegetter", "member_descriptor")  # the classes of what Python makes for fields and slots
# What CuTe DSL wraps a module of MLIR in, and where it keeps the functions that were asked for.
_PROXY, _MADE_BY_PROXY = "cutlass._mlir_helpers.dialect_proxy.DialectAutoConvertProxy", "_wrapped_cache"
_MADE_OF_ANNOTATIONS = ("__annotate__", "__annotate_func__")  # by Python 3.14


def shortened(text: str, data: Any) -> str:
    """A text if it is short, else a digest of what it says."""
    return text if len(text) <= _SHOWN else f"#{short_digest(data)}"


class ReadForms(Forms):
    """Forms of values that tracing read: functions with closures and defaults, classes by name.

    The modules of functions that ran are compared by source, so that functions are known by their names. What is read
    of a class has a name of its own: ``Norm.threads``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: set[type] = set()  # classes whose content the form has
        self._homes: list[str] = []  # the modules of what is read, and of functions around the present value
        self.classes: set[type] = set()  # of libraries, with their bases and the classes of these
        self.functions: list[types.FunctionType] = []  # of libraries; the code that gets one may read its attributes
        self.members: list[enum.Enum] = []  # of enumerations of libraries
        self.cached: list[Any] = []  # functions that keep their answers
        self.modules: set[types.ModuleType] = set()  # of libraries and of Python, that are passed on as values

    def text(self, value: Any, module: str, path: str) -> str:
        """The form of what a module has under a path, if short."""
        self._homes.append(module)
        form = ["missing"] if value is MISSING else self.of(value, f"{module}.{path}")
        return shortened(json.dumps(form, sort_keys=True), form)

    def _compound(self, value: Any, where: str) -> Any:
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, functools._lru_cache_wrapper):
            self.cached.append(value)
            own = {name: item for name, item in vars(value).items() if name[:2] != "__" and name != "cache_parameters"}
            return ["cached", self.of(value.__wrapped__, where), *([self.by_name(own, where)] if own else [])]
        if isinstance(value, (staticmethod, classmethod)):
            return self.of(value.__func__, where)
        if isinstance(value, enum.Enum) and takes_part(type(value).__module__):
            return self._enum(value, where)
        if isinstance(value, property):
            return ["property", self.of([value.fget, value.fset, value.fdel], where)]
        return super()._compound(value, where)

    def _enum(self, member: enum.Enum, where: str) -> Any:
        """A member with its value and its own attributes, which its class may have given it."""
        kind = type(member)
        self.members.append(member)
        self._add_class(kind)
        own = member_attributes(member)
        content = [self.of(member.value, where), *([self.by_name(own, where)] if own else [])]
        return ["enum", qualified(kind), member.name, *content, *self._class_of(member, where)]

    def _module(self, module: types.ModuleType) -> Any:
        """A module that is passed on as a value: the code that gets it may read any of its values.

        Functions and classes are known by their names: those that run count apart.
        """
        is_held = len(self._active) > 1  # and not where the name of a function of Python leads
        if takes_part(module.__name__) or (is_held and is_of_python(module.__name__)):
            self.modules.add(module)
        if not takes_part(module.__name__) or module.__name__.partition(".")[0] == "torch":
            return ["module", module.__name__]
        values = {name: item for name, item in sorted(vars(module).items()) if name[:2] != "__"}
        return ["module", module.__name__, {name: self._of_module(item, name) for name, item in values.items()}]

    def _of_module(self, item: Any, name: str) -> Any:
        if isinstance(item, (types.FunctionType, type)) and takes_part(item.__module__):
            return ["named", qualified(item)]
        return ["module", item.__name__] if isinstance(item, types.ModuleType) else self.of(item, name)

    def _add_class(self, kind: type) -> None:
        for held in (kind, type(kind)):  # a class may get its attributes from the class that it is an object of
            self.classes.update(base for base in held.__mro__ if takes_part(base.__module__))

    def type_of(self, kind: type, where: str) -> Any:
        if not takes_part(kind.__module__):
            return ["class", foreign_name(kind)] if not was_made_for_python(kind) else self.made_class(kind, where)
        met = kind in self._told
        self._told.add(kind)
        self._add_class(kind)
        if is_told_by_name(kind):
            text = [self._class_text(kind, where)] if kind.__module__ == MAIN else []
            return ["class", qualified(kind), *text, *self._shape(kind, where)]
        return ["class", qualified(kind)] if met else self.made_class(kind, where)

    def _shape(self, kind: type, where: str) -> list[Any]:
        """What a class says beside the values of its attributes: its bases, its names, its members or fields."""
        bases = [base for base in kind.__mro__[1:] if takes_part(base.__module__)]
        names = [sorted(name for name, item in vars(base).items() if _is_told(name, item)) for base in (kind, *bases)]
        told = [qualified(base) if is_told_by_name(base) else self._if_stable(base, where) for base in bases]
        found: list[Any] = [told, list(filter(None, names)), hints_of(kind), _registered(kind)]
        if kind.__name__ != kind.__qualname__.rpartition(".")[2]:
            found.append(kind.__name__)
        if "__dataclass_fields__" not in vars(kind) and "__match_args__" in vars(kind):
            found.append(list(vars(kind)["__match_args__"]))
        if isinstance(kind, enum.EnumMeta):
            members: Mapping[str, Any] = kind.__members__
            found.append([[name, self.of(member.value, where)] for name, member in members.items()])
        if replaced := sorted(name for name, item in fields_of(kind).items() if type(item).__name__ not in _OF_FIELDS):
            found.append(replaced)
        if defaults := defaults_of(kind):
            found.append({name: self._if_stable(item, where) for name, item in defaults.items()})
        return [short_digest(found)] if any(found) else []

    def _if_stable(self, value: Any, where: str) -> Any:
        try:
            return self.of(value, where)
        except UnstableError:
            return qualified(type(value))

    def _class_text(self, kind: type, where: str) -> str:
        try:
            return short_digest(class_text(kind))
        except (OSError, TypeError):
            raise UnstableError(f"{where} is a class whose source cannot be read") from None

    def function(self, value: Any, where: str) -> Any:
        if (fields := _fields_of(value)) is not None:
            return ["dataclass", self.by_name(fields, where)]
        return super().function(value, where)

    def _written(self, function: types.FunctionType, inner: Any, where: str) -> list[Any]:
        self.functions.append(function)
        self._homes.append(module_of(function))
        try:
            return super()._written(function, inner, where)
        finally:
            self._homes.pop()

    def _foreign(self, function: types.FunctionType, inner: Any) -> list[Any]:
        return [foreign_name(function)]

    def _enclosed(self, cell: Any, where: str) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return MISSING.__class__  # not assigned yet

    def _class_of(self, value: Any, where: str) -> list[Any]:
        self._add_class(type(value))
        return super()._class_of(value, where)

    def _object(self, value: Any, where: str) -> Any:
        if isinstance(value, type(os.environ)):
            return ["object", qualified(type(value))]  # the variables that are read are compared one by one
        kind: Any = type(value)
        if kind is object and (names := self._names_of(value)):
            return ["object", *names]
        if qualified(kind) == _PROXY:
            own = {name: item for name, item in sorted(vars(value).items()) if name != _MADE_BY_PROXY}
            return ["object", qualified(kind), self.by_name(own, where)]
        is_of_compiler = is_of_cute_dsl(kind.__module__) or kind.__module__.partition(".")[0] in COMPILER
        if is_of_compiler and "_mlir" not in kind.__module__:
            return ["object", qualified(kind), super()._object(value, where)]
        return super()._object(value, where)

    def _names_of(self, mark: Any) -> list[str]:
        """The names of an empty object that stands for nothing given, in the modules that it is read in."""
        known = ((home, vars(sys.modules[home])) for home in {*self._homes} & sys.modules.keys())
        return sorted(f"{home}.{name}" for home, held in known for name, item in held.items() if item is mark)


def _fields_of(function: Any) -> dict[str, Any] | None:
    """The defaults of fields, for the function that Python made of them. Its code differs between versions of Python."""
    owner, _, name = str(function.__qualname__).rpartition(".")
    if name != "__init__" or function.__code__.co_filename != "<string>" or "<" in owner:
        return None
    kind = resolve(function.__module__, owner)
    return defaults_of(kind) if isinstance(kind, type) else None


def _is_told(name: str, item: Any) -> bool:
    """Whether a class says something by having a name: a public one, or a method that Python itself looks for."""
    if name[0] != "_":
        return True
    is_found = is_special(name) and name not in _MADE_OF_ANNOTATIONS
    return is_found and callable(item) and takes_part(getattr(item, "__module__", None))


def _registered(kind: type) -> list[str]:
    """The classes that an abstract class, or one below it, was told to take for its own."""
    dump = getattr(abc, "_get_dump", None)  # CPython shows the registry only so
    if not isinstance(kind, abc.ABCMeta) or dump is None:
        return []
    kinds: list[Any] = [kind]
    for below in kinds:
        kinds += [one for one in type.__subclasses__(below) if one not in kinds]
    references = [reference for below in kinds for reference in dump(below)[0]]  # theirs are of `ABCMeta`, too
    return sorted(qualified(one) for reference in references if (one := reference()) is not None)
