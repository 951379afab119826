"""Kinds of argument, as C dispatch numbers them: ``AOT_KIND_*`` in ``runtime/src/aot_tables.h``.

They are ordered so that what a compiled entry accepts is always an interval.
"""

__all__ = ["BOOL", "FLOAT", "HANDLE", "INT", "NONE", "TENSOR", "TUPLE"]

FLOAT, BOOL, INT, NONE, HANDLE, TENSOR, TUPLE = range(1, 8)
