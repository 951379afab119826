"""What stands for an object of which nothing is known: it has every attribute, and calling it gives another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["Anything"]


class Anything:
    """Has every attribute, can be called, entered and counted; it is empty, and as a number it is 1."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Anything()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __index__(self) -> int:
        return 1

    def __int__(self) -> int:
        return 1

    def __float__(self) -> float:
        return 1.0

    def __getitem__(self, index: Any) -> Any:
        return Anything()

    def __format__(self, spec: str) -> str:
        return ""
