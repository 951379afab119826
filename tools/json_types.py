"""The types of what ``--json`` prints: how the reference writes them, and whether a value is of one.

A record is a dataclass, a ``Value`` of ``aot_runtime`` or a TypedDict. What a field means is the comment beside it.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from aot_runtime.arch import Arch
from aot_runtime.values import Value

from aot.cli.schema import Key

__all__ = ["Field", "fields", "mismatches", "problems", "records", "type_text"]

_PLAIN: dict[Any, tuple[str, tuple[type, ...]]] = {
    str: ("string", (str,)),
    int: ("integer", (int,)),
    float: ("number", (int, float)),
    bool: ("boolean", (bool,)),
    Arch: ("string", (str,)),
    type(None): ("null", (type(None),)),
}


@dataclass(frozen=True)
class Field:
    """A key of a record."""

    name: str
    kind: Any
    meaning: str  # empty: nobody wrote it down
    required: bool  # whether the key is always there


def _is_record(kind: Any) -> bool:
    is_class = isinstance(kind, type) and get_origin(kind) is None
    return (
        is_class
        and kind not in _PLAIN
        and (dataclasses.is_dataclass(kind) or issubclass(kind, Value) or typing.is_typeddict(kind))
    )


def fields(kind: Any) -> list[Field]:
    """The keys that a record has as JSON, in the order that they are printed in."""
    hints, meanings = typing.get_type_hints(kind), _meanings(kind)
    if typing.is_typeddict(kind):
        names, optional = list(hints), kind.__optional_keys__
    else:
        own = (
            dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else inspect.signature(kind).parameters.values()
        )
        names, optional = [field.name for field in own], frozenset()
    return [Field(name, hints[name], meanings.get(name, ""), name not in optional) for name in names]


def _meanings(kind: Any) -> dict[str, str]:
    """The comments beside the fields of a record, those of its bases included."""
    found: dict[str, str] = {}
    for part in reversed([part for part in kind.__mro__ if _is_record(part)]):
        lines = re.findall(r"^    (\w+): [^#\n]*?  # (.*)$", inspect.getsource(part), re.MULTILINE)
        found.update(lines)
    return found


def records(kinds: Sequence[Any]) -> dict[str, Any]:
    """Every record that values of those types hold, by name."""
    found: dict[str, Any] = {}
    pending = list(kinds)
    while pending:
        kind = pending.pop(0)
        if _is_record(kind):
            if found.setdefault(kind.__name__, kind) is not kind:
                raise LookupError(f"two records are called {kind.__name__}")
            pending += [field.kind for field in fields(kind) if not _is_known(field.kind, found)]
        else:
            pending += [part for part in get_args(kind) if part is not ...]
    return dict(sorted(found.items()))


def _is_known(kind: Any, found: Mapping[str, Any]) -> bool:
    return _is_record(kind) and found.get(kind.__name__) is kind


def type_text(kind: Any, page: str = "") -> str:
    """How the reference writes a type; records are links to ``page``."""
    if kind is Any:
        return "any value"
    if kind in _PLAIN:
        return _PLAIN[kind][0]
    if _is_record(kind):
        return f"[{kind.__name__}]({page}#{kind.__name__.lower()})"
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(part, page) for part in arguments)
    if origin in (tuple, list):
        return f"list of {_items_text(arguments, page)}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"object of {type_text(arguments[1], page)}"
    raise LookupError(f"{kind} is not a type of JSON")


def _items_text(arguments: tuple[Any, ...], page: str) -> str:
    if _is_long(arguments):
        inner = type_text(arguments[0], page)
        return f"({inner})" if " or " in inner else inner
    return f"{len(arguments)} ({', '.join(type_text(part, page) for part in arguments)})"


def _is_long(arguments: tuple[Any, ...]) -> bool:
    """Whether a list has any number of items: ``tuple[X, ...]`` and ``list[X]``; ``tuple[X]`` is not used."""
    return len(arguments) == 1 or arguments[-1] is ...


def mismatches(kind: Any, value: Any, where: str) -> Iterator[str]:
    """In what a value is not of that type; every key that is missing or not listed counts."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if kind in _PLAIN:
        accepted = _PLAIN[kind][1]
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            yield f"{where} is {value!r}, not {_PLAIN[kind][0]}"
    elif _is_record(kind):
        yield from _record_mismatches(kind, value, where)
    elif origin in (Union, types.UnionType):
        found = [list(mismatches(part, value, where)) for part in arguments]
        if all(found):
            yield from min(found, key=len)
    elif origin in (tuple, list):
        yield from _list_mismatches(arguments, value, where)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            yield f"{where} is {value!r}, not an object"
        else:
            for name, item in value.items():
                yield from mismatches(arguments[1], item, f"{where}.{name}")
    else:
        raise LookupError(f"{kind} is not a type of JSON")


def _record_mismatches(kind: Any, value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is {value!r}, not an object"
        return
    known = {field.name: field for field in fields(kind)}
    for name in value.keys() - known.keys():
        yield f"{where}.{name} is not listed"
    for name, field in known.items():
        if name in value:
            yield from mismatches(field.kind, value[name], f"{where}.{name}")
        elif field.required:
            yield f"{where}.{name} is missing"


def _list_mismatches(arguments: tuple[Any, ...], value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{where} is {value!r}, not a list"
        return
    kinds = [arguments[0]] * len(value) if _is_long(arguments) else list(arguments)
    if len(kinds) != len(value):
        yield f"{where} has {len(value)} items, not {len(kinds)}"
        return
    for at, (kind, item) in enumerate(zip(kinds, value, strict=True)):
        yield from mismatches(kind, item, f"{where}[{at}]")


def problems(data: Any, keys: Sequence[Key], *, partly: bool = False) -> list[str]:
    """In what an object is not what a command lists; ``partly``: keys that depend on options may be missing."""
    if not isinstance(data, dict):
        return [f"expected an object, got {data!r}"]
    listed: dict[str, list[Key]] = {}
    for key in keys:
        listed.setdefault(key.name, []).append(key)
    found = [f"{name} is not listed" for name in data.keys() - listed.keys()]
    for name, own in listed.items():
        if name in data:
            kinds = Union[tuple(key.kind for key in own)]  # noqa: UP007 - how many there are is not known here
            found += mismatches(kinds, data[name], name)
        elif not (partly and all(key.only for key in own)):
            found.append(f"{name} is missing")
    return found
