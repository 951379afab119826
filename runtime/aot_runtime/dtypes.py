"""Types of elements: the one table of them, with the names that each language and framework has.

A new dtype is a line here. ``python tools/dtypes.py`` then writes the tables in the C and C++ sources; tests compare them
with this one, and this one with CuTe DSL, TVM-FFI and torch.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ALLOCATED", "DTYPES", "TABLE", "Dtype", "find_dtype"]

_KINDS = {0: "INT", 1: "UINT", 2: "FLOAT", 4: "BFLOAT", 5: "COMPLEX", 6: "BOOL"}  # of DLPack, that have several widths


class Dtype(NamedTuple):
    """The type of an element."""

    name: str  # what declarations and variants are written with
    torch: str  # torch's name, which messages print; TVM-FFI, JAX and C++ share it but for a few
    code: int  # DLPack's
    bits: int
    cutlass: str = ""  # the name of CuTe DSL's type; "": it cannot be declared
    lanes: int = 1  # how many make an element: a byte holds two numbers of 4 bits
    is_scalar: bool = False  # whether an argument can be a single one
    digits: int = 0  # bits after the point, if `check` allows for a rounding; 0: results must be equal
    shim: str = ""  # the function of torch's C interface that gives its number; "": torch does not have it
    aliases: tuple[str, ...] = ()

    @property
    def packed(self) -> int:
        """As ``aot_packed_dtype`` of ``runtime/src`` has it."""
        return self.bits << 32 | self.lanes << 8 | self.code

    @property
    def element_bytes(self) -> int:
        return (self.bits * self.lanes + 7) // 8

    @property
    def kind(self) -> str:
        """The name of its DLPack code: ``FLOAT8_E4M3FN``."""
        return _KINDS.get(self.code) or self.torch.removesuffix(f"_x{self.lanes}").upper()

    @property
    def names(self) -> tuple[str, ...]:
        """All of its names; TVM-FFI writes lanes without an underscore."""
        return (self.name, self.torch, self.torch.replace("_x", "x"), *self.aliases)


_AOTI = "aoti_torch_dtype_"


def _whole(name: str, torch: str, code: int, bits: int, cutlass: str, *aliases: str, digits: int = 0) -> Dtype:
    """A type that arguments can be single numbers of."""
    return Dtype(name, torch, code, bits, cutlass, 1, True, digits, _AOTI + torch, aliases)


TABLE = (
    _whole("bool", "bool", 6, 8, "Boolean", "boolean", "bool_"),
    Dtype("i4", "int4", 0, 4, "Int4"),
    _whole("i8", "int8", 0, 8, "Int8"),
    _whole("u8", "uint8", 1, 8, "Uint8"),
    _whole("i16", "int16", 0, 16, "Int16"),
    _whole("u16", "uint16", 1, 16, "Uint16"),
    _whole("i32", "int32", 0, 32, "Int32"),
    _whole("u32", "uint32", 1, 32, "Uint32"),
    _whole("i64", "int64", 0, 64, "Int64"),
    _whole("u64", "uint64", 1, 64, "Uint64"),
    _whole("f16", "float16", 2, 16, "Float16", "fp16", "half", digits=10),
    _whole("bf16", "bfloat16", 4, 16, "BFloat16", digits=7),
    _whole("f32", "float32", 2, 32, "Float32", "fp32", digits=23),
    _whole("f64", "float64", 2, 64, "Float64", "fp64", "double", digits=52),
    Dtype(
        "f8e4m3", "float8_e4m3fn", 10, 8, "Float8E4M3FN", digits=3, shim=_AOTI + "float8_e4m3fn",
        aliases=("fp8", "fp8_e4m3", "fp8_e4m3fn", "f8e4m3fn", "e4m3"),
    ),
    Dtype(
        "f8e5m2", "float8_e5m2", 12, 8, "Float8E5M2", digits=2, shim=_AOTI + "float8_e5m2", aliases=("fp8_e5m2", "e5m2")
    ),
    Dtype(  # torch 2.11 or newer
        "f8e8m0", "float8_e8m0fnu", 14, 8, "Float8E8M0FNU", shim="torch_dtype_float8_e8m0fnu",
        aliases=("fp8_e8m0", "f8e8m0fnu", "e8m0", "ue8m0"),
    ),
    Dtype("f6e2m3", "float6_e2m3fn", 15, 6, "Float6E2M3FN", aliases=("fp6_e2m3", "f6e2m3fn", "e2m3")),
    Dtype("f6e3m2", "float6_e3m2fn", 16, 6, "Float6E3M2FN", aliases=("fp6_e3m2", "f6e3m2fn", "e3m2")),
    Dtype(
        "f4e2m1x2", "float4_e2m1fn_x2", 17, 4, "Float4E2M1FNx2", lanes=2, shim="torch_dtype_float4_e2m1fn_x2",
        aliases=("fp4", "fp4_e2m1", "f4e2m1fnx2"),
    ),
    # Types that callers may pass, and that no declaration can have: messages name them.
    Dtype("float8_e3m4", "float8_e3m4", 7, 8),
    Dtype("float8_e4m3", "float8_e4m3", 8, 8),
    Dtype("float8_e4m3b11fnuz", "float8_e4m3b11fnuz", 9, 8),
    Dtype("float8_e4m3fnuz", "float8_e4m3fnuz", 11, 8),
    Dtype("float8_e5m2fnuz", "float8_e5m2fnuz", 13, 8),
    Dtype("float4_e2m1fn", "float4_e2m1fn", 17, 4),
    Dtype("complex64", "complex64", 5, 64),
    Dtype("complex128", "complex128", 5, 128),
)  # fmt: skip

DTYPES = {dtype.name: dtype for dtype in TABLE if dtype.cutlass}  # those that can be declared
ALLOCATED = {name: one for name, one in DTYPES.items() if one.shim and one.lanes == 1}  # that frameworks can allocate
_BY_NAME = {name: dtype for dtype in TABLE for name in dtype.names}


def find_dtype(text: str) -> Dtype | None:
    """The dtype of that name, whichever of its names it is: ``f8e4m3``, ``float8_e4m3fn``, ``torch.float8_e4m3fn``, ``fp8``."""
    return _BY_NAME.get(text.lower().rpartition(".")[2])
