"""A spec is compared with the signature of its jit function before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest

import aot
from aot.compile.signature import fitted
from aot.declare.arguments import Fixed
from aot.declare.kernel import Variant
from aot.errors import DeclarationError
from aot.selection.requirements import variant_table
from aot.selection.subjects import FixedArgument

T = TypeVar("T")
X = aot.Tensor("f32", ("n",))


class Constexpr(Generic[T]):
    """Stands for CuTe DSL's, which is known by its name and its module."""

    __module__ = "cutlass"


def takes(x: Any, bias: Any, flag: Any, tile: Constexpr[int], stream: Any, scale: Any = 1.0) -> None: ...


class Takes:
    def __call__(self, x: Any, act: Constexpr, stream: Any) -> None: ...


def variant(function: Callable[..., Any], **arguments: Any) -> Variant:
    public = [aot.In(name) for name, item in arguments.items() if isinstance(item, (aot.Tensor, aot.Scalar))]

    @aot.kernel(parameters=public, archs=("sm_90a",))
    def kernel(target: aot.Target) -> aot.Spec:
        return aot.Spec(function, arguments)

    (made,) = kernel.variants(kernel.archs[0])
    return made


STREAM = aot.Stream()


def test_constants_for_run_time_parameters_are_passed_by_dispatch() -> None:
    arguments = {"x": X, "bias": aot.Constant(None), "flag": aot.Constant(True), "tile": aot.Constant(64)}
    made = fitted(variant(takes, **arguments, stream=STREAM, scale=aot.Constant(0.5)))
    assert [made.spec.arguments[name] for name in ("bias", "flag", "tile", "scale")] == [
        Fixed(None), Fixed(True), aot.Constant(64), Fixed(0.5),
    ]  # fmt: skip
    table = variant_table(made)
    assert table.sources == (0, 0x90, 0x91, 0x92) and table.entry_arguments == 4
    assert table.constants == (FixedArgument(0, 0), FixedArgument(2, 1), FixedArgument(3, 0x3FE0 << 48))


def test_methods_and_functions_with_any_number_of_parameters_are_left_alone() -> None:
    made = variant(Takes(), x=X, act=aot.Constant(max), stream=STREAM)
    assert fitted(made).spec.arguments == made.spec.arguments
    made = variant(lambda *arguments: None, x=X, act=aot.Constant(max), stream=STREAM)
    assert fitted(made) is made


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x": X, "stream": STREAM}, r"the spec has 2 arguments, the jit function takes 5 to 6: x, bias, flag, tile"),
        ({"x": X, "b": aot.Constant(max), "f": aot.Constant(1), "tile": aot.Constant(1), "stream": STREAM}, "only None and numbers"),
        ({"x": X, "b": aot.Constant(None), "f": aot.Constant(1), "n": aot.ActiveClusters(), "stream": STREAM}, "wrap the jit function"),
        ({"x": X, "b": aot.Constant(None), "f": aot.Constant(1), "tile": X, "stream": STREAM}, r"aot.Constant\(value\)"),
    ],
)  # fmt: skip
def test_what_cannot_fit_names_the_kernel_and_the_parameter(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=words) as raised:
        fitted(variant(takes, **arguments))
    assert "test_signature.py:" in raised.value.message


class Float32:
    """Stands for CuTe DSL's, which is known by its name and its module."""

    __module__ = "cutlass"


def scaled(x: Any, factor: Float32, stream: Any) -> None: ...


def test_a_number_of_another_type_than_the_annotation_is_refused_before_it_is_compiled() -> None:
    made = variant(scaled, x=X, factor=aot.Scalar("f32"), stream=STREAM)
    assert fitted(made).spec.arguments == made.spec.arguments
    with pytest.raises(DeclarationError) as error:
        fitted(variant(scaled, x=X, factor=aot.Scalar("i32"), stream=STREAM))
    assert "factor" in error.value.message and "cutlass.Float32" in error.value.message
    assert 'aot.Scalar("f32")' in str(error.value.hint)
    unannotated = variant(takes, x=X, bias=X, flag=aot.Scalar("i32"), tile=aot.Constant(1), stream=STREAM)
    fitted(unannotated)
