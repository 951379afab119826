"""What is inside an entry of the cache: named parts, one record as JSON, or one that writes what repeats once.

Everyone who may write to a cache may have written an entry. So every entry passes one of the decoders here before
anything is done with it: names are plain file names, sizes add up, records have the fields and types that they
should, and unpacked content is bounded. What does not pass is an :class:`EntryError`, which the store turns into a
miss.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ..records import RecordError, decode, encode

__all__ = [
    "LARGEST",
    "EntryError",
    "as_record",
    "entry_limit",
    "pack",
    "read_record",
    "read_shared",
    "record_bytes",
    "shared_bytes",
    "unpack",
]

LARGEST = 256 << 20  # bytes of one entry, unpacked; the largest library of the shipped kernels has 8 MB

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,254}")
_T = TypeVar("_T")


def entry_limit(memory: int | None) -> int:
    """The largest entry for a build that is limited to this much memory in all; None is no limit."""
    return LARGEST if memory is None else min(LARGEST, memory // 8)


class EntryError(ValueError):
    """The content of an entry is not what a build writes."""


def pack(parts: Mapping[str, bytes]) -> bytes:
    """Several named parts as one entry; the same parts give the same bytes."""
    assert all(map(_NAME.fullmatch, parts)), list(parts)
    head = json.dumps({name: len(parts[name]) for name in sorted(parts)}).encode()
    return zlib.compress(b"\n".join((head, b"".join(parts[name] for name in sorted(parts)))), level=1)


def unpack(content: bytes, *, limit: int = LARGEST) -> dict[str, bytes]:
    """The inverse of :func:`pack`. Takes no more memory than about twice the limit, whatever the content."""
    head, _, rest = _inflate(content, limit).partition(b"\n")
    parts, at = {}, 0
    for name, size in _sizes(head):
        parts[name] = rest[at : at + size]
        at += size
    if at != len(rest):
        raise EntryError(f"its parts need {at} bytes, but it has {len(rest)}")
    return parts


def _inflate(content: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(content, limit + 1)
    except zlib.error as error:
        raise EntryError(f"it cannot be unpacked: {error}") from None
    if len(plain) > limit:
        raise EntryError(f"it unpacks to more than {limit} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise EntryError("it is not one whole stream of zlib")
    return plain


def _sizes(head: bytes) -> Iterator[tuple[str, int]]:
    for name, size in read_record(dict[str, int], head).items():
        if not _NAME.fullmatch(name):
            raise EntryError(f"{name[:80]!a} is not a plain file name")
        if size < 0:
            raise EntryError(f"{name} has {size} bytes")
        yield name, size


def record_bytes(record: Any) -> bytes:
    """A record as an entry."""
    return _dumps(encode(record)).encode()


_dumps = json.JSONEncoder(separators=(",", ":")).encode


def read_record(kind: type[_T], content: bytes) -> _T:
    """The inverse of :func:`record_bytes`."""
    try:
        data = json.loads(content)
    except ValueError as error:
        raise EntryError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise EntryError("it is nested too deeply") from None
    return as_record(kind, data)


def shared_bytes(encoded: Any) -> bytes:
    """An encoded record as an entry that holds each object and list once, however often it occurs: a list of nodes.

    In a node, ``[7]`` stands for the node of that number. Each node comes after those that it holds; the last one is
    the record.
    """
    nodes: list[Any] = []
    numbers: dict[str, tuple[int]] = {}  # by what a node looks like; JSON writes a tuple as a list

    def share(value: Any) -> Any:
        """What stands for a value in the node that holds it."""
        if type(value) is dict:
            node: Any = {name: share(item) if type(item) in _HOLDERS else item for name, item in value.items()}
        elif type(value) is list:
            node = [share(item) if type(item) in _HOLDERS else item for item in value]
        else:
            return value
        number = numbers.setdefault(repr(node), (len(nodes),))
        if number[0] == len(nodes):
            nodes.append(node)
        return number

    share(encoded)
    return zlib.compress(_dumps(nodes).encode(), level=6)


def read_shared(kind: type[_T], content: bytes, *, limit: int = LARGEST) -> _T:
    """The inverse of :func:`shared_bytes`. What is written once may be held often: the whole is bounded, too."""
    values: list[Any] = []
    sizes: list[int] = []  # how many objects, lists and plain values each is made of
    for node in read_record(tuple[Any, ...], _inflate(content, limit)):
        if type(node) not in _HOLDERS:
            raise EntryError("one of its parts is neither an object nor a list")
        items = node.values() if type(node) is dict else node
        held = [_number(item, len(values)) for item in items if type(item) in _HOLDERS]
        sizes.append(1 + len(items) + sum(sizes[number] for number in held))
        if sizes[-1] * _LEAST_BYTES > limit:
            raise EntryError(f"it unpacks to more than {limit} bytes")
        values.append(_whole(node, values))
    return as_record(kind, values[-1] if values else None)


_HOLDERS = frozenset({dict, list})
_LEAST_BYTES = 2  # that a value takes as JSON, with its comma


def _number(item: Any, known: int) -> int:
    if type(item) is not list or len(item) != 1 or type(item[0]) is not int or not 0 <= item[0] < known:
        raise EntryError("one of its parts is not there")
    return int(item[0])


def _whole(node: Any, values: list[Any]) -> Any:
    if type(node) is dict:
        return {name: values[item[0]] if type(item) is list else item for name, item in node.items()}
    return [values[item[0]] if type(item) is list else item for item in node]


def as_record(kind: type[_T], data: Any) -> _T:
    """A record out of what was read as JSON."""
    try:
        return decode(kind, data)
    except RecordError as error:
        raise EntryError(f"it is not a record: {error}") from None
