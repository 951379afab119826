"""Immutable values with named fields: what records, architectures and explanations are.

They are not dataclasses. Creating a frozen dataclass takes a millisecond, and the loader has ten of these classes,
while a whole load takes three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeVar

    _Self = TypeVar("_Self", bound="Value")

__all__ = ["Value"]


class Value:
    """An immutable value. Its fields are its ``__slots__``, which are the parameters of ``__init__`` too."""

    __slots__: tuple[str, ...] = ()

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def fields(self) -> dict[str, Any]:
        """The fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def replace(self: _Self, **changes: Any) -> _Self:
        """The same value but for some fields."""
        return type(self)(**{**self.fields(), **changes})

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed: `replace({name}=...)` makes another")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value) or type(other) is not type(self):
            return NotImplemented
        return self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash((type(self).__name__, *self.fields().values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.fields().items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.fields())


def _rebuilt(kind: type[_Self], fields: dict[str, Any]) -> _Self:
    return kind(**fields)
