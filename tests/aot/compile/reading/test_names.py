"""What functions lead to by name is read off their code."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import pytest

from aot.compile.reading.names import reach


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


class Holder:
    """An object that can be called, with attributes and a slot."""

    __slots__ = ("__dict__", "slot")

    def __init__(self, **held: Any) -> None:
        for name, value in held.items():
            setattr(self, name, value)

    def __call__(self) -> int:
        return inner()

    def pick(self) -> int:
        return other()


def takes(value: Any = other) -> Any:
    return value


HOLDERS = {
    "a dict": {"a": other},
    "a tuple in a list": [(other,)],
    "a partial": functools.partial(other),
    "what a partial is given": functools.partial(max, other),
    "a static method": staticmethod(other),
    "a property": property(other),
    "a method": Holder().pick,
    "a default": takes,
    "an attribute": Holder(held=other),
    "a slot": Holder(slot={"a": other}),
    "a partial method": functools.partialmethod(other),
    "a proxy": types.MappingProxyType({"a": other}),
    "a namespace": types.SimpleNamespace(a=other),
    "a function that chooses by a class": functools.singledispatch(other),
    "a method that chooses by a class": functools.singledispatchmethod(other),
}


@pytest.mark.parametrize("held", HOLDERS.values(), ids=HOLDERS)
def test_what_holds_a_function_leads_to_it(held: Any) -> None:
    assert other in reach([generated("def run():\n    return held", held=held)]).functions


def test_an_object_leads_to_the_methods_that_are_named_and_to_its_call() -> None:
    assert other in reach([generated("def run():\n    return held.pick()", held=Holder())]).functions
    reached = reach([generated("def run():\n    return held()", held=Holder())]).functions
    assert inner in reached and other not in reached
