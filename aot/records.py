"""Frozen dataclasses to JSON and back, by their type hints. For our own files and pipes alone."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
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
    return typing.cast(_T, _decode(kind, data))


def _decode(kind: Any, data: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Arch:
        return Arch.parse(data)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: _decode(hints[field.name], data[field.name]) for field in dataclasses.fields(kind)})
    if origin is tuple:
        kinds = [arguments[0]] * len(data) if arguments[-1:] == (...,) else arguments
        return tuple(_decode(item, value) for item, value in zip(kinds, data, strict=True))
    if origin in (Union, types.UnionType):
        return None if data is None else _decode(next(item for item in arguments if item is not type(None)), data)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _decode(arguments[1], value) for key, value in data.items()}
    return data
