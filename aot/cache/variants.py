"""Compiled variants as one piece: the launcher, the facts about it, and what ``--keep`` asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..compile.messages import Compiled
from . import recall
from .entries import LARGEST, EntryError, pack, read_record, record_bytes, unpack
from .store import Store

__all__ = ["KeptVariants", "PackedVariant", "pack_variant", "unpack_variant"]

_FACTS = "facts.json"
_LAUNCHER = "ll"
_ENDINGS = (_LAUNCHER, "ptx", "cubin", "mlir", "sass")


@dataclass(frozen=True)
class PackedVariant:
    """A variant as it lies in an entry: the facts, and files by the endings of their names."""

    compiled: Compiled
    files: Mapping[str, bytes]

    def write(self, launcher: Path) -> Compiled:
        """Put the files where a worker would have written them."""
        for ending, content in self.files.items():
            launcher.with_name(f"{launcher.stem}.{ending}").write_bytes(content)
        return self.compiled


@dataclass(frozen=True)
class KeptVariants:
    """The variants of one source that builds keep, and how long these took. Variants without a key are not kept."""

    store: Store | None  # None: nothing is kept
    source: str
    kinds: tuple[str, ...] = ()  # of files that are kept beside the launcher

    def restore(self, key: str, launcher: Path) -> Compiled | None:
        """Put a variant's files where a worker would have written them; None if it is not in the store."""
        if self.store is None or not key:
            return None
        limit = self.store.limit
        variant = self.store.get("variants", key, lambda content: unpack_variant(content, limit=limit))
        return variant.write(launcher) if variant is not None else None

    def keep(self, key: str, launcher: Path, compiled: Compiled) -> None:
        if self.store is not None and key:
            self.store.put("variants", key, pack_variant(launcher, compiled, self.kinds))

    def has(self, key: str) -> bool:
        return self.store is not None and self.store.has("variants", key)

    def durations(self) -> Mapping[str, float]:
        """How many seconds each variant took to compile, by architecture and variant."""
        return recall.durations(self.store, self.source) if self.store is not None else {}

    def note_durations(self, took: Mapping[str, float]) -> None:
        if self.store is not None:
            recall.keep_durations(self.store, self.source, took)


def pack_variant(launcher: Path, compiled: Compiled, kinds: Sequence[str]) -> bytes:
    """What a worker wrote beside the launcher, by the endings of the names."""
    parts = {_FACTS: record_bytes(compiled), _LAUNCHER: launcher.read_bytes()}
    for kind in kinds:
        for path in launcher.parent.glob(f"{launcher.stem}.*{kind}"):
            parts[path.name.removeprefix(f"{launcher.stem}.")] = path.read_bytes()
    return pack(parts)


def unpack_variant(content: bytes, *, limit: int = LARGEST) -> PackedVariant:
    """The inverse; :class:`EntryError` if the content is not a variant."""
    parts = unpack(content, limit=limit)
    if not {_FACTS, _LAUNCHER} <= parts.keys():
        raise EntryError(f"it holds {sorted(parts)[:8]}, not a variant")
    compiled = read_record(Compiled, parts.pop(_FACTS))
    for ending in parts:
        if not ending.endswith(_ENDINGS):
            raise EntryError(f"it holds a file that no compile writes: {ending}")
    return PackedVariant(compiled, parts)
