"""Shapes of outputs are turned into Python source; nothing but the forms of a declaration passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aot_runtime.errors import ManifestError
from aot_runtime.frameworks.outputs import SHAPE_FUNCTIONS, dtype_source, shape_source

X = SimpleNamespace(shape=(3, 5, 8))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("x.shape", (3, 5, 8)),
        ("x.shape[:-1]", (3, 5)),
        ("(x.shape[0],)", (3,)),
        ("x.shape[0]", (3,)),
        ("(*x.shape[:-1], x.shape[-1] // 2)", (3, 5, 4)),
        ("(min(x.shape[0], n), max(2, n) * 4 - 1, n % 4)", (3, 27, 3)),
        ("()", ()),
        ("(n, *x.shape[1:])", (7, 5, 8)),
        ("x.shape[-1:]", (8,)),
        ("(*pair[1].shape[1:], n)", (5, 8, 7)),
        ("(4 * x.size + n,)", (4 * 3 * 5 * 8 + 7,)),
    ],
)
def test_a_shape_is_the_tuple_that_its_text_says(text: str, shape: tuple[int, ...]) -> None:
    names = {**SHAPE_FUNCTIONS, "x": X, "n": 7, "pair": (None, X)}
    assert eval(shape_source(text, ["x", "n", "pair"]), names) == shape


def test_parameters_may_be_called_as_the_functions_of_shapes() -> None:
    source = shape_source("(max(min, 2), min(max, 8))", ["min", "max"])
    assert eval(source, {**SHAPE_FUNCTIONS, "min": 1, "max": 9}) == (2, 8)


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "y.shape", "x.strides", "x.shape[1:2]", "x.shape[:]", "x[n].shape", "x[0].shape[0]", "x.shape[n]", "x.shape[0.5]", "(x.shape, 1)", "(*n,)", "1 / 2",
        "abs(n)", "prod(n, n)", "y.size", "pair[0].size", "min(1, 2, 3)", "__import__('os')", "(lambda: 1)()", "x.shape.__class__", "[1]", "True", "n if n else 1",
        "(" * 300, "x.shape[0]; 1",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    known: Any = ["n"] if text == "x" else ["x", "n"]
    with pytest.raises(ManifestError):
        shape_source(text, known)


def test_a_dtype_is_a_parameters_or_named() -> None:
    assert dtype_source("x.dtype", ["x"]) == "x.dtype"
    assert dtype_source("f8e4m3", ["x"]) is None
    for text in ("y.dtype", "x.shape", "x.dtype.type", "x."):
        with pytest.raises(ManifestError, match="not the dtype of an output"):
            dtype_source(text, ["x"])


def test_a_shape_that_is_nested_too_deep_is_refused() -> None:
    for text in ("(" + "-" * 3000 + "1,)", "(" + "1+" * 3000 + "1,)", "(" + "min(1," * 900 + "1" + ")" * 900 + ",)"):
        with pytest.raises(ManifestError):
            shape_source(text, ["x"])
