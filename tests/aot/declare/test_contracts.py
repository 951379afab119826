"""A contract is a module that a declaration names; what is missing or wrong in it is said before anything is compiled."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import aot
from aot.declare.kernel import Kernel
from aot.errors import DeclarationError


def module(**functions: Any) -> ModuleType:
    made = ModuleType("contracts.scale")
    made.__file__ = "contracts/scale.py"
    made.__dict__.update(functions)
    return made


def declared(**settings: Any) -> Kernel:
    @aot.kernel(parameters=(aot.In("x"),), archs=("sm_80",), **settings)
    def scale(target: aot.Target) -> list[aot.Spec]:
        return []

    return scale


def function(*names: str) -> Any:
    """A function of a file that is not this one."""
    return eval(compile(f"lambda {', '.join(names)}: None", "contracts/scale.py", "eval"))


REFERENCE, INPUTS, COST = function("x"), function("make", "dtype"), function("x")


def test_the_functions_of_a_contract_are_found_in_its_module() -> None:
    kernel = declared(contract=module(reference=REFERENCE, inputs=INPUTS, cost=COST))
    assert (kernel.reference, kernel.inputs, kernel.cost) == (REFERENCE, INPUTS, COST)
    assert declared(contract=module(reference=REFERENCE, inputs=INPUTS)).cost is None


def test_functions_may_be_given_one_by_one() -> None:
    assert declared(reference=REFERENCE, inputs=INPUTS).reference is REFERENCE


@pytest.mark.parametrize(
    ("settings", "said", "hint"),
    [
        ({"contract": REFERENCE}, "the contract is <function", "import its module"),
        ({"contract": "contracts.scale"}, "the contract is 'contracts.scale'", "import its module"),
        ({"contract": module(inputs=INPUTS)}, "has no reference", "define `reference` in contracts/scale.py"),
        ({"contract": module()}, "has no reference and no inputs", "define `reference`"),
        (
            {"contract": module(reference=REFERENCE, inputs=INPUTS), "cost": COST},
            "both a contract and cost",
            "pass `contract` alone",
        ),
    ],
)
def test_what_is_wrong_with_a_contract_is_said(settings: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(DeclarationError, match=said) as caught:
        declared(**settings)
    assert hint in (caught.value.hint or "")
