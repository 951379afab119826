"""Answers that functions behind ``functools.cache`` keep: another process may have others."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

from aot_runtime.serving.reading.read_forms import ReadForms

from .names import asks_for_variables

__all__ = ["stale"]

_NO_CODE = (lambda: None).__code__


def stale(function: Any) -> Iterator[str]:
    """The answers that a function keeps, if it would give others now: then no other process has these.

    Answers that have a form are compared. So their functions are called again, for who notes what they ask; a function that
    asks for variables is called whatever it answers.
    """
    asks = asks_for_variables(getattr(function.__wrapped__, "__code__", _NO_CODE))
    for args, kwargs in list(_kept_calls(function)):
        kept = function(*args, **kwargs)
        text = _text(kept)
        if not text and not asks:
            continue
        try:
            now = function.__wrapped__(*args, **kwargs)
        except Exception as error:  # a library's function may raise anything
            now = error
        if text and _text(now) != text:
            yield f"{function.__qualname__} keeps the answer {kept!r}, and would answer {now!r} now"


def _kept_calls(function: Any) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """The arguments of the calls whose answers a function keeps. Only the garbage collector shows them."""
    size = function.cache_info().currsize  # a cache that has a limit refers to its answers, too, among them dicts
    dicts = [one for one in gc.get_referents(function) if type(one) is dict and one is not vars(function)]
    held = [one for one in dicts if len(one) == size and (_is_unlimited(function) or all(map(_is_link, one.values())))]
    is_typed = function.cache_parameters()["typed"]  # then the types of all arguments follow them
    for key in list(held[0]) if held else ():
        items = list(key) if type(key) is tuple else [key]
        mark = next((number for number, item in enumerate(items) if type(item) is object), len(items))
        count = (mark // 2 if is_typed else mark) if mark == len(items) else mark
        named = items[mark + 1 :]
        named = named[: (len(named) - count) // 3 * 2] if is_typed else named
        yield items[:count], dict(zip(named[::2], named[1::2], strict=True))


def _is_unlimited(function: Any) -> bool:
    return function.cache_parameters()["maxsize"] is None


def _is_link(item: Any) -> bool:
    """Whether an item is what a cache with a limit keeps for a call."""
    return type(item).__name__ == "_lru_list_elem"


def _text(value: Any) -> str:
    """A value by its form; empty if it has none."""
    try:
        return ReadForms().text(value, "", "")
    except Exception:  # objects may answer as they like when they are looked at
        return ""
