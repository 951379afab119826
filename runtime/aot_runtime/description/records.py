"""Reading records from files that nobody vouches for, and the records of files and hosts.

Everything that is read is checked field by field. Whatever is wrong is a :class:`ManifestError` that names the place.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from keyword import iskeyword
from posixpath import normpath
from stat import S_ISREG
from typing import Any

from ..errors import AotError, ManifestError
from ..values import Value

__all__ = [
    "FILES_NAME",
    "FILE_NAME",
    "HEX",
    "INDEX_NAMES",
    "KERNELS_NAME",
    "MAX_COUNT",
    "PROTOCOL",
    "PROVENANCE_NAME",
    "SCHEMA",
    "FileRecord",
    "HostRecord",
    "Reader",
    "check_inside",
    "file_record",
    "is_name",
    "parse_json",
    "read_bounded",
    "read_name",
    "shown",
]

SCHEMA = 2
PROTOCOL = 1007  # of entry libraries with loaders: 1000 * major + minor
FILE_NAME = "manifest.json"
KERNELS_NAME, FILES_NAME, PROVENANCE_NAME = "kernels.json", "files.json", "provenance.json"
INDEX_NAMES = (KERNELS_NAME, FILES_NAME, PROVENANCE_NAME)
MAX_FILE_BYTES = 1 << 40
MAX_COUNT = 1 << 31

HEX = frozenset("0123456789abcdef")
_AGAIN_HINT = "the bundle was altered or copied incompletely: build or install it again"


class FileRecord(Value):
    """The digest and size of a file."""

    __slots__ = ("sha256", "size")

    sha256: str  # 64 hexadecimal digits
    size: int  # in bytes

    def __init__(self, sha256: str, size: int) -> None:
        self._set(sha256=sha256, size=size)

    @classmethod
    def of(cls, content: bytes) -> FileRecord:
        return cls(hashlib.sha256(content).hexdigest(), len(content))

    def data(self) -> dict[str, Any]:
        return {"sha256": self.sha256, "size": self.size}


class HostRecord(Value):
    """The libraries of one host. ``file`` describes the entry library; a bundle under construction has none yet."""

    __slots__ = ("cudart", "entry", "file", "glibc", "support")

    entry: str  # path of the entry library inside the bundle
    support: str  # path of the library with NVIDIA's launch support
    glibc: str  # lowest version to run on
    cudart: str  # "static", or the library that must be present
    file: FileRecord | None  # digest and size of the entry library

    def __init__(self, entry: str, support: str, glibc: str, cudart: str, file: FileRecord | None = None) -> None:
        self._set(entry=entry, support=support, glibc=glibc, cudart=cudart, file=file)


# Reading files.


def read_bounded(path: str, most: int, error: type[AotError]) -> bytes:
    """The content of a regular file of at most that size. A missing one raises ``FileNotFoundError`` for the manifest."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        if path.endswith(f"/{FILE_NAME}"):
            raise FileNotFoundError(path) from None
        raise error(f"`{path}` is missing", hint=_AGAIN_HINT) from None
    except OSError as problem:
        raise error(f"cannot read `{path}`: {problem.strerror}", hint=_readable(problem)) from None
    except ValueError as problem:  # a zero byte in the path
        raise error(f"cannot read {path!r}: {problem}") from None
    try:
        return _read_open(descriptor, path, most, error)
    except OSError as problem:
        raise error(f"cannot read `{path}`: {problem.strerror}", hint=_readable(problem)) from None
    finally:
        with suppress(OSError):  # it was read: a file system that fails now changes nothing
            os.close(descriptor)


def _readable(problem: OSError) -> str | None:
    """The next step if a file cannot be read."""
    return "change its permissions" if isinstance(problem, PermissionError) else None


def _read_open(descriptor: int, path: str, most: int, error: type[AotError]) -> bytes:
    facts = os.fstat(descriptor)
    if not S_ISREG(facts.st_mode):
        raise error(f"`{path}` is not a regular file", hint=_AGAIN_HINT)
    if facts.st_size > most:
        raise error(f"`{path}` is larger than {most} bytes")
    parts = []
    left = most + 1
    while left > 0 and (part := os.read(descriptor, min(left, facts.st_size + 1))):
        parts.append(part)
        left -= len(part)
    if left <= 0:
        raise error(f"`{path}` is larger than {most} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_json(content: bytes, place: str) -> Any:
    """JSON of a file; whatever is wrong with it is a :class:`ManifestError`."""
    try:
        data = _decode(content.decode())
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{place} is not valid JSON: {error}", hint=_AGAIN_HINT) from None
    if _may_be_deeper(content) and _is_deeper(data, _MOST_NESTED):
        raise ManifestError(f"{place} is nested more than {_MOST_NESTED} deep", hint=_AGAIN_HINT)
    return data


_MOST_NESTED = 64  # what writes, compares and prints such data calls itself for each level


def _may_be_deeper(content: bytes) -> bool:
    """Whether brackets are left when the innermost have been taken away that often. Those in strings count too."""
    brackets = content.translate(None, _NO_BRACKETS)
    for _ in range(_MOST_NESTED):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _is_deeper(data: Any, levels: int) -> bool:
    if levels == 0:
        return True
    inner = data.values() if type(data) is dict else data if type(data) is list else ()
    return any(_is_deeper(item, levels - 1) for item in inner if type(item) in _NESTING)


_NESTING = frozenset({dict, list})


def _integer(text: str) -> int:
    # Python takes a time that grows with the square of the length.
    if len(text) > 20:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


_decode = json.JSONDecoder(parse_int=_integer).decode  # json.loads would make a decoder for each file


# Checking what was read.


class Reader:
    """Takes typed fields out of parsed JSON, naming the place of whatever is wrong."""

    __slots__ = ("data", "where")

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise ManifestError(f"{where}: expected an object, got {type(data).__name__}", hint=_AGAIN_HINT)
        self.data: dict[str, Any] = data
        self.where = where

    def get(self, key: str, kind: type, default: Any = ...) -> Any:
        value = self.data.get(key, default)
        if value is ...:
            raise ManifestError(f"{self.where}: `{key}` is missing", hint=_AGAIN_HINT)
        if value is not default:
            if type(value) is not kind:
                raise ManifestError(
                    f"{self.where}: `{key}` is {shown(value)}, of type {type(value).__name__}", hint=_AGAIN_HINT
                )
            if isinstance(value, str) and not _is_text(value):
                raise ManifestError(f"{self.where}: `{key}` is {value!r}, which is not text", hint=_AGAIN_HINT)
        return value

    def number(self, key: str, most: int, least: int = 0) -> int:
        value: int = self.get(key, int)
        if not least <= value <= most:
            raise ManifestError(f"{self.where}: `{key}` is {value}", hint=_AGAIN_HINT)
        return value

    def inner(self, key: str) -> Reader:
        return Reader(self.get(key, dict), f"{self.where}: {key}")

    def each(self, key: str) -> list[Reader]:
        items = self.get(key, list, [])
        return [Reader(item, f"{self.where}: {key}[{i}]") for i, item in enumerate(items)]

    def table(self, key: str) -> dict[str, Reader]:
        items = self.get(key, dict)
        return {name: Reader(item, f"{self.where}: {key}.{name!a}") for name, item in items.items()}

    def texts(self, key: str) -> tuple[str, ...]:
        items = self.get(key, list, [])
        if not all(type(item) is str and _is_text(item) for item in items):
            raise ManifestError(f"{self.where}: `{key}` must be a list of strings", hint=_AGAIN_HINT)
        return tuple(items)

    def text_table(self, key: str) -> dict[str, str]:
        items = self.get(key, dict, {})
        for name, item in items.items():
            if not (isinstance(item, str) and _is_text(item) and _is_text(name)):
                raise ManifestError(f"{self.where}: {key}.{name!a} is {shown(item)}, not text", hint=_AGAIN_HINT)
        return dict(items)


def _is_text(text: str) -> bool:
    """Whether a string can be written as UTF-8: JSON can spell halves of characters."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def shown(value: Any) -> str:
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def is_name(text: str) -> bool:
    """Whether a bundle, a kernel or a function may be called so."""
    return text.isascii() and text.isidentifier() and not text.startswith("_") and not iskeyword(text)


def read_name(name: str, reader: Reader) -> str:
    if not is_name(name):
        raise ManifestError(f"{reader.where}: {name!a} is not a name", hint=_AGAIN_HINT)
    return name


def file_record(record: Reader) -> FileRecord:
    return FileRecord(_digest(record, "sha256"), record.number("size", MAX_FILE_BYTES))


def _digest(record: Reader, key: str) -> str:
    digest: str = record.get(key, str)
    if len(digest) != 64 or not HEX.issuperset(digest):
        raise ManifestError(f"{record.where}: {shown(digest)} is not a SHA-256", hint=_AGAIN_HINT)
    return digest


def check_inside(name: str, record: Reader) -> None:
    plain = name.isprintable() and "\\" not in name and normpath(name) == name
    if not plain or name.startswith(("/", "../")) or name in ("", ".", ".."):
        raise ManifestError(f"{record.where}: the path leaves the bundle", hint=_AGAIN_HINT)
