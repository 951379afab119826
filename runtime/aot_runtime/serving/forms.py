"""Values in a form that is the same in every process: the attributes and constants that shape compiled code.

Addresses, paths, hash seeds, the order of sets and the bytecode of a Python version leave no trace in a form. What has
no such form is refused: a key over it would never be found again, or would be found for other code.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import io
import json
import linecache
import sys
import textwrap
import tokenize
import types
import typing
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from typing import Any

from .named import held_by, hints_of, is_known, is_named, layers, leads_to, names_of, own_of, special
from .sources import function_text, is_of_cute_dsl, takes_part, uses_cute_dsl

__all__ = [
    "ByClass",
    "Forms",
    "UnstableError",
    "base_names",
    "digest",
    "file_digest",
    "foreign_name",
    "has_globals_of_module",
    "own_attributes",
    "qualified",
]

_MAIN = "__main__"
_PLAIN = (bool, int, str, type(None))
_PLAIN_KINDS = frozenset(_PLAIN)
_COLLECTION_KINDS = frozenset({list, tuple, dict, set, frozenset})
_MOST_CLASSES = 4096


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
    if issubclass(kind, _PLAIN) and not issubclass(kind, enum.Enum):
        return "plain"
    if issubclass(kind, float):
        return "float"
    if kind is tuple or kind is list:
        return "sequence"
    return "class" if issubclass(kind, type) else "other"


_words = ByClass(_word)


class UnstableError(ValueError):
    """A value has no form that is the same in every process; the message says where it was met."""


# Forms are trees: nothing in them leads back. The second sorts the items of sets and the keys of dicts.
_encoded = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode
_order = json.JSONEncoder(sort_keys=True, check_circular=False).encode


def file_digest(path: str) -> str:
    """The digest of the content of a file, wherever it lies."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        raise UnstableError(f"`{path}` cannot be read: {error.strerror}") from None


def digest(data: Any) -> str:
    """The digest of JSON's types."""
    return hashlib.sha256(_encoded(data).encode()).hexdigest()


def qualified(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


class _FunctionForms:
    """Forms of functions, which are a part of :class:`Forms`."""

    python: str | None = None  # the version of Python, if bytecode had to stand in for a source

    def of(self, value: Any, where: str) -> Any:
        raise NotImplementedError

    def _named(self, values: dict[str, Any], where: str) -> dict[str, Any]:
        raise NotImplementedError

    def _collection(self, value: Any, where: str) -> Any:
        raise NotImplementedError

    def _callable(self, value: Any, where: str) -> Any:
        """The form of a function, a method or a partial; None for any other object that can be called."""
        if isinstance(value, functools.partial):
            parts = [value.func, list(value.args), dict(value.keywords), *filter(None, [vars(value)])]
            return ["partial", *(self.of(part, f"{where}: its parts") for part in parts)]
        if isinstance(value, types.MethodType):
            return ["method", self.of(value.__self__, f"the object of {where}"), self.of(value.__func__, where)]
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            return ["builtin", f"{value.__module__}.{value.__qualname__}", *self._bound_to(value, where)]
        if type(value).__module__ == "nanobind":  # a function of C++, in other modules in other versions of CuTe DSL
            return ["builtin", f"{value.__module__.partition('.')[0]}:{value.__qualname__}"]
        if isinstance(value, types.FunctionType):
            return self.function(value, where)
        return None

    def _bound_to(self, method: Any, where: str) -> list[Any]:
        """The object of a method that C implements, such as ``table.get``. Functions of C are bound to their modules."""
        owner = getattr(method, "__self__", None)
        return [] if owner is None or isinstance(owner, (types.ModuleType, type)) else [self.of(owner, where)]

    def function(self, value: Any, where: str) -> Any:
        """A function and all that wrap it, each by its source, what it encloses and its defaults.

        What a function reads is compared apart: see ``reads``.
        """
        layers: list[Any] = []
        while isinstance(value, types.FunctionType):
            inner = getattr(value, "__wrapped__", None)
            layers += filter(None, [self._layer(value, inner, where)])
            value = inner
        return ["function", *layers, *([self.of(value, where)] if value is not None else [])]

    def _layer(self, function: types.FunctionType, inner: Any, where: str) -> list[Any]:
        is_ours = takes_part(str(function.__globals__.get("__name__")))
        found = self._written(function, inner, where) if is_ours else self._foreign(function, inner)
        if not is_ours and isinstance(registry := getattr(function, _REGISTRY, None), types.MappingProxyType):
            return [*found, self._collection(dict(registry), where)]
        is_told = is_named(function) or (inner is None and not is_ours)
        return [*found, *([] if is_told or not (own := own_of(function)) else [self._named(own, where)])]

    def _foreign(self, function: types.FunctionType, inner: Any) -> list[Any]:
        """A function of CuTe DSL, of Python or of torch. What wraps the function that is compiled is no part of a key."""
        return [foreign_name(function)] if inner is None else []

    def _written(self, function: types.FunctionType, inner: Any, where: str) -> list[Any]:
        """A function that somebody wrote. How it is annotated is told by its place, if it has one."""
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        enclosed = {
            name: self.of(content, f"{name} of {where}")
            for name, cell in cells
            if (content := self._content(cell, f"{name} of {where}")) is not inner or inner is None
        }
        source = self._source(function, where)
        defaults = self.of([function.__defaults__, function.__kwdefaults__], f"the defaults of {where}")
        found = [source, enclosed, defaults]
        if not has_globals_of_module(function):
            found.append(self.named_globals(function, where))
        hints = hints_of(function) if " " in source else {}
        return [*found, *special(function), *([hints] if hints else [])]

    def _content(self, cell: Any, where: str) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            raise UnstableError(f"{where} is not assigned yet") from None

    def named_globals(self, function: types.FunctionType, where: str) -> dict[str, Any]:
        """What a function reads by name that runs with globals of its own, which are no module's."""
        known = function.__globals__
        return {
            name: self.of(known[name], f"{name} of {where}") for name in sorted(_global_names(function) & known.keys())
        }

    def _source(self, function: types.FunctionType, where: str) -> str:
        """The place of a function in a module whose source is compared; its text if no name leads to it, or in a script."""
        generated = function.__code__.co_filename.startswith("<")
        if generated and function.__code__.co_filename not in linecache.cache:
            return f"{qualified(function)} {self._bytecode(function, where)}"
        if function.__module__ != _MAIN and not generated and is_named(function):
            return qualified(function)
        try:
            # CuTe DSL replaces the code of a function when it is first compiled.
            text = textwrap.dedent(function_text(getattr(function, "_original_code", function.__code__)))
        except (OSError, TypeError):
            raise UnstableError(f"{where} is a function whose source cannot be read") from None
        if function.__name__ == "<lambda>" and _lambdas(text) > 1:
            raise UnstableError(f"{where} is one of several lambdas on one line, which cannot be told apart")
        if generated and (name := _addressed(function, text)) is not None:
            raise UnstableError(f"the text of {where} has the address of `{name}`, another one in each process")
        return f"{qualified(function)} {hashlib.sha256(text.encode()).hexdigest()}"

    def _bytecode(self, function: types.FunctionType, where: str) -> str:
        """A digest of a function whose source was never written down, and of the functions that it names.

        Bytecode is the same in every process of one version of Python, and in no other version.
        """
        self.python = f"{sys.version_info.major}.{sys.version_info.minor}"
        known = function.__globals__
        named = {
            name: self.of(known[name], f"{name} of {where}")
            for name in sorted(_global_names(function))
            if callable(known.get(name))
        }
        return digest([_code(getattr(function, "_original_code", function.__code__), where), named])


class Forms(_FunctionForms):
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
            return value if kind in _PLAIN_KINDS else self._derived(value, kind.__mro__, where)
        if word == "float":
            return ["float", repr(value)] if kind is float else self._derived(value, kind.__mro__, where)
        # Most values are classes, or tuples and lists of plain values, and a look-up waits for this. The rest asks more.
        if word == "class" and value is not Any and is_known(value):
            return self.type_of(value, where)
        if word == "sequence" and _PLAIN_KINDS.issuperset(map(type, value)):
            return [kind.__name__, list(value)]
        identity = id(value)
        if identity in self._hints:
            return self._hints[identity]
        if identity in self._active:
            return ["above", self._active[identity]]  # an object that leads back to one that holds it
        self._active[identity] = len(self._active)
        try:
            return self._compound(value, where)
        finally:
            del self._active[identity]

    def _compound(self, value: Any, where: str) -> Any:
        if type(value) in _COLLECTION_KINDS:
            return self._collection(value, where)
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
        if callable(value) and (made := self._callable(value, where)) is not None:
            return made
        return self._object(value, where)

    def _derived(self, value: Any, bases: tuple[type, ...], where: str) -> Any:
        """A number or text of a class of its own, which may have given it attributes."""
        plain: Any = next(base for base in bases if base in _PLAIN_KINDS or base is float)
        # `str` and the like of a class that changes them would give what that class makes of the value.
        content = plain.__repr__(value) if plain is not str else str.__str__(value)
        return self._content_of(value, qualified(bases[0]), content, where)

    def _content_of(self, value: Any, kind: str, content: Any, where: str) -> list[Any]:
        """A value of a class that may be one of its own: its content, attributes, and the class if no name tells it."""
        # The slots of a path are what Python has worked out so far.
        own = own_attributes(value) if not isinstance(value, PurePath) else dict(getattr(value, "__dict__", {}))
        if isinstance(value, defaultdict):
            own["default_factory"] = value.default_factory
        return [kind, content, *([self._named(own, where)] if own else []), *self._class_of(value, where)]

    def _class_of(self, value: Any, where: str) -> list[Any]:
        """What tells the class of a value beside its name: nothing, if its name leads to it."""
        return [] if is_known(type(value)) else [self.of(type(value), where)]

    def _hint(self, hint: Any, where: str) -> Any:
        """A type hint by its parts. The objects of ``typing`` hold other attributes in every version of Python."""
        origin = typing.get_origin(hint)
        if origin is None:
            return ["hint", str(hint)]
        word = "Union" if origin in (typing.Union, types.UnionType) else self.of(origin, where)
        return ["hint", word, [self.of(part, where) for part in typing.get_args(hint)]]

    def type_of(self, kind: type, where: str) -> Any:
        """A class by its name, if a statement of its module defines it; one that code has made, by what it holds."""
        return ["class", qualified(kind)] if is_known(kind) else self.made_class(kind, where)

    def made_class(self, kind: type, where: str) -> Any:
        """A class that no statement of its module tells, by what it holds."""
        held = dict(sorted(held_by(kind).items()))
        return ["class", qualified(kind), [self.of(base, where) for base in kind.__bases__], self._named(held, where)]

    def _named(self, values: dict[str, Any], where: str) -> dict[str, Any]:
        """The forms of attributes. Most are plain, and a look-up waits for this: nothing is called for those."""
        return {
            name: value if type(value) in _PLAIN_KINDS else self.of(value, f"{where}.{name}")
            for name, value in values.items()
        }

    def _collection(self, value: Any, where: str) -> Any:
        if isinstance(value, dict):
            pairs = [
                [
                    key if type(key) in _PLAIN_KINDS else self.of(key, f"a key of {where}"),
                    item if type(item) in _PLAIN_KINDS else self.of(item, f"{where}[{key!r}]"),
                ]
                for key, item in value.items()
            ]
            return self._with_attributes("dict", pairs, value, where)  # their order is what a loop over them sees
        items = [
            item if type(item) in _PLAIN_KINDS else self.of(item, f"{where}[{number}]")
            for number, item in enumerate(value)
        ]
        if isinstance(value, (set, frozenset)):
            word = "frozenset" if isinstance(value, frozenset) else "set"
            return self._with_attributes(word, sorted(items, key=_order), value, where)
        return self._with_attributes("list" if isinstance(value, list) else "tuple", items, value, where)

    def _with_attributes(self, kind: str, items: list[Any], value: Any, where: str) -> Any:
        """A collection; one of a class of its own has the name of that class, and attributes that the class gave it."""
        if type(value) in _COLLECTION_KINDS:
            return [kind, items]
        return self._content_of(value, qualified(type(value)), items, where)

    def _object(self, value: Any, where: str) -> Any:
        kind: Any = type(value)
        names = base_names(kind)
        if "SymInt" in names:
            return ["symbol", self.symbol(value)]
        if str(kind.__module__).partition(".")[0] == "torch" and not uses_cute_dsl(kind.__module__):
            if kind.__name__ in ("dtype", "device"):
                return ["torch", str(value)]
            raise UnstableError(f"{where} is a {qualified(kind)}")
        if kind.__module__.startswith("numpy") and names & {"dtype", "generic"}:
            return ["numpy", f"{value.dtype.str} {value!r}" if "generic" in names else _dtype_name(value)]
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
        attributes = _attributes(value)
        if attributes is None:
            raise UnstableError(f"{where} is a {qualified(kind)}, which shows nothing of its content")
        form: list[Any] = [qualified(kind), self._named(dict(sorted(attributes.items())), where)]
        if not attributes and takes_part(kind.__module__) and (held := names_of(value)):
            form.append(held)
        return [*form, *self._class_of(value, where)]


def _dtype_name(dtype: Any) -> str:
    """The name of one of numpy's types. Structures, and types of other libraries such as bfloat16, share names of one size."""
    return str(dtype.str) if dtype.isbuiltin == 1 else f"{dtype.str} {dtype!r}"


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
    module = sys.modules.get(str(function.__globals__.get("__name__")))
    return getattr(module, "__dict__", None) is function.__globals__


def _lambdas(text: str) -> int:
    """How many lambdas a piece of source has. It may begin or end in the midst of a statement."""
    found = 0
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            found += token.type == tokenize.NAME and token.string == "lambda"
    return found


def _addressed(function: types.FunctionType, text: str) -> str | None:
    """What a function reads by name whose address is a part of its text, which code made."""
    known = function.__globals__
    named = sorted(_global_names(function) & known.keys())
    return next((name for name in named if f"{id(known[name]):x}" in text or str(id(known[name])) in text), None)


def _is_hint(value: Any) -> bool:
    kind = type(value)
    if kind in (types.UnionType, types.GenericAlias) or value is Any:
        return True
    return kind.__module__ == "typing" and not isinstance(value, type)  # a class may have a metaclass of typing


def _code(code: types.CodeType, where: str) -> list[Any]:
    """Code with its names and constants, as JSON's types."""
    constants = [item if type(item) in _PLAIN_KINDS else _constant(item, where) for item in code.co_consts]
    return [code.co_code.hex(), constants, *map(list, (code.co_names, code.co_varnames, code.co_freevars))]


_REGISTRY = "registry"  # of functions that choose by the class of their argument


def _constant(value: Any, where: str) -> Any:
    return _code(value, where) if isinstance(value, types.CodeType) else Forms().of(value, f"a constant of {where}")


def _enum_name(value: enum.Enum) -> str:
    """Of an architecture without its suffix: code for a family runs on devices that CuTe DSL calls by exact names."""
    kind = type(value)
    is_arch = kind.__name__ == "Arch" and kind.__module__.startswith("cutlass.")
    if value.name is None:  # flags that are combined, before Python 3.11
        return str(value.value)
    return value.name.rstrip("af") if is_arch else value.name


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an object of a Python class; None if the class keeps them out of sight."""
    kind: Any = type(value)
    slots = _slots(kind)
    if "_mlir" in kind.__module__ or (slots is None and not hasattr(value, "__dict__")) or _hides_state(kind):
        return None
    return own_attributes(value)


def own_attributes(value: Any) -> dict[str, Any]:
    """What an object keeps in slots and in its dictionary."""
    kind: Any = type(value)
    found = {name: getattr(value, name) for name in _slots(kind) or () if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


@functools.lru_cache(maxsize=1024)
def _hides_state(kind: type) -> bool:
    """Whether objects of a class have more in them than slots and ``__dict__``: what C keeps there cannot be compared.

    Python asks the same before it pickles an object by its attributes.
    """
    own = object.__basicsize__ + _POINTER * len(copyreg._slotnames(kind))  # type: ignore[attr-defined]
    own += _POINTER * ((kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0))
    return kind.__basicsize__ > own and kind is not types.SimpleNamespace


_POINTER = tuple.__itemsize__


@functools.lru_cache(maxsize=1024)
def _slots(kind: type) -> list[str] | None:
    """The slots of a class and its bases, by the names that Python keeps them under; None if none of them declares any."""
    declared = any("__slots__" in base.__dict__ for base in kind.__mro__)
    return list(copyreg._slotnames(kind)) if declared else None  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=1024)
def base_names(kind: type) -> frozenset[str]:
    """The names of a class and its bases, by which the objects of CuTe DSL are known."""
    return frozenset(base.__name__ for base in kind.__mro__)


@functools.lru_cache(maxsize=4096)  # CuTe DSL replaces the code of a function when it is first compiled
def _global_names(function: Any) -> frozenset[str]:
    """The names that the code of a function may look up in its module."""
    names: set[str] = set()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [item for item in code.co_consts if type(item) is types.CodeType]
    return frozenset(names - _OWN_NAMES)


_OWN_NAMES = frozenset({"__name__", "__file__", "__doc__", "__package__"})
