"""Tensors of CuTe DSL are passed with the type that their bytes are used with."""

from __future__ import annotations

import pytest
import tvm_ffi
from aot_runtime.serving.plain import _View, in_groups


class Tensor:
    """A tensor of bytes, as CuTe DSL shows it."""

    def __init__(self, kind: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
        numpy = pytest.importorskip("numpy")
        self._dlpack_data = numpy.zeros(shape, numpy.int8).__dlpack__()
        self.element_type, self.shape, self.stride = type(kind, (), {}), shape, stride


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
    seen = tvm_ffi.from_dlpack(_View(Tensor(kind, (4, 6), (6, 1))))
    assert (str(seen.dtype), tuple(seen.shape)) == (dtype, shape)


@pytest.mark.parametrize(
    ("shape", "strides", "grouped"),
    [((4, 6), (6, 1), ([4, 3], [3, 1])), ((6, 4, 2), (1, 6, 24), ([3, 4, 2], [1, 3, 12]))],
)
def test_groups_lie_along_the_innermost_extent(
    shape: tuple[int, ...], strides: tuple[int, ...], grouped: tuple[list[int], list[int]]
) -> None:
    assert in_groups(shape, strides, 2) == grouped
