"""Entries of the cache: damaged ones are a miss, sealed ones write nowhere but where they belong."""

from __future__ import annotations

import os
import random
import shutil
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from aot.cache.entries import EntryError, unpack
from aot.cache.links import PackedLibrary, unpack_library
from aot.cache.recall import read_any
from aot.cache.store import Store, checked
from aot.cache.variants import PackedVariant, unpack_variant
from aot.pipeline.plan import Plan, read_plan

from .corpus import Corpus
from .engine import ACCEPTED, REFUSED, Target, Undetected
from .mutate import changed_bytes, changed_json, flipped

__all__ = ["DECODERS", "make"]

DECODERS: dict[str, Callable[[bytes], object]] = {
    "variants": unpack_variant,
    "libraries": unpack_library,
    "plans": read_plan,
    "recall": read_any,
}
_Kept = list[tuple[str, str, bytes]]  # kind, key, the file as it lies there


def make(corpus: Corpus, folder: Path) -> list[Target]:
    smallest: dict[str, list[Path]] = {}
    for entry in sorted(Store(corpus.cache).entries(), key=lambda entry: entry.size):
        smallest.setdefault(entry.kind, []).append(entry.path)
    kept = [
        (kind, path.name.partition(".")[0], path.read_bytes()) for kind, paths in smallest.items() for path in paths[:4]
    ]
    return [_damaged(kept), _sealed(kept, folder), _stored(kept, folder)]


def _damaged(kept: _Kept) -> Target:
    def case(rng: random.Random) -> str:
        kind, key, content = rng.choice(kept)
        try:
            checked(kind, key, flipped(content, rng))
        except EntryError:
            return REFUSED
        raise Undetected(f"a flipped bit in an entry of {kind}")

    return Target("damaged entries", 0.1, case)


def _sealed(kept: _Kept, folder: Path) -> Target:
    """Somebody who may write to the cache seals what he likes: it decodes or not, and names are plain."""
    plain = {key: checked(kind, key, content) for kind, key, content in kept}

    def case(rng: random.Random) -> str:
        kind, key, _ = rng.choice(kept)
        content = plain[key]
        if kind in ("variants", "libraries") and rng.random() < 0.7:
            head, _, rest = zlib.decompress(content).partition(b"\n")
            inner = b"\n".join((changed_json(head, rng), rest))  # names and sizes of the parts
            if rng.random() < 0.5:
                inner = changed_bytes(zlib.decompress(content), rng, range(200))
            content = zlib.compress(inner, 1)
        elif kind == "plans" and rng.random() < 0.9:
            content = zlib.compress(changed_json(zlib.decompress(content), rng), 1)
        else:
            content = changed_bytes(content, rng)
        try:
            if kind in ("variants", "libraries"):
                _check_plain(unpack(content))
            decoded = DECODERS[kind](content)
        except EntryError:
            return REFUSED
        _check_names(decoded)
        return ACCEPTED

    return Target("sealed entries", 0.06, case)


def _check_names(decoded: object) -> None:
    names: list[str] = []
    if isinstance(decoded, PackedLibrary):
        names = [name for name, _ in decoded.objects]
    elif isinstance(decoded, PackedVariant):
        names = [f"k.{ending}" for ending in decoded.files]
    elif isinstance(decoded, Plan):
        names = [name for one in decoded.kernels for name in (one.info.name, *(v.table.name for v in one.variants))]
    _check_plain(names)


def _check_plain(names: Iterable[str]) -> None:
    for name in names:
        if os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
            raise Undetected(f"an entry names {name!a}")


def _stored(kept: _Kept, folder: Path) -> Target:
    """Through files: what comes out of a store whose entry was altered is nothing, or the whole entry."""
    root = folder / "store"

    def case(rng: random.Random) -> str:
        kind, key, content = rng.choice(kept)
        shutil.rmtree(root, ignore_errors=True)
        path = root / kind / key[:2] / f"{key}.entry"
        path.parent.mkdir(parents=True)
        altered = changed_bytes(content, rng)
        path.write_bytes(altered)
        found = Store(root).get(kind, key, DECODERS[kind])
        if found is not None and altered != content:
            raise Undetected(f"an altered entry of {kind} was used")
        return REFUSED if found is None else ACCEPTED

    return Target("stored entries", 0.003, case)
