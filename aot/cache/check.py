"""Reading every entry of a store, as a build would, to find those that are damaged or not to be trusted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from .links import unpack_library
from .recall import read_any
from .store import Entry, Store
from .variants import unpack_variant

__all__ = ["Findings", "check"]


Decoder = Callable[[bytes], object]


@dataclass(frozen=True)
class Findings:
    damaged: tuple[Entry, ...]
    untrusted: tuple[Entry, ...]


def check(store: Store, read_plan: Decoder) -> Findings:
    """Remove what is damaged. What is not trusted may serve its owner, and stays. Plans are the pipeline's to read."""
    decoders = {**_decoders(store.limit), "plans": read_plan}
    entries = list(store.entries())
    untrusted = tuple(entry for entry in entries if not store.is_trusted(entry))
    damaged = tuple(
        entry for entry in entries if entry not in untrusted and not store.is_sound(entry, decoders.get(entry.kind))
    )
    for entry in damaged:
        with suppress(OSError):  # gone, or in a folder of another user
            entry.path.unlink()
    return Findings(damaged, untrusted)


def _decoders(limit: int) -> dict[str, Decoder]:
    return {
        "variants": partial(unpack_variant, limit=limit),
        "libraries": partial(unpack_library, limit=limit),
        "recall": read_any,
    }
