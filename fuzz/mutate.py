"""Changes to bytes and to JSON, as damage and as somebody who knows the format would make them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

__all__ = ["changed_bytes", "changed_json", "flipped", "write_anew"]

_NUMBERS = (0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1,
            1 << 63, (1 << 64) - 1)  # fmt: skip


def write_anew(path: Path, data: bytes) -> None:
    """As a new file: file systems flush a file to the disk that is cut to nothing and written again."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def flipped(data: bytes, rng: random.Random) -> bytes:
    """One bit is another."""
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def changed_bytes(data: bytes, rng: random.Random, hot: range | None = None) -> bytes:
    """One to four changes, half of them in the ``hot`` part, where headers are."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        where = hot if hot and rng.random() < 0.5 else range(len(changed))
        if not len(where):
            break
        rng.choice(_BYTE_CHANGES)(changed, min(rng.choice(where), len(changed)), rng)
    return bytes(changed)


def _flip(data: bytearray, at: int, rng: random.Random) -> None:
    if at < len(data):
        data[at] ^= 1 << rng.randrange(8)


def _set(data: bytearray, at: int, rng: random.Random) -> None:
    data[at : at + 1] = bytes([rng.randrange(256)])


def _number(data: bytearray, at: int, rng: random.Random) -> None:
    width = rng.choice((1, 2, 4, 8))
    at -= at % width
    data[at : at + width] = (rng.choice(_NUMBERS) & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def _truncate(data: bytearray, at: int, rng: random.Random) -> None:
    del data[at:]


def _remove(data: bytearray, at: int, rng: random.Random) -> None:
    del data[at : at + rng.choice((1, 4, 16, 64, 512))]


def _insert(data: bytearray, at: int, rng: random.Random) -> None:
    data[at:at] = rng.randbytes(rng.choice((1, 4, 16, 64)))


def _repeat(data: bytearray, at: int, rng: random.Random) -> None:
    data[at:at] = data[at : at + rng.choice((4, 16, 64, 256))]


def _move(data: bytearray, at: int, rng: random.Random) -> None:
    size = rng.choice((4, 16, 64))
    source = rng.randrange(len(data) + 1)
    data[at : at + size] = data[source : source + size]


_BYTE_CHANGES = (_flip, _flip, _set, _number, _number, _truncate, _remove, _insert, _repeat, _move)


def changed_json(document: bytes, rng: random.Random) -> bytes:
    """A value put somewhere, a key taken out or added, anywhere in a document; now and then bytes that are no JSON."""
    changed = json.loads(document)
    for _ in range(rng.choice((1, 1, 2))):
        changed = _changed_value(changed, rng)
    text = json.dumps(changed, ensure_ascii=rng.random() < 0.5)
    raw = text.encode("utf-8", "surrogatepass")
    return changed_bytes(raw, rng) if rng.random() < 0.2 else raw


def _changed_value(data: Any, rng: random.Random) -> Any:
    parent, key = _somewhere(data, rng)
    if parent is None:
        return _value(rng)
    how = rng.randrange(5)
    if how == 4 and isinstance(parent, dict):
        parent[rng.choice((*_NAMES, f"a/{key}", f"{key}/../{key}", f"../{key}"))] = parent.pop(key)
    elif how == 0:
        del parent[key]
    elif how == 1 and isinstance(parent, dict):
        parent[rng.choice(("", "x", "../x", "schema", "\ud800", "a" * 5000))] = _value(rng)
    elif how == 2 and isinstance(parent[key], str):
        parent[key] = changed_bytes(parent[key].encode("utf-8", "surrogatepass"), rng).decode(
            "utf-8", "surrogateescape"
        )
    else:
        parent[key] = _value(rng)
    return data


_NAMES = ("", ".", "..", "../x", "/etc/passwd", "a\\b", "a//b", "a/./b", "__init__", "x" * 300)


def _somewhere(data: Any, rng: random.Random) -> tuple[Any, Any]:
    """A list or object in a document and one of its keys; None for the document itself."""
    parent = key = None
    while isinstance(data, (dict, list)) and data and (parent is None or rng.random() < 0.85):
        parent, key = data, rng.choice(list(data) if isinstance(data, dict) else range(len(data)))
        data = parent[key]
    return (None, None) if rng.random() < 0.02 else (parent, key)


_DEEP = "[" * 300 + "]" * 300  # read anew for each use: a second change may be made inside


def _value(rng: random.Random) -> Any:
    return rng.choice((
        None, True, False, 0, -1, 1, 1.5, -0.0, float("nan"), float("inf"), 1 << 63, 10**40, "", "x", "\x00", "\ud800", "../..",
        "/etc/passwd", "a" * 10_000, [], {}, [[]], {"": {}}, [None], json.loads(_DEEP), "sm_90a", "0" * 64, rng.random(), rng.randrange(1 << 70),
    ))  # fmt: skip
