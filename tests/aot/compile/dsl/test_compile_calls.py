"""What a compiled entry takes is what CuTe DSL says of a call."""

from __future__ import annotations

from typing import Any, Tuple  # noqa: UP035  libraries annotate with it

import pytest

from aot.compile.dsl import installed

pytestmark = pytest.mark.compiler


def bare(items: Tuple) -> None:  # noqa: UP006
    """As a library annotates it."""


def lengthless(items: tuple[Any, ...]) -> None:
    """The same with the type of all elements."""


def two(items: tuple[int, int]) -> None:
    """A tuple of two."""


@pytest.mark.parametrize("function", [bare, lengthless, two])
def test_a_tuple_is_taken_with_all_its_elements(function: Any) -> None:
    (parameter,) = installed().entry_parameters(function, ((1, 2),), {})
    assert len(getattr(parameter, "params", None) or parameter.shape) == 2


def test_a_tuple_that_names_its_elements_takes_no_other_length() -> None:
    from aot.errors import DeclarationError

    with pytest.raises(DeclarationError, match="Tuple length mismatch"):
        installed().entry_parameters(two, ((1, 2.0, 3),), {})
