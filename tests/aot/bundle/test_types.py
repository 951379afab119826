"""What a parameter is to callers follows from what its variants take."""

from __future__ import annotations

from pathlib import Path

import pytest
from aot_runtime.manifest import Manifest

from aot.bundle.types import type_of
from aot.kinds import BOOL, FLOAT, HANDLE, INT, NONE, TENSOR, TUPLE


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ([(TENSOR, TENSOR)], "tensor"),
        ([(TENSOR, TENSOR), (NONE, NONE)], "tensor?"),
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
