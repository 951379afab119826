"""Functions and classes by name: whether a name leads to one, and what one holds that no name leads to.

A registry may hold ten functions called ``_``, and a factory makes a class of one name for each setting. Only what its
name leads to is known by it. The rest is known by its content.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from .sources import class_statements, takes_part

__all__ = [
    "annotations_of",
    "constructor_defaults",
    "defaults_of",
    "held_by",
    "hints_of",
    "is_defined",
    "is_known",
    "is_named",
    "layers",
    "leads_to",
    "name_of_hint",
    "names_of",
    "own_of",
    "special",
]

PLAIN = frozenset({bool, int, float, str, type(None)})
# What Python itself gives to classes, and what dataclasses and enumerations are told apart by in other ways.
_OF_PYTHON = frozenset(
    {"__abstractmethods__", "__annotations__", "__annotations_cache__", "__dict__", "__doc__", "__firstlineno__"}
    | {"__module__", "__orig_bases__", "__parameters__", "__qualname__", "__slotnames__", "__slots__"}
    | {"__static_attributes__", "__weakref__", "_abc_impl"}
    | {"__annotate__", "__annotate_func__", "__conditional_annotations__"}  # since Python 3.14
)
_HEAP = 1 << 9  # the flag of classes that are made when a program runs
_OF_MEMBERS = frozenset({"value", "name", "objclass", "sort_order"})  # of enumerations, underscores aside
_MADE_BY_PYTHON = "<string>"  # the file of what dataclasses and named tuples generate
_OF_JIT = "_dsl_"  # CuTe DSL gives such attributes to functions, with other private ones, some when it compiles them
_TUPLE = "_field_defaults"


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
    for name in ("__func__", "fget", "func"):  # of methods, of properties, of partials and cached properties
        if not isinstance(value, types.FunctionType) and isinstance(
            inner := getattr(value, name, None), types.FunctionType
        ):
            value = inner
    while value is not None:
        yield value
        value = getattr(value, "__wrapped__", None)


def is_named(value: Any) -> bool:
    """Whether the name of a class or function leads to it; of a function, also to one that wraps it."""
    module, name = sys.modules.get(value.__module__), value.__qualname__
    if module is not None and module.__dict__.get(name) is value:
        return True  # most are, and a look-up asks for many
    found = leads_to(str(value.__module__), name)
    return found is value or (isinstance(value, types.FunctionType) and any(one is value for one in layers(found)))


@functools.lru_cache(maxsize=4096)  # a call names the same few classes again and again
def is_defined(kind: type) -> bool:
    """Whether the source of a class's module has a statement for it. Classes of Python and of C count as defined.

    What ``exec`` runs without a name says that it is one of ``builtins``.
    """
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if path is None or not path.endswith(".py"):
        return kind.__module__ != "builtins" or is_named(kind) or not kind.__flags__ & _HEAP
    is_stated = "<" not in kind.__qualname__ and kind.__name__.encode() in class_statements(path)
    return is_stated and not any(_is_generated(kind, item) for item in vars(kind).values())


def _is_generated(kind: type, item: Any) -> bool:
    """Whether a function of a class is of a text that ``exec`` ran. Dataclasses and attrs generate some, too."""
    code = getattr(item, "__code__", None)
    if not isinstance(code, types.CodeType) or not code.co_filename.startswith("<"):
        return False
    return not code.co_filename.startswith("<attrs ") and "__dataclass_fields__" not in vars(kind)


def is_known(kind: type) -> bool:
    """Whether the name of a class tells which it is. A library may have several of one name in one module."""
    if is_defined(kind):
        return is_named(kind) or not takes_part(kind.__module__)
    return is_named(kind) and not takes_part(kind.__module__)  # many of C have no statement


def names_of(value: Any) -> list[str]:
    """The names that the module of an object's class has for it: all that tells two objects apart that hold nothing."""
    module = sys.modules.get(type(value).__module__)
    return sorted(name for name, item in vars(module).items() if item is value) if module is not None else []


def own_of(function: types.FunctionType) -> dict[str, Any]:
    """The attributes that a function was given. CuTe DSL gives private ones to those that it decorates."""
    given = vars(function)
    is_jit = any(name.startswith(_OF_JIT) for name in given)
    names = [name for name in given if name != "__wrapped__" and not (is_jit and _is_of_jit(name))]
    return {name: given[name] for name in sorted(names)}


def _is_of_jit(name: str) -> bool:
    return name[0] == "_" or name == "set_name_prefix"


def special(function: types.FunctionType) -> list[str]:
    """What of a function neither its place nor its text tells: another name, and that CuTe DSL does not rewrite it."""
    name = [function.__name__] if function.__name__ != function.__qualname__.rpartition(".")[2] else []
    return name + (["as written"] if vars(function).get("_preprocess_enabled") is False else [])


def hints_of(value: Any) -> dict[str, str]:
    """How a function or class is annotated, by the names of types."""
    try:
        found = annotations_of(value) if isinstance(value, type) else value.__annotations__
        return {name: name_of_hint(hint) for name, hint in found.items()}
    except Exception:  # Python 3.14 evaluates them now, and a name may be one that only a type checker knows
        return {}


def name_of_hint(hint: Any) -> str:
    if isinstance(hint, (str, int, float)):
        return str(hint)
    is_union = get_origin(hint) in (Union, types.UnionType)
    name = "Union" if is_union else str(getattr(hint, "__qualname__", None) or type(hint).__qualname__)
    return name + "".join(f" {name_of_hint(part)}" for part in get_args(hint))


def annotations_of(kind: type) -> dict[str, Any]:
    """What ``inspect.get_annotations`` gives. It copies all that a class holds first, and a look-up waits for this."""
    if sys.version_info >= (3, 14):  # they are made when somebody asks for them
        return inspect.get_annotations(kind)
    found = vars(kind).get("__annotations__")
    return dict(found) if isinstance(found, dict) else {}


def held_by(kind: type) -> dict[str, Any]:
    """What a class holds that was put there on purpose, with the methods that Python looks for."""
    if isinstance(kind, enum.EnumMeta):
        found: dict[str, Any] = dict(kind.__members__)
        members = {name: [one.value, _own_of_member(one)] for name, one in found.items()}
        functions = ((name, _plain(item)) for name, item in _told(kind).items())
        return {"members": members, **{name: item for name, item in functions if _is_of_library(item)}}
    held = {name: _plain(item) for name, item in _told(kind).items()}
    if (defaults := defaults_of(kind)) is not None:
        held["fields of this class"] = defaults
    return {**held, "hints": annotations_of(kind)}


def _own_of_member(member: enum.Enum) -> dict[str, Any]:
    return {name: item for name, item in vars(member).items() if name.strip("_") not in _OF_MEMBERS}


def _is_of_library(item: Any) -> bool:
    return isinstance(item, types.FunctionType) and takes_part(str(item.__globals__.get("__name__")))


def _told(kind: type) -> dict[str, Any]:
    fields = frozenset(getattr(kind, "_fields", ())) if issubclass(kind, tuple) else frozenset()
    is_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    is_generated = is_tuple or "__dataclass_fields__" in vars(kind)
    return {
        name: item
        for name, item in vars(kind).items()
        if name not in _OF_PYTHON and name not in fields and not _is_made(name, item, is_tuple, is_generated)
    }


def _is_made(name: str, item: Any, is_tuple: bool, is_generated: bool) -> bool:
    """Whether Python has put something into a class: what it makes there differs between its versions."""
    is_special = name[:2] == name[-2:] == "__"
    if not is_special and not (is_tuple and name[0] == "_"):
        return False
    function = next((one for one in layers(_plain(item)) if isinstance(one, types.FunctionType)), None)
    if function is None:
        return not _is_plain(item)
    module = str(function.__globals__.get("__name__"))
    return (is_generated and function.__code__.co_filename == _MADE_BY_PYTHON) or not takes_part(module)


def _is_plain(item: Any) -> bool:
    if isinstance(item, (tuple, list, set, frozenset)):
        return all(map(_is_plain, item))
    return type(item) in PLAIN


def _plain(value: Any) -> Any:
    """The function inside a method of a class. What Python makes for a slot says no more than its name does."""
    if isinstance(value, types.MemberDescriptorType):
        return "slot"
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def defaults_of(kind: type) -> dict[str, Any] | None:
    """The defaults of the fields of a dataclass or of a named tuple; None of any other class."""
    if issubclass(kind, tuple):
        named = next((vars(base)[_TUPLE] for base in kind.__mro__ if _TUPLE in vars(base)), None)
        return None if named is None else {"": [list(kind._fields), constructor_defaults(kind)], **named}  # type: ignore[attr-defined]
    fields = vars(kind).get("__dataclass_fields__")
    if fields is None:
        return None
    told = {
        name: [
            *(None if one is dataclasses.MISSING else one for one in (field.default, field.default_factory)),
            [field.init, field.repr, field.hash, field.compare, field.kw_only, dict(field.metadata)],
        ]
        for name, field in fields.items()
    }
    return {**told, "": [one if type(one) in PLAIN else type(one) for one in constructor_defaults(kind)]}


def constructor_defaults(kind: Any) -> list[Any]:
    """The defaults that the constructors of a class have now: older libraries replace those of named tuples."""
    functions = [one for one in (kind.__new__, kind.__init__) if isinstance(one, types.FunctionType)]
    return [item for one in functions for item in (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values())]
