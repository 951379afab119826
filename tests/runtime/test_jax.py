"""A bundle's kernels as functions of JAX: shapes, lowering and errors. Running them takes a GPU."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi
from aot_runtime.errors import ArgumentError
from aot_runtime.exposed import ExposeError
from aot_runtime.kernel_records import Choice, KernelRecord, Parameter

pytestmark = pytest.mark.jax
jax: Any = None
functions: Any = None
with suppress(ImportError):
    import jax
    from aot_runtime import jax as functions


@pytest.fixture(autouse=True, scope="module")
def _needs_jax() -> None:
    if jax is None:
        pytest.skip("functions of JAX need JAX")
    pytest.importorskip("jax_tvm_ffi", reason="functions of JAX need jax-tvm-ffi")


def tensor(name: str, **fields: Any) -> Parameter:
    return Parameter(name, type=fields.pop("type", "tensor"), **fields)


def output(name: str, shape: str, dtype: str, **fields: Any) -> Parameter:
    return Parameter(name, output=True, shape=shape, dtype=dtype, type="tensor", **fields)


KERNELS = {
    "rmsnorm": KernelRecord(
        "rmsnorm", "Rows.",
        (
            tensor("x"), tensor("weight"), output("out", "x.shape", "x.dtype", may_be=("x",)),
            Parameter("eps", has_default=True, default=1e-6, type="float"),
        ),
        (), ("rmsnorm",), (), 1,
    ),
    "quantize": KernelRecord(
        "quantize", "",
        (tensor("x"), output("out", "x.shape", "f8e4m3"), output("scale", "(x.shape[0],)", "f32")),
        (), ("quantize",), (), 1,
    ),
    "gemm": KernelRecord(
        "gemm", "",
        (
            tensor("a"), tensor("b"), output("out", "(*a.shape[:-1], b.shape[-2])", "a.dtype"),
            Parameter("bias", has_default=True, default=None, type="tensor?"),
        ),
        (Choice("epilogue", ("identity", "relu"), "identity"),), ("gemm__identity", "gemm__relu"), (), 1,
    ),
    "pointers": KernelRecord(
        "pointers", "", (tensor("x"), output("out", "x.shape", "x.dtype"), Parameter("p", type="pointer")), (),
        ("pointers",), (), 1,
    ),
}  # fmt: skip


class Played:
    """A bundle whose functions note what they were called with."""

    def __init__(self, name: str, path: str = "here") -> None:
        self.name, self.path = name, Path(path)
        self.kernels = tuple(KERNELS)

    def _record(self, name: str) -> KernelRecord:
        return KERNELS[name]

    def _symbol(self, name: str) -> Any:
        return tvm_ffi.convert(lambda *arguments: None)


@pytest.fixture(scope="module")
def kernels() -> Any:
    return functions.register(Played("jax_played"))


def struct(*shape: int, dtype: str = "bfloat16") -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def lowered(function: Any, *arguments: Any) -> str:
    """The program that XLA would get on a GPU."""
    return str(jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text())


def test_shapes_and_dtypes_come_from_the_declaration(kernels: Any) -> None:
    x = struct(4, 8)
    assert jax.eval_shape(kernels.rmsnorm, x, struct(8)) == x
    values, scale = jax.eval_shape(kernels.quantize, x)
    assert (values.dtype.name, values.shape, scale.dtype.name, scale.shape) == (
        "float8_e4m3fn",
        (4, 8),
        "float32",
        (4,),
    )
    assert jax.eval_shape(kernels.gemm, struct(2, 4, 8), struct(2, 6, 8)).shape == (2, 4, 6)


def test_a_call_becomes_a_foreign_call_with_its_attributes(kernels: Any) -> None:
    text = lowered(lambda x, w: kernels.rmsnorm(x, w, eps=0.5), struct(4, 8), struct(8))
    assert "@jax_played.rmsnorm" in text and "eps = 5.000000e-01 : f64" in text


def test_choices_and_absent_arrays_name_another_function(kernels: Any) -> None:
    a, bias = struct(4, 8), struct(4)
    assert "@jax_played.gemm__relu.no_bias" in lowered(lambda a: kernels.gemm(a, a, epilogue="relu"), a)
    assert "@jax_played.gemm__identity(" in lowered(lambda a, bias: kernels.gemm(a, a, bias), a, bias)


def test_an_output_may_take_the_memory_of_an_input(kernels: Any) -> None:
    text = lowered(lambda x, w: kernels.rmsnorm(x, w, in_place="x"), struct(4, 8), struct(8))
    assert "output_operand_alias" in text
    with pytest.raises(ArgumentError, match="cannot work in place on 'weight'; it can on: x"):
        jax.eval_shape(lambda x, w: kernels.rmsnorm(x, w, in_place="weight"), struct(4, 8), struct(8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k, x: k.rmsnorm(x), "`weight` is missing"),
        (lambda k, x: k.rmsnorm(x, x, 1e-6, 1), "takes 3 arguments"),
        (lambda k, x: k.rmsnorm(x, x, weight=x), "`weight` was passed twice"),
        (lambda k, x: k.rmsnorm(x, x, epsilon=1), "`epsilon` is not one of eps, weight, x"),
        (lambda k, x: k.gemm(x, x, epilogue="tanh"), "epilogue = 'tanh'; known: identity, relu"),
    ],
)
def test_wrong_calls_are_refused_with_what_is_right(kernels: Any, call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        jax.eval_shape(lambda x: call(kernels, x), struct(4, 8))


def test_kernels_with_pointers_are_refused(kernels: Any) -> None:
    assert list(kernels) == ["rmsnorm", "quantize", "gemm"]
    with pytest.raises(ExposeError, match="pointers cannot be offered here"):
        _ = kernels.pointers


def test_there_is_no_derivative(kernels: Any) -> None:
    x = jax.numpy.ones((4, 8))
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.eval_shape(jax.grad(lambda x: kernels.rmsnorm(x, jax.numpy.ones(8)).sum()), x)


def test_platforms_without_the_kernels_are_refused_by_xla(kernels: Any) -> None:
    with jax.default_device(jax.devices("cpu")[0]), pytest.raises(Exception, match=r"jax_played\.rmsnorm"):
        kernels.rmsnorm(jax.numpy.ones((4, 8)), jax.numpy.ones(8))
