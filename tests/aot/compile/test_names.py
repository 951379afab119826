"""What functions lead to by name is read off their code."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from aot.compile.names import reach


def generated(text: str, **names: Any) -> Any:
    exec(text, names)
    return names["run"]


def inner() -> int:
    return 1


def other() -> int:
    return 2


@pytest.mark.parametrize("named", [{}, {"__name__": "not.loaded"}, {"__name__": __name__}], ids=str)
def test_a_generated_function_leads_to_what_its_own_globals_have(named: dict[str, str]) -> None:
    here = sys.modules[__name__]
    run = generated("def run():\n    return first() + helpers.inner()", first=other, helpers=here, **named)
    assert {inner, other} <= set(reach([run]).functions)


def test_the_values_of_modules_that_a_generated_function_names_are_noted() -> None:
    run = generated("def run():\n    return helpers.AMOUNT", helpers=sys.modules[__name__])
    assert reach([run]).values == {(__name__, "AMOUNT"): "2"}


AMOUNT = 2
