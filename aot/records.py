"""Records to JSON and back, by their type hints: frozen dataclasses, and the values of ``aot_runtime``.

One codec serves every record that the builder writes: details, messages of workers, entries of the cache. Decoding
checks each field. Fields that a record does not have are passed over, so that a later version may add some.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin

from aot_runtime.arch import Arch, ArchError
from aot_runtime.values import Value

__all__ = ["RecordError", "decode", "encode"]

_T = TypeVar("_T")
_Decoder = Callable[[Any], Any]
_PLAIN = frozenset({str, int, float, bool, type(None)})
_NUMBERS = {int: frozenset({int}), float: frozenset({float, int})}  # what is accepted for them


class RecordError(ValueError):
    """What was read is not a record of that type."""


def encode(value: Any) -> Any:
    """A structure of records, tuples and mappings as JSON's own types."""
    kind = type(value)
    return value if kind in _PLAIN else _encoder(typing.cast(Any, kind))(value)


@cache  # the thousands of variants of a bundle have records of few types
def _encoder(kind: Any) -> Callable[[Any], Any]:
    if issubclass(kind, Arch):
        return str
    if issubclass(kind, Value):
        return _record_encoder(tuple(inspect.signature(kind).parameters))
    if dataclasses.is_dataclass(kind):
        return _record_encoder(tuple(field.name for field in dataclasses.fields(kind)))
    if issubclass(kind, Mapping):
        return lambda value: {str(key): encode(item) for key, item in value.items()}
    if issubclass(kind, (tuple, list)):
        return lambda value: list(map(encode, value))
    return lambda value: value


def _record_encoder(names: tuple[str, ...]) -> Callable[[Any], Any]:
    return lambda value: {name: encode(getattr(value, name)) for name in names}


def decode(kind: type[_T], data: Any) -> _T:
    """The inverse of :func:`encode`; :class:`RecordError` names the place of what is wrong."""
    return typing.cast(_T, _decoder(typing.cast(Any, kind))(data))


@cache  # type hints take long to look at
def _decoder(kind: Any) -> _Decoder:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Arch:
        return _arch
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, Value)):
        return _record_decoder(kind)
    if origin is tuple:
        return _tuple_decoder(arguments)
    if origin in (Union, types.UnionType):
        return _optional_decoder(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_decoder(arguments[1])
    return _checked(kind) if kind is not Any else lambda data: data


def _checked(kind: type) -> _Decoder:
    accepted = _NUMBERS.get(kind, frozenset({kind}))

    def read(data: Any) -> Any:
        if type(data) not in accepted or (kind is str and not (data.isascii() or _is_text(data))):
            raise RecordError(f"expected {kind.__name__}, got {_shown(data)}")
        return data

    return read


def _is_text(data: str) -> bool:
    """Whether a string can be written as UTF-8: JSON can spell halves of characters."""
    return not any("\ud800" <= letter <= "\udfff" for letter in data)


def _shown(data: Any) -> str:
    text = ascii(data)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _arch(data: Any) -> Arch:
    try:
        return Arch.parse(data if isinstance(data, str) else ascii(data))
    except ArchError as error:
        raise RecordError(error.message) from None


def _record_decoder(kind: type) -> _Decoder:
    @cache  # a record may hold records of its own type: its fields are looked at when the first is read
    def fields() -> tuple[tuple[str, _Decoder, bool], ...]:
        return _fields(kind)

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise RecordError(f"expected {kind.__name__}, got {_shown(data)}")
        values = {}
        for name, read_field, has_default in fields():
            if name in data:
                try:
                    values[name] = read_field(data[name])
                except RecordError as error:
                    raise RecordError(f"{name}: {error}") from None
            elif not has_default:
                raise RecordError(f"`{name}` is missing")
        return kind(**values)

    return read


def _fields(kind: type) -> tuple[tuple[str, _Decoder, bool], ...]:
    hints = typing.get_type_hints(kind)
    if issubclass(kind, Value):
        parameters = inspect.signature(kind).parameters.values()
        return tuple((p.name, _decoder(hints[p.name]), p.default is not p.empty) for p in parameters)
    missing = dataclasses.MISSING
    return tuple(
        (field.name, _decoder(hints[field.name]), (field.default, field.default_factory) != (missing, missing))
        for field in dataclasses.fields(typing.cast(Any, kind))
    )


def _optional_decoder(arguments: tuple[Any, ...]) -> _Decoder:
    kinds = [item for item in arguments if item is not type(None)]
    assert len(kinds) == 1, f"a record may hold None or one type, not {arguments}"
    read = _decoder(kinds[0])
    return lambda data: None if data is None else read(data)


def _mapping_decoder(kind: Any) -> _Decoder:
    each = _decoder(kind)

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise RecordError(f"expected an object, got {_shown(data)}")
        return {key: each(value) for key, value in data.items()}

    return read


def _tuple_decoder(arguments: tuple[Any, ...]) -> _Decoder:
    is_long = arguments[-1:] == (...,)
    decoders = [_decoder(item) for item in arguments if item is not ...]
    each = decoders[0] if is_long else None
    numbers = _NUMBERS.get(arguments[0]) if is_long else None

    def read(data: Any) -> Any:
        if type(data) is not list:
            raise RecordError(f"expected a list, got {_shown(data)}")
        if numbers is not None and numbers.issuperset(map(type, data)):
            return tuple(data)  # a table has hundreds of thousands
        if each is not None:
            return tuple(map(each, data))
        if len(data) != len(decoders):
            raise RecordError(f"expected {len(decoders)} items, got {len(data)}")
        return tuple(read(value) for read, value in zip(decoders, data, strict=True))

    return read
