"""What tracing stores in the object that is called: attributes that a program may read after a compile.

Nothing is traced when a kernel is served. The plain values that were stored when the kernel was built are given to the
object. They are no part of the key of its next call: an exercise does not trace either.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

__all__ = ["decoded", "encoded", "give_stored", "without_given"]

_PLAIN = (bool, int, str, type(None))
_SEQUENCES = {"list": list, "tuple": tuple}
_given: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}  # by identity: an object may have no hash


def encoded(value: Any) -> Any:
    """A plain value, or a sequence of such, as JSON's types; :class:`ValueError` for another value."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return {"float": repr(value)}
    if kind in (list, tuple):
        return {kind.__name__: [encoded(item) for item in value]}
    raise ValueError(
        f"a {kind.__name__} is no plain value"
    )  # values of the compiler, shown when it is done, end the process


def decoded(data: Any) -> Any:
    """What :func:`encoded` was given; :class:`ValueError` if it did not write this."""
    if type(data) in _PLAIN:
        return data
    if isinstance(data, dict) and len(data) == 1:
        ((word, content),) = data.items()
        if word == "float" and isinstance(content, str):
            return float(content)
        if word in _SEQUENCES and isinstance(content, list):
            return _SEQUENCES[word](map(decoded, content))
    raise ValueError(f"{data!r} is no plain value")


def give_stored(owner: Any, values: Mapping[str, Any]) -> None:
    """Give an object the attributes that it lacks, and those that it was given for an earlier call."""
    own = getattr(owner, "__dict__", None)
    if type(own) is not dict:
        return
    theirs = without_given(owner, own)
    added = {name: decoded(data) for name, data in values.items() if name not in theirs}
    identity = id(owner)
    try:
        reference = weakref.ref(owner, lambda gone: _given.pop(identity, None))
    except TypeError:  # the next call could not tell them from the program's own
        return
    own.update(added)
    _given[identity] = reference, {**_given_to(owner), **added}


def without_given(owner: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an object that the program gave it."""
    if not _given:
        return attributes
    given = _given_to(owner)
    return {name: value for name, value in attributes.items() if name not in given or given[name] is not value}


def _given_to(owner: Any) -> dict[str, Any]:
    reference, given = _given.get(id(owner), (None, {}))
    return given if reference is not None and reference() is owner else {}
