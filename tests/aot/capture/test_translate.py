"""What CuTe DSL says that a compiled entry takes becomes arguments of a declaration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import tvm_ffi

import aot
from aot.capture.translate import translate
from aot.errors import DeclarationError


def described(kind: str, **fields: Any) -> Any:
    """An object of a class with the name that CuTe DSL uses."""
    return type(kind, (SimpleNamespace,), {})(**fields)


def var(name: str, dtype: str, divisibility: int | None = None) -> Any:
    return described("Var", name=name, dtype=tvm_ffi.dtype(dtype), divisibility=divisibility)


def tensor(name: str, dtype: str, shape: list[Any], strides: list[Any], device: int = 2) -> Any:
    return described(
        "Tensor", name=name, dtype=tvm_ffi.dtype(dtype), shape=shape, strides=strides, data_alignment=16,
        dlpack_device_type=device,
    )  # fmt: skip


class Extra(NamedTuple):
    bias: Any
    act: Any


def test_tensors_scalars_streams_and_none() -> None:
    n, s = var("n0", "int32"), var("s0", "int64", 8)
    found = translate(
        [
            tensor("x", "bfloat16", [n, 64], [s, 1]),
            described("ConstNone", name="weight"),
            var("eps", "float32"),
            described("DataPointer", name="p"),
            described("EnvStream", name="stream"),
        ],
        {"weight": None},
    )
    assert found == {
        "x": aot.Tensor("bf16", (aot.Dim("n0"), 64), (aot.Dim("s0", 8, 64), 1), align=16),
        "weight": None,
        "eps": aot.Scalar("f32"),
        "p": aot.Pointer("u8"),
        "stream": aot.Stream(),
    }


def test_numbers_of_four_bits_are_passed_in_pairs() -> None:
    found = translate([tensor("x", "float4_e2m1fnx2", [var("n0", "int32"), 32], [32, 1])], {})
    assert found == {"x": aot.Tensor("f4e2m1x2", (aot.Dim("n0"), 32), (32, 1), align=16)}
    assert found["x"].element_bytes == 1


def test_tuples_keep_their_constants_and_numbers_that_callers_repeat() -> None:
    bias = tensor("extra[0]", "float32", [4], [1])
    parameters = [
        described("TupleParam", name="extra", params=[bias, described("ConstNone", name="extra[1]")]),
        described("TupleParam", name="tile", params=[described("ConstInt", name="tile.m"), var("tile.n", "int32")]),
        described("Shape", name="shape", shape=[4, var("n1", "int32")]),
    ]
    found = translate(parameters, {"extra": Extra(None, max), "tile": (64, 128), "shape": (4, 8)})
    assert found["extra"] == aot.Tuple((aot.Tensor("f32", (4,), (1,), align=16), aot.Constant(max)))
    assert found["tile"] == aot.Tuple((aot.Scalar("i64"), aot.Scalar("i32")))
    assert found["shape"] == aot.Tuple((aot.Scalar("i64"), aot.Scalar("i32")))


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        (tensor("x", "float4_e2m1fn", [4], [1]), "argument x has the dtype float4_e2m1fn"),
        (tensor("x", "float32", [4], [1], device=1), "argument x is a tensor in the memory of the CPU"),
        (described("Opaque", name="x"), "argument x is a Opaque"),
    ],
)
def test_what_cannot_be_declared_is_refused_by_name(parameter: Any, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        translate([parameter], {})
