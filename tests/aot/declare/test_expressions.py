"""Guards and output shapes: Python's syntax in, a small tree out, and an error that names what it cannot read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.declare.expressions import (
    Binary,
    Compare,
    Constant,
    Element,
    Expression,
    Logic,
    Name,
    Negation,
    Size,
    check_dtype,
    check_shape,
    names_in,
    parse,
    render,
    shape_of,
    value_of,
)
from aot.errors import DeclarationError

N, M = Name("n"), Name("m")


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("n", N),
        (" 4 ", Constant(4)),
        ("-4", Constant(-4)),
        ("True", Constant(1)),
        ("0.5", Constant(0.5)),
        ("-n", Binary("-", Constant(0), N)),
        ("x.shape[1]", Element("x", "shape", 1)),
        ("x.shape[-1]", Element("x", "shape", -1)),
        ("x.strides[0]", Element("x", "strides", 0)),
        ("4 * x.size", Binary("*", Constant(4), Size("x"))),
        ("n + m * 2", Binary("+", N, Binary("*", M, Constant(2)))),
        ("n // 8 % 3", Binary("%", Binary("//", N, Constant(8)), Constant(3))),
        ("min(n, max(m, 1))", Binary("min", N, Binary("max", M, Constant(1)))),
        ("n < 5", Compare("<", N, Constant(5))),
        ("n > 5", Compare("<", Constant(5), N)),
        ("n >= 5", Compare("<=", Constant(5), N)),
        ("n != m", Compare("!=", N, M)),
        ("1 <= n < m", Logic("and", Compare("<=", Constant(1), N), Compare("<", N, M))),
        ("not n == 1", Negation(Compare("==", N, Constant(1)))),
        ("n or m or 1", Logic("or", Logic("or", N, M), Constant(1))),
    ],
)
def test_pythons_syntax_is_understood(text: str, expression: Expression) -> None:
    assert parse(text) == expression


@pytest.mark.parametrize(
    "text",
    [
        "", "n +", "n ** 2", "n / 2", "n & 1", "~n", "f(n)", "min(n)", "max(n, m, 1)", "min(n, key=1)", "x.shape", "x.size(0)",
        "x.shape[n]", "x.shape[0:1]", "x[0].shape[1]", "'text'", "1j", "n if m else 1", "lambda: 1", "n is m", "n in m",
        "[n]", "n; m", "import os", "x.shape[0.5]", "x.shape[True]", "\0",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_named(text: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse(text)
    assert repr(text) in caught.value.message


@given(st.text(max_size=40))
def test_any_text_is_an_expression_or_a_declaration_error(text: str) -> None:
    try:
        assert parse(render(parse(text))) is not None
    except DeclarationError as error:
        assert error.message


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "n < 99999999999999999999", "1e999"])
def test_numbers_beyond_what_a_call_can_hold_are_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match=r"64 bits|finite"):
        parse(text)


def test_a_very_deep_expression_is_refused_rather_than_crashing() -> None:
    for text in ("not " * 5000 + "n", "(" * 150 + "n" + ")" * 150 + "+" * 3000, "-" * 5000 + "n", "n" + "+n" * 5000):
        with pytest.raises(DeclarationError):
            parse(text)


_leaves = st.one_of(
    st.integers(-(2**63) + 1, 2**63 - 1).map(Constant),
    st.floats(allow_nan=False, allow_infinity=False).map(Constant),
    st.sampled_from(["n", "m", "alpha"]).map(Name),
    st.builds(Element, st.sampled_from(["x", "y"]), st.sampled_from(["shape", "strides"]), st.integers(-3, 3)),
    st.sampled_from(["x", "y"]).map(Size),
)


def _compound(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.one_of(
        st.builds(Binary, st.sampled_from(["+", "-", "*", "//", "%", "min", "max"]), inner, inner),
        st.builds(Compare, st.sampled_from(["<", "<=", "==", "!="]), inner, inner),
        st.builds(Logic, st.sampled_from(["and", "or"]), inner, inner),
        st.builds(Negation, inner),
    )


@given(st.recursive(_leaves, _compound, max_leaves=12))
def test_what_is_rendered_parses_back_to_itself(expression: Expression) -> None:
    assert parse(render(expression)) == expression


def test_names_are_those_of_extents_scalars_and_tensors() -> None:
    assert names_in(parse("not (n + x.shape[0] < min(m, 3) and y.strides[1] == 1)")) == {"n", "m", "x", "y"}
    assert names_in(parse("3")) == set()


def test_a_size_counts_the_elements_of_a_tensor_of_any_rank() -> None:
    assert value_of("4 * x.size + k", ARGUMENTS) == 4 * 48 + 3
    assert value_of("x.size", {"x": SimpleNamespace(shape=())}) == 1
    assert names_in(parse("4 * x.size")) == {"x"}


ARGUMENTS = {"x": SimpleNamespace(shape=(6, 8)), "k": 3, "inputs": [SimpleNamespace(shape=(5, 7, 9))]}


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("(*x.shape[:-1], 4)", (6, 4)),
        ("x.shape", (6, 8)),
        ("(x.shape[0], 4)", (6, 4)),
        ("x.shape[-1]", (8,)),
        ("(x.shape[1] // k, min(k, 2), -k % 5, max(1, k - 9))", (2, 2, 2, 1)),
        ("()", ()),
        ("(k, *x.shape[1:])", (3, 8)),
        ("x.shape[-1:]", (8,)),
        ("inputs[0].shape", (5, 7, 9)),
        ("(*inputs[0].shape[1:], *inputs[-1].shape[:1])", (7, 9, 5)),
    ],
)
def test_the_shape_of_an_output_follows_from_the_inputs(text: str, shape: tuple[int, ...]) -> None:
    check_shape(text)
    assert shape_of(text, ARGUMENTS) == shape


@pytest.mark.parametrize(
    "text",
    [
        "",
        "((",
        "x.dtype",
        "(x.shape[0] < 4,)",
        "not k",
        "(x.shape[0], 0.5)",
        "x.strides[0]",
        "x.size",
        "(x.shape,)",
        "x.shape[0:1]",
        "x.shape[:]",
        "x.shape[::2]",
        "inputs[k].shape",
        "inputs[0][1].shape",
        "f(x)",
        "\0",
    ],
)
def test_what_cannot_be_evaluated_as_a_shape_is_refused_when_declared(text: str) -> None:
    with pytest.raises(DeclarationError):
        check_shape(text)


@pytest.mark.parametrize("text", ["x.dtype", "f32", "bf16", "bool"])
def test_the_dtype_of_an_output_is_an_inputs_or_a_known_one(text: str) -> None:
    check_dtype(text)


@pytest.mark.parametrize("text", ["", "x", "x.shape", "float", "f33", "x.y.dtype", "1.dtype"])
def test_any_other_dtype_of_an_output_is_refused_when_declared(text: str) -> None:
    with pytest.raises(DeclarationError, match="not the dtype of an output"):
        check_dtype(text)
