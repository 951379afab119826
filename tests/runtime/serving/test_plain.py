"""Tensors of CuTe DSL are passed with the type that their bytes are used with."""

from __future__ import annotations

from typing import Any

import pytest
import tvm_ffi
from aot_runtime.serving.plain import PlainFunction, _taken
from aot_runtime.serving.views import View, in_groups


class Tensor:
    """A tensor of bytes, as CuTe DSL shows it."""

    def __init__(self, kind: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
        numpy = pytest.importorskip("numpy")
        width = 32 if kind == "Float32" else 8
        self._dlpack_data = numpy.zeros(shape, numpy.float32 if width == 32 else numpy.int8).__dlpack__()
        self._dtype, self.shape, self.stride = type(kind, (), {"width": width}), shape, stride

    @property
    def element_type(self) -> type:
        return self._dtype

    @property
    def dynamic_shapes_mask(self) -> tuple[int, ...]:
        return (1,) * len(self.shape)


def shown(value: Any) -> tuple[str, tuple[int, ...]]:
    """The type and shape that who is called sees, while what shows them is there."""
    seen = tvm_ffi.from_dlpack(value) if isinstance(value, View) else value
    found = str(seen.dtype), tuple(seen.shape)
    del seen
    return found


@pytest.mark.parametrize(
    ("kind", "dtype", "shape"),
    [
        ("Int8", "int8", (4, 6)),
        ("Float8E4M3FN", "float8_e4m3fn", (4, 6)),
        ("Int4", "int4", (4, 6)),
        ("Float6E2M3FN", "float6_e2m3fn", (4, 6)),
        ("Float4E2M1FN", "float4_e2m1fnx2", (4, 3)),  # two of them are an element
    ],
)
def test_bytes_have_the_type_that_cute_dsl_was_told(kind: str, dtype: str, shape: tuple[int, ...]) -> None:
    assert shown(View(Tensor(kind, (4, 6), (6, 1)))) == (dtype, shape)


@pytest.mark.parametrize(
    ("shape", "strides", "grouped"),
    [((4, 6), (6, 1), ([4, 3], [3, 1])), ((6, 4, 2), (1, 6, 24), ([3, 4, 2], [1, 3, 12]))],
)
def test_groups_lie_along_the_innermost_extent(
    shape: tuple[int, ...], strides: tuple[int, ...], grouped: tuple[list[int], list[int]]
) -> None:
    assert in_groups(shape, strides, 2) == grouped


def test_a_tensor_that_is_passed_again_is_converted_once() -> None:
    tensor = Tensor("Float32", (4, 6), (6, 1))
    assert _taken(tensor) is _taken(tensor)
    assert str(_taken(tensor).dtype) == "float32"


def test_a_type_that_is_told_after_a_call_counts_from_then_on() -> None:
    wide, narrow = Tensor("Float32", (4, 6), (6, 1)), Tensor("Uint8", (4, 6), (6, 1))
    assert shown(_taken(wide)) == ("float32", (4, 6))
    wide._dtype = type("Int32", (), {"width": 32})
    assert shown(_taken(wide))[1] == (4, 6)
    assert shown(_taken(narrow)) == ("uint8", (4, 6))
    narrow._dtype = type("Float8E4M3FN", (), {"width": 8})
    assert shown(_taken(narrow)) == ("float8_e4m3fn", (4, 6))


@pytest.mark.parametrize("kind", ["Float32", "Uint8"])
@pytest.mark.parametrize(
    ("accepts", "shape", "strides", "seen"),
    [
        ("float32[16, 6]", (4, 6), (6, 1), ((16, 6), (6, 1))),  # compiled for 16 rows, called with four
        ("float32[:, 6]", (4, 6), (6, 1), ((4, 6), (6, 1))),
        ("float32[16, 8]", (16, 6), (6, 1), ((16, 8), (6, 1))),  # its strides are of another tensor: refused later
        ("float32[16, 6]", (4,), (1,), ((4,), (1,))),  # of another rank
        ("float32[]", (4,), (1,), ((4,), (1,))),
    ],
)
def test_static_extents_are_those_that_a_function_was_compiled_for_and_strides_are_the_tensors(
    kind: str, accepts: str, shape: tuple[int, ...], strides: tuple[int, ...], seen: Any
) -> None:
    found = []

    def function(tensor: Any, number: Any) -> None:
        # What a view shows lives as long as the view, which is the argument.
        shown = tvm_ffi.from_dlpack(tensor) if isinstance(tensor, View) else tensor
        found.append((tuple(shown.shape), tuple(shown.strides)))

    served = PlainFunction(function, {"x": (accepts,), "rows": ()})
    tensor = Tensor(kind, shape, strides)
    served(tensor, 4)
    served.run_compiled_program(served.generate_execution_args(tensor, 4)[0])
    assert found == [seen, seen]
