"""Activations are checked on a GPU; what of them is a matter of numbers alone is checked here."""

from __future__ import annotations

import ast
import math

import pytest
from places import PROJECT

SOURCE = PROJECT / "kernels" / "elementwise" / "activation.py"


def constant(owner: str, name: str) -> tuple[float, ...]:
    """A constant of a class there, read off the text: a test should not need CuTe DSL for it."""
    (found,) = [node for node in ast.parse(SOURCE.read_text()).body if getattr(node, "name", "") == owner]
    assert isinstance(found, ast.ClassDef)
    (value,) = [
        node.value for node in found.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    numbers: tuple[float, ...] = ast.literal_eval(value)
    return numbers


def test_the_polynomial_of_gelu_is_as_good_as_it_says() -> None:
    coefficients = constant("RoundedGelu", "BEYOND")
    for x in (i / 100 for i in range(801)):
        exponent = 0.0
        for coefficient in coefficients:
            exponent = exponent * x + coefficient
        assert 2**exponent == pytest.approx(math.erfc(x / math.sqrt(2)) / 2, rel=7e-5, abs=0)
    assert coefficients[0] < 0  # farther out nothing is left, up to infinity


def test_the_tanh_in_place_of_erf_is_as_good_as_it_says() -> None:
    cubic, linear = constant("BriefGelu", "INNER")
    for x in (i / 100 for i in range(-1600, 1601)):
        exact = x * math.erfc(-x / math.sqrt(2)) / 2
        assert x * (1 + math.tanh(x * (cubic * x * x + linear))) / 2 == pytest.approx(exact, rel=0, abs=1.5e-4 * abs(x))
    assert cubic > 0  # farther out it is one or nothing, up to infinity
