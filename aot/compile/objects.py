"""Recorded objects, rebuilt from data: the reader of what ``aot_runtime/serving/objects.py`` writes."""

from __future__ import annotations

import base64
import functools
import importlib
import operator
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import DeclarationError

__all__ = ["rebuilt", "trust"]


class _Trust:
    """Whether pickles may be loaded in this process."""

    given = False


def trust(given: bool) -> None:
    """Say whether pickles of a recording may be loaded: who wrote one chooses what runs."""
    _Trust.given = given


def rebuilt(data: Mapping[str, Any]) -> Any:
    """An object that was recorded. What has a name is imported; no code of the record's own runs, unless it is a pickle."""
    (kind,) = data.keys() - _BESIDE
    return _REBUILD[kind](data)


def _named(data: Mapping[str, Any]) -> Any:
    module, _, path = data["name"].partition(":")
    return operator.attrgetter(path)(importlib.import_module(module))


def _each(data: Mapping[str, Any]) -> Any:
    (items,) = data.values()
    return [rebuilt(item) for item in items]


def _object(data: Mapping[str, Any]) -> Any:
    made = object.__new__(_named({"name": data["class"]}))
    for name, item in data["attributes"].items():
        object.__setattr__(made, name, rebuilt(item))  # frozen dataclasses have a `__setattr__` of their own
    return made


def _unpickled(data: Mapping[str, Any]) -> Any:
    if not _Trust.given:
        raise DeclarationError(
            "a recorded call holds a pickle, and reading a pickle executes code of its author",
            hint="pass `--trust` if you recorded the calls yourself; `pickled` in its file names what could not be written as data",
        )
    return pickle.loads(base64.b64decode(data["pickle"]))


_BESIDE = frozenset({"class", "of"})
_REBUILD: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "plain": lambda data: data["plain"],
    "float": lambda data: float(data["float"]),
    "bytes": lambda data: bytes.fromhex(data["bytes"]),
    "list": _each,
    "tuple": lambda data: tuple(_each(data)),
    "set": lambda data: set(_each(data)),
    "frozenset": lambda data: frozenset(_each(data)),
    "dict": lambda data: {rebuilt(key): rebuilt(item) for key, item in data["dict"]},
    "name": _named,
    "partial": lambda data: _partial(*_each(data)),
    "method": lambda data: getattr(rebuilt(data["method"]), data["of"]),
    "fields": lambda data: _named({"name": data["class"]})._make(map(rebuilt, data["fields"])),
    "attributes": _object,
    "pickle": _unpickled,
}


def _partial(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> functools.partial[Any]:
    return functools.partial(function, *args, **keywords)
