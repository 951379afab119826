"""What describes a tensor without memory is checked before a bundle is asked."""

from __future__ import annotations

from typing import Any

import pytest
from aot_runtime.core.explain import TensorInfo
from aot_runtime.errors import ArgumentError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (((4, "8"),), r"shape is \(4, '8'\), not a tuple of integers"),
        ((8,), "shape is 8, not a tuple of integers"),
        (((2**63,),), f"shape holds {2**63}, which is no integer of 64 bits"),
        (((4,), (-(2**63) - 1,)), "strides holds -9223372036854775809"),
        (((1,) * 33,), "shape has 33 numbers: a tensor has at most 32 dimensions"),
        (((4, 8), (8,)), r"shape \(4, 8\) and strides \(8,\) differ in length"),
        (((4, -1),), r"shape is \(4, -1\), with an extent below 0"),
        (((4,), None, 0), "align is 0, not a power of two"),
        (((4,), None, 48), "align is 48, not a power of two"),
    ],
)
def test_numbers_that_no_tensor_has_are_refused(given: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        TensorInfo("f32", *given)


def test_more_elements_than_64_bits_count_are_refused() -> None:
    assert TensorInfo("f32", (2**40, 2**22)).resolved_strides() == (2**22, 1)
    with pytest.raises(ArgumentError, match="more elements than 64 bits can count"):
        TensorInfo("f32", (2**40, 2**23)).resolved_strides()


def test_an_empty_tensor_has_the_strides_of_one_element() -> None:
    assert TensorInfo("f32", (3, 0, 2)).resolved_strides() == (2, 2, 1)
