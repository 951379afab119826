"""Whether a JSON object is what ``docs/reference/cli.md`` says: the keys that are listed, of the types that are listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aot.cli.schema import Key

__all__ = ["problems"]

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
}


def problems(data: Any, keys: Sequence[Key], *, partly: bool = False) -> list[str]:
    """What differs; ``partly``: keys that depend on options may be missing."""
    if not isinstance(data, dict):
        return [f"expected an object, got {data!r}"]
    needed = {key.name for key in keys if not (partly and key.only)}
    found = [f"{name} is not listed" for name in data.keys() - {key.name for key in keys}]
    found += [f"{name} is missing" for name in needed - data.keys()]
    return found + [f"{key.name} is {data[key.name]!r}, not {key.kind}" for key in keys if not _fits(data, key)]


def _fits(data: dict[str, Any], key: Key) -> bool:
    if key.name not in data:
        return True
    return any(_is(data[key.name], kind) for kind in key.kind.split(" or "))


def _is(value: Any, kind: str) -> bool:
    if kind == "null":
        return value is None
    if kind.startswith("list of "):
        return isinstance(value, list) and all(_is(item, kind.removeprefix("list of ")) for item in value)
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
