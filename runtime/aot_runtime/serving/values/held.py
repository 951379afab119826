"""What functions, classes and objects hold that no name tells: attributes, annotations, and the defaults of fields.

What Python itself puts there differs between its versions, and is left out.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import functools
import inspect
import sys
import types
from typing import Any, Union, get_args, get_origin

from .libraries import is_of_library, module_of, takes_part
from .named import layers
from .stored import without_given

__all__ = [
    "PLAIN",
    "annotations_of",
    "attributes_of",
    "constructor_defaults",
    "defaults_of",
    "fields_of",
    "given_to",
    "held_by",
    "hints_of",
    "is_special",
    "is_union",
    "member_attributes",
    "name_of_hint",
    "shown_attributes",
    "untold_by_text",
]

PLAIN = frozenset({bool, int, float, str, type(None)})
# What Python itself gives to classes, and what dataclasses and enumerations are told apart by in other ways.
_GIVEN_TO_CLASSES = frozenset(
    {"__abstractmethods__", "__annotations__", "__annotations_cache__", "__dict__", "__doc__", "__firstlineno__"}
    | {"__module__", "__orig_bases__", "__parameters__", "__qualname__", "__slotnames__", "__slots__"}
    | {"__static_attributes__", "__weakref__", "_abc_impl"}
    | {"__annotate__", "__annotate_func__", "__conditional_annotations__"}  # since Python 3.14
)
_GIVEN_TO_MEMBERS = frozenset({"value", "name", "objclass", "sort_order"})  # of enumerations, underscores aside
_MADE_BY_PYTHON = "<string>"  # the file of what dataclasses and named tuples generate
_OF_JIT = "_dsl_"  # CuTe DSL gives such attributes to functions, with other private ones, some when it compiles them
_DEFAULTS_OF_TUPLE = "_field_defaults"
_POINTER = tuple.__itemsize__


# Functions.


def given_to(function: types.FunctionType) -> dict[str, Any]:
    """The attributes that a function was given. CuTe DSL gives private ones to those that it decorates."""
    given = vars(function)
    is_jit = any(name.startswith(_OF_JIT) for name in given)
    names = [name for name in given if name != "__wrapped__" and not (is_jit and _is_of_jit(name))]
    return {name: given[name] for name in sorted(names)}


def _is_of_jit(name: str) -> bool:
    return name[0] == "_" or name == "set_name_prefix"


def untold_by_text(function: types.FunctionType) -> list[str]:
    """What of a function neither its place nor its text tells: another name, and that CuTe DSL does not rewrite it."""
    name = [function.__name__] if function.__name__ != function.__qualname__.rpartition(".")[2] else []
    return name + (["as written"] if vars(function).get("_preprocess_enabled") is False else [])


# Annotations.


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
    name = (
        "Union" if is_union(get_origin(hint)) else str(getattr(hint, "__qualname__", None) or type(hint).__qualname__)
    )
    return name + "".join(f" {name_of_hint(part)}" for part in get_args(hint))


def is_union(origin: Any) -> bool:
    """Whether this is the origin of ``Union[A, B]`` or ``A | B``, which Python before 3.14 tells apart."""
    return origin in (Union, types.UnionType)


def annotations_of(kind: type) -> dict[str, Any]:
    """What ``inspect.get_annotations`` gives. It copies all that a class holds first, and a look-up waits for this."""
    if sys.version_info >= (3, 14):  # they are made when somebody asks for them
        return inspect.get_annotations(kind)
    found = vars(kind).get("__annotations__")
    return dict(found) if isinstance(found, dict) else {}


# Classes.


def held_by(kind: type) -> dict[str, Any]:
    """What a class holds that was put there on purpose, with the methods that Python looks for."""
    held = {name: _inside(item) for name, item in _put_into(kind).items()}
    if isinstance(kind, enum.EnumMeta):
        named: dict[str, enum.Enum] = dict(kind.__members__)
        members = {name: [one.value, member_attributes(one)] for name, one in named.items()}
        return {"members": members, **{name: item for name, item in held.items() if is_of_library(item)}}
    if (defaults := defaults_of(kind)) is not None:
        held["fields of this class"] = defaults
    return {**held, "hints": annotations_of(kind)}


def fields_of(kind: type) -> dict[str, Any]:
    """What a class has for its slots, and for the fields of a named tuple: what Python made of them, unless it was replaced."""
    held = vars(kind)
    slots = held.get("__slots__", ())
    fields = held.get("_fields") if issubclass(kind, tuple) else ()
    names = [*((slots,) if isinstance(slots, str) else slots), *(fields or ())]
    return {name: held[name] for name in names if name in held}


def member_attributes(member: enum.Enum) -> dict[str, Any]:
    """The attributes that a class of enumeration gave to a member of its own."""
    return {name: item for name, item in vars(member).items() if name.strip("_") not in _GIVEN_TO_MEMBERS}


def is_special(name: str) -> bool:
    """Whether this is a name that Python itself looks for, such as ``__call__``."""
    return name[:2] == name[-2:] == "__"


def _put_into(kind: type) -> dict[str, Any]:
    is_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    fields = frozenset(kind._fields) if is_tuple else frozenset()  # type: ignore[attr-defined]
    is_generated = is_tuple or "__dataclass_fields__" in vars(kind)
    return {
        name: item
        for name, item in vars(kind).items()
        if name not in _GIVEN_TO_CLASSES
        and name not in fields
        and not _is_of_python(name, item, is_tuple, is_generated)
    }


def _is_of_python(name: str, item: Any, is_tuple: bool, is_generated: bool) -> bool:
    """Whether Python has put something into a class: what it makes there differs between its versions."""
    if not is_special(name) and not (is_tuple and name[0] == "_"):
        return False
    function = next((one for one in layers(_inside(item)) if isinstance(one, types.FunctionType)), None)
    if function is None:
        return not _is_plain(item)
    is_made = is_generated and function.__code__.co_filename == _MADE_BY_PYTHON
    return is_made or not takes_part(module_of(function))


def _is_plain(item: Any) -> bool:
    if isinstance(item, (tuple, list, set, frozenset)):
        return all(map(_is_plain, item))
    return type(item) in PLAIN


def _inside(value: Any) -> Any:
    """The function inside a method of a class. What Python makes for a slot says no more than its name does."""
    if isinstance(value, types.MemberDescriptorType):
        return "slot"
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def defaults_of(kind: type) -> dict[str, Any] | None:
    """The defaults of the fields of a dataclass or of a named tuple; None of any other class."""
    if issubclass(kind, tuple):
        held = (vars(base) for base in kind.__mro__)
        named = next((names[_DEFAULTS_OF_TUPLE] for names in held if _DEFAULTS_OF_TUPLE in names), None)
        return None if named is None else {"": [list(kind._fields), constructor_defaults(kind)], **named}  # type: ignore[attr-defined]
    fields = vars(kind).get("__dataclass_fields__")
    if fields is None:
        return None
    told = {name: _settings_of(field) for name, field in fields.items()}
    return {**told, "": [one if type(one) in PLAIN else type(one) for one in constructor_defaults(kind)]}


def _settings_of(field: dataclasses.Field[Any]) -> list[Any]:
    defaults = [None if one is dataclasses.MISSING else one for one in (field.default, field.default_factory)]
    return [*defaults, [field.init, field.repr, field.hash, field.compare, field.kw_only, dict(field.metadata)]]


def constructor_defaults(kind: Any) -> list[Any]:
    """The defaults that the constructors of a class have now: older libraries replace those of named tuples."""
    functions = [one for one in (kind.__new__, kind.__init__) if isinstance(one, types.FunctionType)]
    return [item for one in functions for item in (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values())]


# Objects.


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object keeps in slots and in its dictionary."""
    kind: Any = type(value)
    found = {name: getattr(value, name) for name in _slots(kind) or () if hasattr(value, name)}
    return {**found, **without_given(value, getattr(value, "__dict__", {}))}


def shown_attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an object of a Python class; None if the class keeps them out of sight."""
    kind: Any = type(value)
    shows = _slots(kind) is not None or hasattr(value, "__dict__")
    return attributes_of(value) if "_mlir" not in kind.__module__ and shows and not _hides_state(kind) else None


@functools.lru_cache(maxsize=1024)
def _hides_state(kind: type) -> bool:
    """Whether objects of a class have more in them than slots and ``__dict__``: what C keeps there cannot be compared.

    Python asks the same before it pickles an object by its attributes.
    """
    own = object.__basicsize__ + _POINTER * len(copyreg._slotnames(kind))  # type: ignore[attr-defined]
    own += _POINTER * ((kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0))
    return kind.__basicsize__ > own and kind is not types.SimpleNamespace


@functools.lru_cache(maxsize=1024)
def _slots(kind: type) -> list[str] | None:
    """The slots of a class and its bases, by the names that Python keeps them under; None if none of them declares any."""
    declared = any("__slots__" in base.__dict__ for base in kind.__mro__)
    return list(copyreg._slotnames(kind)) if declared else None  # type: ignore[attr-defined]
