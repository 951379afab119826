"""Activations are checked on a GPU; what of them is a matter of numbers alone is checked here."""

from __future__ import annotations

import ast
import math

import numpy as np
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


def numbers(*names: str) -> list[np.float32]:
    """Constants of the module, as f32."""
    found: dict[str, float] = {"math": math}  # type: ignore[dict-item]
    for node in ast.parse(SOURCE.read_text()).body:
        if isinstance(node, ast.Assign) and any(name in ast.unparse(node.targets[0]) for name in names):
            exec(ast.unparse(node), found)
    return [np.float32(found[name]) for name in names]


def test_exp_loses_nothing_before_the_power_of_two_is_taken() -> None:
    """In f32 as the code does it, with a power that is rounded correctly: the hardware's adds 2 units.

    The power is taken in f64 and then rounded: numpy's own in f32 is off by several units on some processors.
    """
    high, low, rounding = numbers("LN2_HIGH", "LN2_LOW", "ROUNDING")
    log2e = np.float32(math.log2(math.e))
    x = np.linspace(-87, 88, 1_000_001, dtype=np.float32)
    power = (log2e * x + rounding) - rounding
    rest = (x - power * high) - power * low
    fraction = np.exp2((log2e * rest).astype(np.float64)).astype(np.float32)
    found = np.ldexp(fraction, power.astype(np.int32))
    exact = np.exp(x.astype(np.float64))
    units = np.abs(found - exact) / np.ldexp(1.0, np.frexp(exact)[1] - 24)
    assert units.max() < 1.5
    assert float(high) * 128 == float(np.float32(high * np.float32(128))) and math.frexp(high)[0] * 2**16 % 1 == 0
