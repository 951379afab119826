"""Frozen dataclasses to JSON and back, by their type hints. For our own files and pipes alone."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin

from aot_runtime.arch import Arch

__all__ = ["decode", "encode"]

_T = TypeVar("_T")


def encode(value: Any) -> Any:
    """A structure of dataclasses, tuples and mappings as JSON's own types."""
    if isinstance(value, Arch):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def decode(kind: type[_T], data: Any) -> _T:
    """The inverse of :func:`encode`."""
    return typing.cast(_T, _decoder(typing.cast(Any, kind))(data))


@cache  # type hints take long to look at, and bundles have thousands of variants
def _decoder(kind: Any) -> Callable[[Any], Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Arch:
        return Arch.parse
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return lambda data: kind(**{name: read(data[name]) for name, read in _fields(kind)})
    if origin is tuple:
        return _tuple_decoder(arguments)
    if origin in (Union, types.UnionType):
        read = _decoder(next(item for item in arguments if item is not type(None)))
        return lambda data: None if data is None else read(data)
    if origin is not None and issubclass(origin, Mapping):
        read = _decoder(arguments[1])
        return lambda data: {key: read(value) for key, value in data.items()}
    return lambda data: data


@cache
def _fields(kind: type) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, _decoder(hints[field.name])) for field in dataclasses.fields(kind))


def _tuple_decoder(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    if arguments[-1:] == (...,):
        each = _decoder(arguments[0])
        return lambda data: tuple(map(each, data))
    decoders = [_decoder(item) for item in arguments]
    return lambda data: tuple(read(value) for read, value in zip(decoders, data, strict=True))
