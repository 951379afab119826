"""An object gets what tracing would have stored in it, and its next call has the same key."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from aot_runtime.serving.values.forms import Forms
from aot_runtime.serving.values.stored import _given, decoded, encoded, give_stored


class Kernel:
    def __init__(self) -> None:
        self.tile = 64


class Unshown:
    def __repr__(self) -> str:
        raise AssertionError("a value of the compiler cannot be shown once it is done")


class Slotted:
    __slots__ = ("tile",)


def form(value: Any) -> Any:
    return Forms().of(value, "it")


@pytest.mark.parametrize("value", [None, True, 3, "a", 0.1, float("inf"), (1, [2.5, ()]), []])
def test_plain_values_are_what_they_were(value: Any) -> None:
    found = decoded(encoded(value))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("value", [object(), Unshown(), {"a": 1}, (1, {2}), b"a", type("Own", (int,), {})(1)])
def test_other_values_are_not_kept(value: Any) -> None:
    with pytest.raises(ValueError, match="is no plain value"):
        encoded(value)


@pytest.mark.parametrize("data", [[1], {"set": [1]}, {"tuple": 1}, {"float": 1}, {}, 0.5])
def test_data_that_nobody_wrote_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="is no plain value"):
        decoded(data)


def test_what_is_given_is_no_part_of_a_key_until_the_program_changes_it() -> None:
    kernel = Kernel()
    before = form(kernel)
    give_stored(kernel, {"stages": {"tuple": [4, 2]}, "tile": 1})
    assert kernel.__dict__ == {"tile": 64, "stages": (4, 2)} and form(kernel) == before
    give_stored(kernel, {"stages": 5, "other": 1000})  # of another call
    assert kernel.__dict__["stages"] == 5 and form(kernel) == before
    kernel.__dict__["stages"] = 7
    assert form(kernel) != before
    give_stored(kernel, {"stages": 5})
    assert kernel.__dict__["stages"] == 7, "the program's own stays"


def test_nothing_is_kept_of_objects_that_are_gone_or_take_no_attributes() -> None:
    kept = len(_given)
    kernel = Kernel()
    give_stored(kernel, {"stages": 4})
    give_stored(Slotted(), {"stages": 4})
    give_stored(None, {"stages": 4})
    assert len(_given) == kept + 1
    del kernel
    gc.collect()
    assert len(_given) == kept
