"""What ``--json`` prints: each command lists its keys with their types, and ``docs/reference/json.md`` shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Key"]


@dataclass(frozen=True)
class Key:
    """A key of the one JSON object that a command prints.

    ``kind`` is the type of its value: ``str``, ``int``, ``float``, ``bool``, ``Any``, a record, ``tuple[X, ...]`` for a
    list, ``Mapping[str, X]`` for an object whose keys are names, and ``X | None``. A record is a dataclass, a value of
    ``aot_runtime`` or a TypedDict; the comment beside a field says what the field means.
    """

    name: str
    kind: Any
    meaning: str
    only: str = ""  # the option with which alone the key is there; empty: it always is
