"""Which variants are compiled from the same thing, and that this is compiled once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from aot_runtime.arch import Arch

import aot
from aot.compile.messages import Options
from aot.compile.sharing import Last, code_of
from aot.declare.arguments import Fixed
from aot.declare.kernel import Variant

ARCH = Arch.parse("sm_90a")
X = aot.Tensor("f32", ("n",))


class Launch:
    """Stands for an object with a jit ``__call__``."""

    def __init__(self, tile: Any) -> None:
        self.tile = tile


@aot.kernel(parameters=(aot.In("x"),), archs=("sm_90a",))
def copy(target: aot.Target) -> aot.Spec:
    """A kernel."""
    return aot.Spec(Launch(64), {"x": X, "which": aot.Constant(0), "stream": aot.Stream()})


def plain() -> None: ...


def variant(function: Any, which: Any = 0, **changed: Any) -> Variant:
    arguments = {"x": X, "which": Fixed(which), "stream": aot.Stream(), **changed}
    return Variant("copy", copy, ARCH, "copy", {}, aot.Spec(function, arguments))


def test_numbers_that_dispatch_passes_are_not_compiled() -> None:
    assert code_of(variant(Launch(64), 0), Options()) == code_of(variant(Launch(64), 3), Options()) is not None
    assert code_of(variant(plain, 0), Options()) == code_of(variant(plain, 3), Options()) is not None


@pytest.mark.parametrize(
    "other",
    [
        variant(Launch(128)),
        variant(Launch(64), 1.0),
        variant(Launch(64), x=None),
        variant(plain),
        variant(type("Other", (Launch,), {})(64)),
    ],
)
def test_what_differs_in_anything_else_is_compiled_for_itself(other: Variant) -> None:
    assert code_of(variant(Launch(64)), Options()) != code_of(other, Options())


def test_what_cannot_be_compared_is_compiled_for_itself() -> None:
    assert code_of(variant(Launch([64])), Options()) is None
    assert code_of(variant(Launch(64)), dataclasses.replace(Options(), keep=("ptx",))) is None


def test_an_object_is_compared_as_it_was_before_the_compiler_changed_it() -> None:
    function = Launch(64)
    before = code_of(variant(function), Options())
    function.tile = 128
    assert before == code_of(variant(Launch(64)), Options())


def test_the_same_is_compiled_once_and_a_failure_is_not_kept() -> None:
    last: Last[int] = Last()
    code, other = (code_of(variant(Launch(tile)), Options()) for tile in (64, 128))
    results = iter(range(10))
    assert [last.get(each, lambda: next(results)) for each in (code, code, other, code, None, None)] == [
        0,
        0,
        1,
        2,
        3,
        4,
    ]
    with pytest.raises(ZeroDivisionError):
        last.get(code, lambda: 1 // 0)
    assert last.get(code, lambda: next(results)) == 5
