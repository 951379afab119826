"""Values in a form that is the same in every process: the attributes and constants that shape compiled code.

Addresses, paths, hash seeds, the order of sets and the bytecode of a Python version leave no trace in a form. What has
no such form is refused: a key over it would never be found again, or would be found for other code.
"""

from __future__ import annotations

import enum
import hashlib
import json
import logging
import re
import threading
import types
import typing
from collections import defaultdict, deque
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import PurePath
from typing import Any

from .digests import UnstableError, file_digest
from .function_forms import FunctionForms
from .held import attributes_of, held_by, is_union, shown_attributes
from .libraries import is_of_cute_dsl, takes_part, uses_cute_dsl
from .named import base_names, is_told_by_name, names_in_module, qualified

__all__ = ["ByClass", "Forms"]

_PLAIN: frozenset[type] = frozenset({bool, int, str, type(None)})  # what JSON has as it is
_COLLECTIONS = frozenset({list, tuple, dict, set, frozenset})
_MOST_CLASSES = 4096
_LOCKS = frozenset({"_thread.lock", "_thread.RLock", "_multiprocessing.SemLock"})
_GIVEN_TO_LOGGERS = frozenset({*vars(logging.root), "manager"})
_order = json.JSONEncoder(sort_keys=True, check_circular=False).encode  # of the items of sets


class ByClass(dict[type, Any]):
    """What ``answer`` says of a class, asked once: a look-up meets hundreds of values, of a few classes.

    Libraries generate classes. So that none is kept for the life of a process, all are forgotten at a certain number.
    """

    def __init__(self, answer: Callable[[type], Any]) -> None:
        self._answer = answer

    def __missing__(self, kind: type) -> Any:
        if len(self) >= _MOST_CLASSES:
            self.clear()
        self[kind] = found = self._answer(kind)
        return found


def _word(kind: type) -> str:
    """What the objects of a class are to a form."""
    if issubclass(kind, tuple(_PLAIN)) and not issubclass(kind, enum.Enum):
        return "plain"
    if issubclass(kind, float):
        return "float"
    if kind is tuple or kind is list:
        return "sequence"
    return "class" if issubclass(kind, type) else "other"


_words = ByClass(_word)


class Forms(FunctionForms):
    """Forms of the values of one call. Symbols are numbered in the order in which they are met."""

    def __init__(self) -> None:
        self._symbols: dict[int, int] = {}
        self._kept: list[Any] = []  # an object that is gone would leave its identity to another
        self._hints: dict[int, Any] = {}  # forms of type hints by identity: the fields of a class repeat a few of them
        self._active: dict[int, int] = {}  # how far out each value around the present one is, by identity

    def symbol(self, symbol: Any) -> str:
        """``?0``, with what the compiler may assume about it."""
        number = self._symbols.setdefault(id(symbol), len(self._symbols))
        self._kept.append(symbol)
        divisor = f"%{symbol.divisibility}" if symbol.divisibility != 1 else ""
        return f"?{number}{divisor}" + ("" if symbol.width == 32 else f":i{symbol.width}")

    def of(self, value: Any, where: str) -> Any:
        """The form of a value, as JSON's types; ``where`` is how an error names it."""
        kind = type(value)
        word = _words[kind]
        if word == "plain":
            return value if kind in _PLAIN else self._derived(value, kind.__mro__, where)
        if word == "float":
            return ["float", repr(value)] if kind is float else self._derived(value, kind.__mro__, where)
        # Most values are classes, or tuples and lists of plain values, and a look-up waits for this. The rest asks more.
        if word == "class" and value is not Any and is_told_by_name(value):
            return self.type_of(value, where)
        if word == "sequence" and _PLAIN.issuperset(map(type, value)):
            return [kind.__name__, list(value)]
        identity = id(value)
        if identity in self._hints:
            return self._hints[identity]
        if identity in self._active:
            return ["above", self._active[identity]]  # an object that leads back to one that holds it
        self._active[identity] = len(self._active)
        try:
            return self._collection(value, where) if kind in _COLLECTIONS else self._compound(value, where)
        finally:
            del self._active[identity]

    def _compound(self, value: Any, where: str) -> Any:
        if _is_hint(value):
            self._hints[id(value)] = hint = self._hint(value, where)
            self._kept.append(value)
            return hint
        if isinstance(value, enum.Enum):
            return ["enum", qualified(type(value)), _enum_name(value), *self._class_of(value, where)]
        if isinstance(value, (bytes, bytearray)):
            return self._content_of(value, type(value).__name__, value.hex(), where)
        if isinstance(value, (list, tuple, dict, set, frozenset)):
            return self._collection(value, where)
        if isinstance(value, types.MappingProxyType):
            return ["mappingproxy", self._collection(dict(value), where)]
        if isinstance(value, (range, slice)):
            return [type(value).__name__, [self.of(part, where) for part in (value.start, value.stop, value.step)]]
        if isinstance(value, (complex, PurePath)):
            return self._content_of(value, qualified(type(value)), str(value), where)
        if isinstance(value, type):
            return self.type_of(value, where)
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if value is ... or value is NotImplemented:
            return ["constant", repr(value)]
        if callable(value) and (made := self.of_callable(value, where)) is not None:
            return made
        return self._object(value, where)

    def _derived(self, value: Any, bases: tuple[type, ...], where: str) -> Any:
        """A number or text of a class of its own, which may have given it attributes."""
        plain: Any = next(base for base in bases if base in _PLAIN or base is float)
        # `str` and the like of a class that changes them would give what that class makes of the value.
        content = plain.__repr__(value) if plain is not str else str.__str__(value)
        return self._content_of(value, qualified(bases[0]), content, where)

    def _content_of(self, value: Any, kind: str, content: Any, where: str) -> list[Any]:
        """A value of a class that may be one of its own: its content, attributes, and the class if no name tells it."""
        # The slots of a path are what Python has worked out so far.
        own = attributes_of(value) if not isinstance(value, PurePath) else dict(getattr(value, "__dict__", {}))
        if isinstance(value, defaultdict):
            own["default_factory"] = value.default_factory
        return [kind, content, *([self.by_name(own, where)] if own else []), *self._class_of(value, where)]

    def _class_of(self, value: Any, where: str) -> list[Any]:
        """What tells the class of a value beside its name: nothing, if its name leads to it."""
        return [] if is_told_by_name(type(value)) else [self.of(type(value), where)]

    def _hint(self, hint: Any, where: str) -> Any:
        """A type hint by its parts. The objects of ``typing`` hold other attributes in every version of Python."""
        origin = typing.get_origin(hint)
        if isinstance(hint, typing.ForwardRef):  # since Python 3.14 with what it was met in
            return ["hint", f"ForwardRef({hint.__forward_arg__!r})"]
        if origin is None:
            return ["hint", str(hint)]
        word = "Union" if is_union(origin) else self.of(origin, where)
        return ["hint", word, [self.of(part, where) for part in typing.get_args(hint)]]

    def type_of(self, kind: type, where: str) -> Any:
        """A class by its name, if a statement of its module defines it; one that code has made, by what it holds."""
        return ["class", qualified(kind)] if is_told_by_name(kind) else self.made_class(kind, where)

    def made_class(self, kind: type, where: str) -> Any:
        """A class that no statement of its module tells, by what it holds."""
        held = dict(sorted(held_by(kind).items()))
        return ["class", qualified(kind), [self.of(base, where) for base in kind.__bases__], self.by_name(held, where)]

    def by_name(self, values: dict[str, Any], where: str) -> dict[str, Any]:
        """The forms of attributes. Most are plain, and a look-up waits for this: nothing is called for those."""
        return {
            name: value if type(value) in _PLAIN else self.of(value, f"{where}.{name}")
            for name, value in values.items()
        }

    def _collection(self, value: Any, where: str) -> Any:
        """The items of a collection. The order of a dict's is what a loop over them sees; that of a set's is nobody's."""
        items: list[Any]
        if isinstance(value, dict):
            items = [
                [
                    key if type(key) in _PLAIN else self.of(key, f"a key of {where}"),
                    item if type(item) in _PLAIN else self.of(item, f"{where}[{key!r}]"),
                ]
                for key, item in value.items()
            ]
        else:
            items = [
                item if type(item) in _PLAIN else self.of(item, f"{where}[{number}]")
                for number, item in enumerate(value)
            ]
            if isinstance(value, (set, frozenset)):
                items.sort(key=_order)
        kind = type(value)
        return (
            [kind.__name__, items] if kind in _COLLECTIONS else self._content_of(value, qualified(kind), items, where)
        )

    def _object(self, value: Any, where: str) -> Any:
        kind: Any = type(value)
        known = self._of_python(value, where) or self._of_framework(value, kind, where)
        if known is not None:
            return known
        attributes = shown_attributes(value)
        if attributes is None:
            raise UnstableError(f"{where} is a {qualified(kind)}, which shows nothing of its content")
        form: list[Any] = [qualified(kind), self.by_name(dict(sorted(attributes.items())), where)]
        if not attributes and takes_part(kind.__module__) and (names := names_in_module(value)):
            form.append(names)
        return [*form, *self._class_of(value, where)]

    def _of_python(self, value: Any, where: str) -> list[Any] | None:
        """What Python's own modules implement in C or share in a process; None for any other object."""
        kind: Any = type(value)
        if (name := qualified(kind)) in _LOCKS:
            return ["object", name]
        if name == "weakref.finalize":  # its class holds whether it ran
            raise UnstableError(f"{where} is a {name}, which shows nothing of its content")
        if isinstance(value, logging.Logger):
            own = {name: item for name, item in vars(value).items() if name not in _GIVEN_TO_LOGGERS}
            return ["logger", qualified(kind), self.by_name(own, where), *self._class_of(value, where)]
        if isinstance(value, re.Pattern):
            return ["pattern", str(value.pattern), value.flags]
        if isinstance(value, ContextVar):
            return ["context", self.of(_of_context(value), where)]
        if isinstance(value, threading.local):
            return ["local", self.of(dict(vars(value)), where), *self._class_of(value, where)]
        if isinstance(value, deque):
            items = self.of([value.maxlen, *value], where)
            return self._content_of(value, qualified(kind), items, where)
        return None

    def _of_framework(self, value: Any, kind: Any, where: str) -> list[Any] | None:
        """What torch, numpy or CuTe DSL made, by what it stands for; None for any other object."""
        names = base_names(kind)
        if "SymInt" in names:
            return ["symbol", self.symbol(value)]
        if str(kind.__module__).partition(".")[0] == "torch" and not uses_cute_dsl(kind.__module__):
            if kind.__name__ in ("device", "dtype", "layout", "memory_format"):
                return ["torch", str(value)]
            raise UnstableError(f"{where} is a {qualified(kind)}")
        if kind.__module__.startswith("numpy") and names & {"dtype", "generic"}:
            return ["numpy", f"{value.dtype.str} {value!r}" if "generic" in names else _dtype_name(value)]
        if qualified(kind) == "numpy.ndarray" and not (value.dtype.hasobject or value.dtype.names):
            facts = [_dtype_name(value.dtype), list(value.shape), list(value.strides)]
            return ["array", *facts, hashlib.sha256(value.tobytes()).hexdigest()]
        if "Numeric" in names and isinstance(getattr(value, "value", None), (bool, int, float)):
            return ["number", qualified(kind), self.of(value.value, where)]
        if hasattr(kind, "dynamic_shapes_mask") and isinstance(
            layout := getattr(value, "__cache_key__", (None,))[-1], str
        ):
            return ["tensor", value.element_type.__name__, layout, getattr(value, "_assumed_align", None)]
        if "BitCode" in names and is_of_cute_dsl(kind.__module__):  # a library that is linked into the code
            return ["file", file_digest(value.path)]
        if "CUstream" in names:  # a default of many libraries: the stream 0
            return ["stream", int(value)]
        return None


def _of_context(variable: ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return "not set"


def _dtype_name(dtype: Any) -> str:
    """The name of one of numpy's types. Structures, and types of other libraries such as bfloat16, share names of one size."""
    metadata = f" {dict(dtype.metadata)!r}" if dtype.metadata else ""
    return str(dtype.str) if dtype.isbuiltin == 1 else f"{dtype.str} {dtype!r}{metadata}"


def _is_hint(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, (types.UnionType, types.GenericAlias, typing.ForwardRef)) or value is Any:
        return True
    return kind.__module__ == "typing" and not isinstance(value, type)  # a class may have a metaclass of typing


def _enum_name(value: enum.Enum) -> str:
    """Of an architecture without its suffix: code for a family runs on devices that CuTe DSL calls by exact names."""
    kind = type(value)
    is_arch = kind.__name__ == "Arch" and kind.__module__.startswith("cutlass.")
    if value.name is None:  # flags that are combined, before Python 3.11
        return str(value.value)
    return value.name.rstrip("af") if is_arch else value.name
