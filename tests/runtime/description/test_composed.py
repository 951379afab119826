"""Expressions of kernels: what they read, what they compute, and what is refused before anything runs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from aot_runtime.description.composed import Expression
from aot_runtime.errors import ManifestError
from hypothesis import given
from hypothesis import strategies as st


class Matrix:
    """Remembers which views were taken of it."""

    def __init__(self, name: str) -> None:
        self.name, self.shape = name, (2, 3, 5)

    @property
    def mT(self) -> Matrix:
        return Matrix(f"{self.name}.T")

    def __neg__(self) -> Matrix:
        return Matrix(f"-{self.name}")

    def reshape(self, *extents: int) -> Matrix:
        return Matrix(f"{self.name}{extents}")


def run(text: str, known: dict[str, Any] | None = None) -> tuple[Any, list[str]]:
    called: list[str] = []

    def kernel(name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> tuple[Matrix, Matrix]:
            shown = [getattr(item, "name", str(item)) for item in arguments]
            shown += [f"{key}={getattr(item, 'name', item)}" for key, item in named.items()]
            called.append(f"{name}({', '.join(shown)})")
            return Matrix(f"{name}0"), Matrix(f"{name}1")

        return call

    values = {"a": Matrix("a"), "b": Matrix("b"), "op": "silu"}
    return Expression(text).evaluate(values, kernel, {} if known is None else known), called


def test_views_signs_choices_and_outputs_reach_the_kernels() -> None:
    result, called = run("f(a.mT, -b, g(a.rows, 2, 'x')[1], op=op)[0]")
    assert called == ["g(a(-1, 5), 2, x)", "f(a.T, -b, g1, op=silu)"]
    assert result.name == "f0"


def test_the_last_call_is_the_outer_one() -> None:
    last = {text: Expression(text).last for text in ("f(g(a), b)", "f(a).mT", "f(a)[0]", "a")}
    assert last == {"f(g(a), b)": "f", "f(a).mT": "", "f(a)[0]": "", "a": ""}


def test_a_call_that_was_made_before_is_not_repeated() -> None:
    known: dict[str, Any] = {}
    first, called = run("f(a, g(b)[0])[0]", known)
    second, again = run("f(a, g(b)[0])[1]", known)
    assert (first.name, second.name, len(called), again) == ("f0", "f1", 2, [])


def test_an_expression_tells_what_it_reads_and_what_it_calls() -> None:
    expression = Expression("f(a, g(b.mT)[0], op=op)")
    assert expression.names == {"a", "b", "op"}
    assert expression.kernels == {"f", "g"}
    assert set(expression.calls) == {("f", 2, ("op",)), ("g", 1, ())}
    assert Expression("grad_out").kernels == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        "", "f(", "f()", "a.T", "a.__class__", "a + b", "a[0]", "f(a)[-1]", "f(a)[b]", "f(a)[True]", "f(*a)", "f(**a)", "f(a)(b)",
        "a.f(b)", "lambda: a", "[a]", "(a, b)", "f(a for a in b)", "f(a) if a else b", "f(b'x')", "f(None)", "not a", "a := b",
        "f(" * 400 + "a" + ")" * 400, "a" * 2000,
    ],
)  # fmt: skip
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        Expression(text)


@given(st.text(max_size=60))
def test_no_text_does_anything_but_parse_or_raise(text: str) -> None:
    with suppress(ManifestError):
        Expression(text)


@pytest.mark.parametrize("text", ["-" * 900 + "x", "x" + ".mT" * 300, "lambda: " + "-" * 300 + "x"])
def test_an_expression_that_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        Expression(text)
