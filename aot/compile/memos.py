"""Answers that functions behind ``functools.cache`` keep: another process may have others."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

__all__ = ["stale"]

_NO_CODE = (lambda: None).__code__


def stale(function: Any) -> Iterator[str]:
    """The answers that a function keeps, if it would give others now: then no other process has these.

    Numbers and texts are compared. A function that asks for variables is called again whatever it answers, for who notes
    their names.
    """
    asks = {"environ", "getenv"} & set(getattr(function.__wrapped__, "__code__", _NO_CODE).co_names)
    for args, kwargs in list(_kept_calls(function)):
        kept = function(*args, **kwargs)
        text = _plain_text(kept)
        if not text and not asks:
            continue
        try:
            now = function.__wrapped__(*args, **kwargs)
        except Exception as error:  # a library's function may raise anything
            now = error
        if text and _plain_text(now) != text:
            yield f"{function.__qualname__} keeps the answer {kept!r}, and would answer {now!r} now"


def _kept_calls(function: Any) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """The arguments of the calls whose answers a function keeps. Only the garbage collector shows them."""
    if function.cache_parameters()["typed"]:
        return
    held = [one for one in gc.get_referents(function) if type(one) is dict and one is not vars(function)]
    for key in list(held[0]) if held else ():
        items = list(key) if type(key) is tuple else [key]
        mark = next((number for number, item in enumerate(items) if type(item) is object), len(items))
        names, values = items[mark + 1 :: 2], items[mark + 2 :: 2]
        yield items[:mark], dict(zip(names, values, strict=True))


def _plain_text(value: Any) -> str:
    """Numbers and texts, also in tuples, lists and dicts, as text; empty for other values."""
    try:
        return json.dumps([type(value).__name__, value], sort_keys=True)
    except (TypeError, ValueError):
        return ""
