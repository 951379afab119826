"""Why a call is not in a bundle: the captured call that is nearest to it, and what differs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["differences", "explain_miss", "nearest_call"]

_SHOWN = 6
_LETTERS = 160  # of a value that differs: a class that code has made takes pages
_PYTHON = "python"  # of a call whose callable has code without a source, which is another in each version


def explain_miss(call: Mapping[str, Any], captured: Mapping[str, Mapping[str, Any]]) -> str:
    """Lines for a message; ``captured`` are the calls of a bundle by kernel."""
    nearest = nearest_call(call, captured)
    if nearest is None:
        known = sorted({str(data.get("callable")) for data in captured.values()})
        return f"  no call of it was captured; those of {', '.join(known[:_SHOWN]) or 'none'} were"
    found = differences(captured[nearest], call)
    lines = [f"  the nearest captured call is {nearest}, which differs:"]
    lines += [f"    {line}" for line in found[:_SHOWN]]
    same = [data for data in captured.values() if data.get("callable") == call["callable"]]
    python, captured_with = call.get(_PYTHON), {data[_PYTHON] for data in same if _PYTHON in data}
    if python is not None and captured_with and python not in captured_with:
        lines.insert(
            0, f"  the library generates this code: capture it with Python {python}, the version that calls it"
        )
    more = len(found) - _SHOWN
    return "\n".join([*lines, *([f"    and {more} more"] if more > 0 else [])])


def nearest_call(call: Mapping[str, Any], captured: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The kernel whose call of the same callable differs in the fewest parts; None if there is none."""
    same = {kernel: data for kernel, data in captured.items() if data.get("callable") == call["callable"]}
    return min(same, key=lambda kernel: (len(differences(same[kernel], call)), kernel)) if same else None


def differences(captured: Mapping[str, Any], call: Mapping[str, Any]) -> list[str]:
    """One line for each part that is not the same."""
    one, other = dict(_leaves(captured, "")), dict(_leaves(call, ""))
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    names.sort(key=lambda name: name != _PYTHON)
    return [f"{name}: captured {_short(one, name)}, this call {_short(other, name)}" for name in names]


def _short(leaves: Mapping[str, str], name: str) -> str:
    text = leaves.get(name, "nothing")
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}..."


def _leaves(data: Any, name: str) -> Iterable[tuple[str, str]]:
    """``attributes.threads`` and the like, with their values as text."""
    parts = _parts(data)
    if parts is None:
        yield name, data if isinstance(data, str) else json.dumps(data, sort_keys=True)
        return
    for key, value in parts.items():
        yield from _leaves(value, f"{name}.{key}" if name and key else name or key)


def _parts(data: Any) -> dict[str, Any] | None:
    """What a form holds, by names; None of one that is shown as it is."""
    if isinstance(data, Mapping):
        return dict(data)
    if not isinstance(data, list) or len(data) < 2:
        return None
    word, *held = data
    if word == "constant":
        return {"": held[0]}
    if word == "function" and all(isinstance(layer, list) for layer in held):
        return {str(number or ""): _layer(layer) for number, layer in enumerate(held)}
    if word == "dict" and all(isinstance(key, str) for key, _ in held[0]):
        return dict(held[0])
    if word == "class" and len(held) == 3:  # one that code has made: what it holds
        return {"name": held[0], "bases": held[1], **held[2]}
    return {"class": word, **held[0]} if len(held) == 1 and isinstance(held[0], Mapping) else None


def _layer(layer: list[Any]) -> Any:
    """A function by its source, what it encloses and its defaults."""
    if len(layer) < 3 or not isinstance(layer[1], Mapping):
        return layer
    return {"function": layer[0], **layer[1], "defaults": layer[2:]}
