"""Which kernels become operators of torch, and what the tables of their library say."""

from __future__ import annotations

from typing import Any

import pytest
from aot_runtime.description.kernel_records import Choice, KernelRecord, Parameter
from aot_runtime.frameworks.exposed import ExposeError
from played_torch import KERNELS

from aot.bundle.operators import WORKSPACE, Step, operators, operators_digest, shape_steps


def kernel(*parameters: Parameter, **fields: Any) -> dict[str, KernelRecord]:
    given: dict[str, Any] = {"choices": (), "functions": ("k",), "archs": (), "variants": 1, "doc": "", **fields}
    return {"k": KernelRecord("k", parameters=parameters, **given)}


X = Parameter("x", type="tensor")
OUT = Parameter("out", output=True, shape="x.shape", dtype="x.dtype", type="tensor")


def test_an_operator_says_where_each_parameter_comes_from() -> None:
    blend, activation, sums, twice, peaks = operators(KERNELS)
    assert blend.parameters == ("x", "out", "factor", "count", "flip", "bias")
    assert blend.order == [0, -1, 1, 2, 3, 4]
    assert activation.functions == ("activation__relu", "activation__one")
    assert sums.order == [0, -1, -2]
    assert twice.order == [0, -1, WORKSPACE] and twice.schema == "twice(Tensor x) -> Tensor"
    assert sums.outputs[0].shape == (Step("EXTENT", 0, 0), Step("APPEND"))
    assert (sums.outputs[0].dtype, sums.outputs[0].dtype_of) == ("f64", -1)
    assert (sums.outputs[1].dtype, sums.outputs[1].dtype_of) == ("", 0)
    assert [(out.dtype, out.optional) for out in peaks.outputs] == [("f64", False), ("f32", True)]


def test_outputs_lie_where_the_first_tensor_that_is_always_there_lies() -> None:
    bias = Parameter("bias", type="tensor?")
    (operator,) = operators(kernel(bias, Parameter("n", type="int"), X, OUT))
    assert operator.device_of == 2


@pytest.mark.parametrize(
    "parameters",
    [
        (X, OUT, Parameter("p", type="pointer")),
        (OUT,),
        (X, OUT.replace(shape="out.shape")),
        (X, OUT.replace(shape="(eps,)"), Parameter("eps", type="float")),
        (X, OUT.replace(dtype="f4")),
        (*(X.replace(name=f"x{i}") for i in range(65)), OUT.replace(shape="x0.shape", dtype="x0.dtype")),
    ],
)
def test_a_kernel_that_torch_cannot_have_is_left_out(parameters: tuple[Parameter, ...]) -> None:
    assert operators(kernel(*parameters)) == ()


def test_a_function_that_no_choice_leads_to_is_left_out() -> None:
    choice = Choice("op", ("a", "b"))
    (operator,) = operators(kernel(X, OUT, choices=(choice,), functions=("k__a", "k__a__b")))
    assert operator.functions == ("k__a",)
    assert operators(kernel(X, OUT, choices=(choice,), functions=("k",))) == ()


def test_a_shape_that_is_too_deep_or_too_large_is_refused() -> None:
    deep = "1 + (" * 40 + "1" + ")" * 40
    for text in (f"({deep},)", f"({2**63},)"):
        with pytest.raises(ExposeError, match="the shape of an output"):
            shape_steps(text, [X])


def test_the_digest_changes_with_whatever_a_call_passes() -> None:
    first = operators_digest(operators(kernel(X, OUT)))
    assert first == operators_digest(operators(kernel(X, OUT, doc="another text")))
    for other in (kernel(OUT, X), kernel(X, OUT.replace(dtype="f32")), kernel(X, OUT, Parameter("n", type="int"))):
        assert operators_digest(operators(other)) != first
