"""Compiled variants as one piece: the launcher, the facts about it, and what ``--keep`` asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..compile.messages import Compiled
from ..records import decode, encode
from .store import Store, pack, unpack

__all__ = ["keep_variant", "pack_variant", "restore_variant", "unpack_variant"]

_FACTS = "facts.json"


def keep_variant(store: Store, key: str, launcher: Path, compiled: Compiled, kinds: Sequence[str]) -> bool:
    return store.put("variants", key, pack_variant(launcher, compiled, kinds))


def restore_variant(store: Store, key: str, launcher: Path) -> Compiled | None:
    """Put a variant's files where a worker would have written them; None where it is not there."""
    kept = store.get("variants", key)
    return unpack_variant(kept, launcher) if kept is not None else None


def pack_variant(launcher: Path, compiled: Compiled, kinds: Sequence[str]) -> bytes:
    """What a worker wrote beside the launcher, by the endings of the names."""
    parts = {_FACTS: json.dumps(encode(compiled)).encode(), "ll": launcher.read_bytes()}
    for kind in kinds:
        for path in launcher.parent.glob(f"{launcher.stem}.*{kind}"):
            parts[path.name.removeprefix(f"{launcher.stem}.")] = path.read_bytes()
    return pack(parts)


def unpack_variant(content: bytes, launcher: Path) -> Compiled:
    """The inverse: put the files where the worker would have written them."""
    parts = unpack(content)
    facts = json.loads(parts.pop(_FACTS))
    for ending, part in parts.items():
        launcher.with_name(f"{launcher.stem}.{ending}").write_bytes(part)
    return decode(Compiled, facts)
