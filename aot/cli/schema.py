"""What ``--json`` prints: each command lists its keys, and ``docs/reference/cli.md`` shows them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Key"]


@dataclass(frozen=True)
class Key:
    """A key of the one JSON object that a command prints.

    ``kind`` is ``string``, ``number``, ``boolean``, ``object`` or ``list of`` one of these; ``or null`` may follow.
    """

    name: str
    kind: str
    meaning: str
    only: str = ""  # the option with which alone the key is there; empty: it always is
