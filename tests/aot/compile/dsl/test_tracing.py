"""Quick tracing leaves out work, and nothing of what comes out or of what errors say."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from aot.compile.dsl import installed, tracing

pytestmark = pytest.mark.compiler


def compiled(context: AbstractContextManager[Any]) -> str:
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_tensor

    from tests.aot.compile.dsl import launches

    with context:
        function = cute.compile(
            launches.both,
            make_fake_tensor(cutlass.Float32, (32,), (1,), assumed_align=4),
            options="--enable-tvm-ffi --gpu-arch sm_90a",
            **installed().COMPILE_KEYWORDS,
        )
    return installed().export(function, "both", "both")


def test_the_same_comes_out() -> None:
    assert compiled(installed().quick_tracing()) == compiled(nullcontext())


def outcome(function: Any) -> str:
    try:
        return str(function(1, text="x"))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_operations_return_and_raise_the_same() -> None:
    from cutlass._mlir_helpers.op import dsl_user_op

    def returns(value: int, *, text: str, loc: Any = None) -> Any:
        return value, text, loc

    def raises(value: int, *, text: str, loc: Any = None) -> Any:
        raise ValueError(f"{value} {text}")

    def nested(value: int, *, text: str, loc: Any = None) -> Any:
        return dsl_user_op(raises)(value, text=text)

    def takes_no_location(value: int, *, text: str) -> Any:
        return value

    wrapped = [dsl_user_op(function) for function in (returns, raises, nested, takes_no_location)]
    slow, code = [outcome(function) for function in wrapped], wrapped[0].__code__
    gc.unfreeze()
    tracing._wrappers.cache_clear()  # so that these are found too
    with installed().quick_tracing():
        assert all(function.__code__ is not code for function in wrapped)
        assert [outcome(function) for function in wrapped] == slow
    assert all(function.__code__ is code for function in wrapped)


def test_strangers_are_not_asked_for_their_class() -> None:
    class Stranger:
        @property
        def __class__(self) -> Any:
            raise AssertionError("somebody asked")

    stranger = Stranger()
    gc.unfreeze()
    tracing._wrappers.cache_clear()
    assert tracing._wrappers()[1]
    del stranger


def test_a_type_is_asked_for_once_even_if_it_has_no_name() -> None:
    asked: list[str] = []

    def name_of(type_: str) -> str:
        asked.append(type_)
        if type_ == "vector":
            raise ValueError(f"no name: {type_}")
        return type_.upper()

    answer = tracing._asked_once(name_of)
    assert [answer("f32"), answer("f32")] == ["F32", "F32"]
    for _ in range(2):
        with pytest.raises(ValueError, match="no name: vector"):
            answer("vector")
    assert asked == ["f32", "vector"]
