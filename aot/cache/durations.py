"""How long variants took to compile, so that the next build begins with the longest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import keys
from .store import Store

__all__ = ["note", "recall"]


def recall(store: Store, source: str) -> dict[str, float]:
    """Seconds by architecture and variant."""
    data = store.get_json("durations", _key(source))
    return {str(name): float(seconds) for name, seconds in data.items()} if isinstance(data, dict) else {}


def note(store: Store, source: str, took: Mapping[str, float]) -> None:
    store.put_json("durations", _key(source), {**recall(store, source), **took})


def _key(source: str) -> str:
    return keys.digest_of(str(Path(source).resolve()) if Path(source).exists() else source)
