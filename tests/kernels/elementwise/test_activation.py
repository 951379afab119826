"""Activations are checked on a GPU; what of them is a matter of numbers alone is checked here."""

from __future__ import annotations

import ast
import math

import pytest
from places import PROJECT

SOURCE = PROJECT / "kernels" / "_activations.py"

(SHIFT,) = [
    ast.literal_eval(node.value)
    for node in ast.parse(SOURCE.read_text()).body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SHIFT"
]


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
    *coefficients, last = constant("RoundedGelu", "BEYOND")
    for x in (i / 100 for i in range(1376)):
        exponent = 0.0
        for coefficient in (*coefficients, last - SHIFT):
            exponent = exponent * x + coefficient
        exact = math.erfc(x / math.sqrt(2)) / 2
        assert 2**exponent == pytest.approx(exact, rel=1e-5 if x <= 5.9 else 1.1e-4, abs=0)
    assert coefficients[0] < 0  # farther out nothing is left, up to infinity


def test_numbers_of_bf16_stay_exact_when_they_are_made_smaller() -> None:
    smallest_of_bf16, smallest_of_f32 = 2.0**-133, 2.0**-149
    assert smallest_of_bf16 * 2.0**-SHIFT == smallest_of_f32
