"""Kinds of argument, as C dispatch numbers them, and types of elements, by the names that declarations use.

Kinds of argument are ``AOT_KIND_*`` in ``runtime/src/aot_tables.h``, ordered so that what a compiled entry accepts is
always an interval.
"""

from __future__ import annotations

from collections.abc import Iterable

from aot_runtime.dtypes import DTYPES, Dtype, find_dtype

__all__ = ["BOOL", "DTYPES", "FLOAT", "HANDLE", "INT", "NONE", "TENSOR", "TUPLE", "Dtype", "dtype_of"]

FLOAT, BOOL, INT, NONE, HANDLE, TENSOR, TUPLE = range(1, 8)


def dtype_of(text: str, known: Iterable[str] = DTYPES) -> Dtype | None:
    """The dtype that any of its names stands for, if it is among those that are known."""
    found = find_dtype(text) if isinstance(text, str) else None
    return found if found is not None and found.name in known else None
