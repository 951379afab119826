"""What a parameter is to callers follows from what its variants take."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.bundle.details import RequirementDetails, VariantDetails
from aot.bundle.manifest import Manifest
from aot.bundle.types import tensors_of, type_of
from aot.kinds import BOOL, FLOAT, HANDLE, INT, NONE, TENSOR, TUPLE


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ([(TENSOR, TENSOR)], "tensor"),
        ([(TENSOR, TENSOR), (NONE, NONE)], "tensor?"),
        ([(NONE, NONE)], "tensor?"),
        ([(FLOAT, INT)], "float"),
        ([(BOOL, INT)], "int"),
        ([(INT, HANDLE)], "pointer"),
        ([(TUPLE, TUPLE)], "tuple"),
        ([(TENSOR, TENSOR), (FLOAT, INT)], "any"),
        ([], "any"),
    ],
)
def test_kinds_have_one_name(kinds: list[tuple[int, int]], name: str) -> None:
    assert type_of(frozenset(kinds)) == name


def test_a_bundle_says_what_each_parameter_is(small_bundle_path: Path) -> None:
    kernels = Manifest.read(small_bundle_path).kernels
    types = {name: {p.name: p.type for p in kernels[name].parameters} for name in kernels}
    assert all(kind for parameters in types.values() for kind in parameters.values())
    assert "tensor" in types["fill_epilogue"].values()
    assert [p.accepts for p in kernels["fill_epilogue"].parameters] == [("float32[:]",)]


def variant(dtype: int, *extents: tuple[int, int]) -> VariantDetails:
    """One that takes a tensor ``x``, of a dtype as TVM-FFI packs it."""
    wanted = [("x.dtype", "dtype", dtype, dtype), ("x.ndim", "ndim", len(extents), len(extents))]
    wanted += [(f"x.shape[{i}]", "extent", low, high) for i, (low, high) in enumerate(extents)]
    return VariantDetails("v", "k", "k", {}, "s", (), 0, (), tuple(RequirementDetails(*one, 0) for one in wanted), True)


F16, F32, ANY = 16 << 32 | 1 << 8 | 2, 32 << 32 | 1 << 8 | 2, (0, 2**31 - 1)


def test_tensors_are_named_by_dtype_rank_and_fixed_extents() -> None:
    variants = [variant(F16, ANY, (128, 128)), variant(F32, ANY), variant(F16, ANY, (128, 128)), variant(F32)]
    assert tensors_of("x", variants) == ("float16[:, 128]", "float32[:]", "float32[]")
    assert tensors_of("y", variants) == ()


def test_many_fixed_extents_are_not_listed() -> None:
    variants = [variant(F16, (n, n), (2, 2)) for n in range(9)]
    assert tensors_of("x", variants) == ("float16[:, :]",)
    assert len(tensors_of("x", variants[:8])) == 8
