"""What tracing would have stored in a kernel's object, for an exercise, which does not trace.

An exercise may print such an attribute after ``cute.compile``. It is told something that can be printed and counted.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from aot_runtime.serving.values.sources import original_code

from ..compile.device.anything import Anything
from ..compile.reading.names import codes_in, reach
from .standin import Notes

__all__ = ["Stored"]

_GETATTR = "__getattr__"


class Stored:
    """Answers for attributes that the functions of a captured object store, while the exercise runs."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._owners: dict[int, tuple[Any, Any]] = {}  # with the function that is compiled
        self._kinds: list[type] = []

    def add(self, owner: Any, jit: Any) -> None:
        """An object that was compiled, with its function that CuTe DSL compiles."""
        kind = type(owner)
        if owner is not None and (kind in self._kinds or self._opened(kind)):
            self._owners[id(owner)] = owner, jit

    def _opened(self, kind: Any) -> bool:
        """Whether the objects of a class can be answered for. Some classes answer themselves, or keep attributes in slots."""
        if hasattr(kind, _GETATTR) or any("__slots__" in vars(base) for base in kind.__mro__[:-1]):
            return False
        try:
            kind.__getattr__ = self._method()
        except (TypeError, AttributeError):  # a class of C, or one that refuses
            return False
        self._kinds.append(kind)
        return True

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Within the context, such attributes are answered."""
        try:
            yield
        finally:
            for kind in self._kinds:
                delattr(kind, _GETATTR)
            self._kinds.clear()

    def _method(self) -> Any:
        def __getattr__(owner: Any, name: str) -> Any:
            known, jit = self._owners.get(id(owner), (None, None))
            if known is owner and name in _names_stored(jit, owner):
                self._notes.add("attributes that tracing stores were made up")
                return Anything()
            raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}", name=name, obj=owner)

        return __getattr__


def _names_stored(jit: Any, owner: Any) -> set[str]:
    """The names of attributes that a function, and what it leads to, give to any object."""
    codes = (code for function in reach([jit, type(owner)]).functions for code in codes_in(original_code(function)))
    return {name for code in codes for name in _stored_by(code)}


def _stored_by(code: CodeType) -> Iterator[str]:
    return (str(one.argval) for one in dis.get_instructions(code) if one.opname == "STORE_ATTR")
