"""Kinds of argument and of element: what C dispatch and the frameworks call them.

Kinds of argument are ``AOT_KIND_*`` in ``runtime/src/aot_tables.h``, ordered so that what a compiled entry accepts is
always an interval.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BOOL", "DTYPES", "FLOAT", "HANDLE", "INT", "NONE", "TENSOR", "TUPLE", "Dtype"]

FLOAT, BOOL, INT, NONE, HANDLE, TENSOR, TUPLE = range(1, 8)


class Dtype(NamedTuple):
    """The type of an element."""

    code: int  # DLPack's
    bits: int
    cutlass: str  # the name of CuTe DSL's type
    torch: str
    is_scalar: bool = True  # whether an argument can be a single one
    lanes: int = 1  # how many make an element: a byte holds two numbers of 4 bits

    @property
    def packed(self) -> int:
        """As ``aot_packed_dtype`` of ``runtime/src`` has it."""
        return self.bits << 32 | self.lanes << 8 | self.code


# By the short names that declarations use.
DTYPES = {
    "bool": Dtype(6, 8, "Boolean", "bool"),
    "i8": Dtype(0, 8, "Int8", "int8"),
    "u8": Dtype(1, 8, "Uint8", "uint8"),
    "i16": Dtype(0, 16, "Int16", "int16"),
    "u16": Dtype(1, 16, "Uint16", "uint16"),
    "i32": Dtype(0, 32, "Int32", "int32"),
    "u32": Dtype(1, 32, "Uint32", "uint32"),
    "i64": Dtype(0, 64, "Int64", "int64"),
    "u64": Dtype(1, 64, "Uint64", "uint64"),
    "f16": Dtype(2, 16, "Float16", "float16"),
    "bf16": Dtype(4, 16, "BFloat16", "bfloat16"),
    "f32": Dtype(2, 32, "Float32", "float32"),
    "f64": Dtype(2, 64, "Float64", "float64"),
    "f8e4m3": Dtype(10, 8, "Float8E4M3FN", "float8_e4m3fn", is_scalar=False),
    "f8e5m2": Dtype(12, 8, "Float8E5M2", "float8_e5m2", is_scalar=False),
    "f8e8m0": Dtype(14, 8, "Float8E8M0FNU", "float8_e8m0fnu", is_scalar=False),
    "f4e2m1x2": Dtype(17, 4, "Float4E2M1FNx2", "float4_e2m1fn_x2", is_scalar=False, lanes=2),
}
