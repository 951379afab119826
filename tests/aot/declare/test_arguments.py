"""What declarations say about the arguments of a jit function."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import aot
from aot.declare.arguments import compiled_tensor, is_made
from aot.errors import DeclarationError

ROWS = aot.Tensor("f32", ("batch", "n"), ("stride", 1), align=16)


def test_a_tensor_shows_authors_what_they_write() -> None:
    written = [*inspect.signature(aot.Tensor).parameters]
    assert written == [field.name for field in dataclasses.fields(aot.Tensor)]
    assert written == ["dtype", "shape", "strides", "align", "optional"]


def test_callers_pass_one_of_a_batch_and_the_batch_is_compiled() -> None:
    single = ROWS.single()
    assert isinstance(single, aot.Tensor)
    assert (single.shape, single.strides, single.align) == ((aot.Dim("n"),), (1,), 16)
    assert compiled_tensor(single) is ROWS and compiled_tensor(ROWS) is ROWS


def test_dispatch_makes_optional_tensors_and_batches_of_one() -> None:
    assert is_made(ROWS.single()) and is_made(aot.Tensor("f32", ("n",), optional=True))
    assert not any(map(is_made, (ROWS, aot.Scalar("f32"), None)))


@pytest.mark.parametrize(
    "tensor", [aot.Tensor("f32", ("n",)), aot.Tensor("f32", ("m", "n"), optional=True), ROWS.single()]
)
def test_what_has_no_single_one_is_refused(tensor: aot.Tensor) -> None:
    with pytest.raises(DeclarationError, match="a single one of"):
        tensor.single()


def test_tuples_hold_what_callers_pass_as_it_is() -> None:
    with pytest.raises(DeclarationError, match="cannot be an element of a tuple"):
        aot.Tuple((ROWS.single(),))
