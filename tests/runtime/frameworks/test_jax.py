"""A bundle's kernels as functions of JAX: shapes, lowering and errors. Running them takes a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
import tvm_ffi
from aot_runtime.description.kernel_records import Backward, Choice, KernelRecord, Parameter
from aot_runtime.errors import ArgumentError
from aot_runtime.frameworks.exposed import ExposeError
from aot_runtime.frameworks.fakes import make_check, tensor_facts

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


POWER = Parameter("power", has_default=True, default=1.0, type="float")
KERNELS = {
    "rmsnorm": KernelRecord(
        "rmsnorm", "Rows.",
        (
            tensor("x"), tensor("weight"), output("out", "x.shape", "x.dtype", may_be=("x",)),
            Parameter("eps", has_default=True, default=1e-6, type="float"),
        ),
        (), ("rmsnorm",), (), 1,
    ),
    "residual": KernelRecord(
        "residual", "",
        (
            tensor("x"), tensor("y"), output("out", "x.shape", "x.dtype", may_be=("x", "y")),
            output("total", "x.shape", "x.dtype", may_be=("x", "y")),
        ),
        (), ("residual",), (), 1,
    ),
    "scale": KernelRecord(
        "scale", "", (tensor("x"), tensor("factor"), output("out", "x.shape", "x.dtype", may_be=("x",)), POWER),
        (Choice("op", ("times", "over")),), ("scale__times", "scale__over"), (), 1,
        Backward("scale_backward", ("x", "factor", "power"), ("x", "factor")),
    ),
    "scale_backward": KernelRecord(
        "scale_backward", "",
        (
            tensor("x"), output("grad_x", "x.shape", "x.dtype"), tensor("factor"), tensor("grad_out"),
            output("grad_factor", "factor.shape", "factor.dtype"), output("scratch", "x.shape", "f32"), POWER,
        ),
        (Choice("op", ("times", "over")),), ("scale_backward__times", "scale_backward__over"), (), 1,
    ),
    "pick": KernelRecord(
        "pick", "", (tensor("x"), tensor("places"), output("out", "(x.shape[0],)", "x.dtype"), POWER),
        (Choice("op", ("one",)),), ("pick__one",), (), 1, Backward("pick_backward", ("x", "places"), ("x",)),
    ),
    "pick_backward": KernelRecord(
        "pick_backward", "",
        (tensor("grad_out"), tensor("x"), tensor("places"), output("grad_x", "x.shape", "x.dtype"), POWER),
        (Choice("op", ("one",)),), ("pick_backward__one",), (), 1,
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
    "parts": KernelRecord(
        "parts", "",
        (
            tensor("x"), output("out", "(1,)", "f32"),
            Parameter("scratch", has_default=True, default=None, type="tensor?", workspace="4 * x.shape[0]"), POWER,
        ),
        (Choice("op", ("add",)),), ("parts__add",), (), 1,
    ),
    "product": KernelRecord(
        "product", "",
        (
            tensor("a"), tensor("b"), output("out", "(a.shape[0], b.shape[0])", "a.dtype"),
            Parameter("factor", has_default=True, default=None, type="tensor?"), POWER,
        ),
        (Choice("op", ("plain", "scaled")),), ("product__plain", "product__scaled"), (), 1,
        Backward(
            "", (), ("a", "b"),
            ("product(grad_out, b.mT, power=power, op='plain')", "product(grad_out.mT, a.mT, power=power, op=op)"),
            "scale(product(a, b, power=power, op='plain'), factor, op='times')", ("op=plain",),
        ),
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

    def _call(self, name: str) -> int:
        return 1005  # the protocol of a bundle that cannot be asked about calls without memory

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
    with pytest.raises(ArgumentError, match="cannot work in place on 'weight'; `out` can take the memory of: x"):
        jax.eval_shape(lambda x, w: kernels.rmsnorm(x, w, in_place="weight"), struct(4, 8), struct(8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k, x: k.rmsnorm(x), "`weight` is missing"),
        (lambda k, x: k.rmsnorm(x, x, 1e-6, 1), "takes 3 arguments"),
        (lambda k, x: k.rmsnorm(x, x, weight=x), "`weight` was passed twice"),
        (lambda k, x: k.rmsnorm(x, x, epsilon=1), "`epsilon` is not one of eps, weight, x"),
        (lambda k, x: k.gemm(x, x, epilogue="tanh"), "epilogue = 'tanh'; known: identity, relu"),
        (lambda k, x: k.rmsnorm(None, x), "`x` is an array, got NoneType"),
        (lambda k, x: k.rmsnorm([1.0], x), "`x` is an array, got list"),
    ],
)
def test_wrong_calls_are_refused_with_what_is_right(kernels: Any, call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        jax.eval_shape(lambda x: call(kernels, x), struct(4, 8))


def test_functions_have_a_signature_and_take_arrays_of_numpy(kernels: Any) -> None:
    import numpy

    assert str(inspect.signature(kernels.rmsnorm)) == "(x, weight, eps=1e-06, *, in_place=None)"
    assert "weight (tensor)" in kernels.rmsnorm.__doc__
    # JAX makes f32 of NumPy's f64, unless its users turn that off, and so does the output.
    seen = jax.eval_shape(lambda: kernels.rmsnorm(numpy.ones((4, 8)), numpy.ones(8)))
    assert seen.dtype == jax.numpy.ones(1).dtype


def test_kernels_with_pointers_are_refused(kernels: Any) -> None:
    assert list(kernels) == [name for name in KERNELS if name != "pointers"]
    with pytest.raises(ExposeError, match="pointers cannot be offered here"):
        _ = kernels.pointers


def test_without_a_backward_kernel_there_is_no_derivative(kernels: Any) -> None:
    x = jax.numpy.ones((4, 8))
    with pytest.raises(ValueError, match=r"jax_played\.rmsnorm` cannot be differentiated"):
        jax.eval_shape(jax.grad(lambda x: kernels.rmsnorm(x, jax.numpy.ones(8)).sum()), x)


def test_a_program_on_the_cpu_says_that_kernels_need_a_gpu(kernels: Any) -> None:
    arrays = jax.numpy.ones((4, 8)), jax.numpy.ones(8)
    with jax.default_device(jax.devices("cpu")[0]):
        for call in (kernels.rmsnorm, jax.jit(kernels.rmsnorm)):
            with pytest.raises(Exception, match="rmsnorm of bundle 'jax_played' runs on NVIDIA GPUs"):
                jax.block_until_ready(call(*arrays))


def test_several_outputs_may_take_the_memory_of_inputs(kernels: Any) -> None:
    x = struct(4, 8)
    places = {"out": "y", "total": "x"}
    text = lowered(lambda x, y: kernels.residual(x, y, in_place=places), x, x)
    assert text.count("output_operand_alias<") == 2
    with pytest.raises(ArgumentError, match="cannot work in place on 'x'; `total` can take the memory of: x, y"):
        jax.eval_shape(lambda x, y: kernels.residual(x, y, in_place={"out": "x", "total": "x"}), x, x)


def test_a_donated_argument_is_handed_on_to_the_kernel(kernels: Any) -> None:
    program = jax.jit(lambda x, w: kernels.rmsnorm(x, w, in_place="x"), donate_argnums=0)
    text = str(program.trace(struct(4, 8), struct(8)).lower(lowering_platforms=("cuda",)).as_text())
    assert "tf.aliasing_output = 0" in text and "output_operand_alias" in text


def test_targets_are_known_before_anything_is_traced() -> None:
    """As an exported program needs them, in the process that loads it."""
    made = functions.register(Played("jax_untraced"))
    assert made.gemm.targets == [
        f"jax_untraced.gemm__{epilogue}{absent}" for epilogue in ("identity", "relu") for absent in ("", ".no_bias")
    ]


def test_targets_of_a_gpu_may_become_part_of_a_cuda_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax_tvm_ffi

    seen: set[tuple[str, bool]] = set()
    played = lambda *target, platform, allow_cuda_graph=False: seen.add((platform, allow_cuda_graph))  # noqa: E731
    monkeypatch.setattr(jax_tvm_ffi, "register_ffi_target", played)
    assert functions.register(Played("jax_graphs")).gemm.targets
    assert seen == {("gpu", True), ("cpu", False)}


def test_export_keeps_the_foreign_call_and_symbolic_shapes(kernels: Any) -> None:
    from jax import export

    (rows,) = export.symbolic_shape("rows")
    x = jax.ShapeDtypeStruct((rows, 8), "bfloat16")
    program = jax.jit(lambda x, w: kernels.rmsnorm(x, w))
    with pytest.raises(ValueError, match=r"jax_played\.rmsnorm"):
        export.export(program, platforms=["cuda"])(x, struct(8))
    checks = functions.export_checks(kernels)
    exported = export.export(program, platforms=["cuda"], disabled_checks=checks)(x, struct(8))
    assert "@jax_played.rmsnorm" in exported.mlir_module() and str(exported.out_avals[0].shape) == "(rows, 8)"


# With kernels that NumPy plays on the CPU: what XLA hands to them, and what it makes of the results.


PRODUCTS: list[tuple[int, ...]] = []  # shapes of results


def play(name: str, *tensors: Any) -> None:
    import numpy

    *arrays, power = tensors
    arrays = [None if array is None else numpy.from_dlpack(array) for array in arrays]
    for array in arrays:  # results of XLA are written by address
        assert array is None or array.flags.c_contiguous
    kernel, op = name.split("__")
    if kernel == "scale":
        x, factor, out = arrays
        _write(out, x * factor**power if op == "times" else x / factor**power)
    elif kernel == "pick":
        x, places, out = arrays
        _write(out, x[numpy.arange(len(x)), places])
    elif kernel == "pick_backward":
        grad_out, x, places, grad_x = arrays
        _write(grad_x, grad_out[:, None] * (numpy.arange(x.shape[1]) == places[:, None]))
    elif kernel == "product":
        a, b, out, factor = arrays
        PRODUCTS.append(out.shape)
        _write(out, a @ b.T * power * (factor if op == "scaled" else 1))
    elif kernel == "parts":
        x, out, scratch = arrays
        assert scratch.shape == (4 * len(x),) and scratch.dtype == numpy.uint8
        _write(scratch, x.view(numpy.uint8))
        _write(out, scratch.view(numpy.float32).sum(keepdims=True) * power)
    else:
        x, grad_x, factor, grad_out, grad_factor, scratch = arrays
        sign = 1 if op == "times" else -1
        _write(grad_x, grad_out * factor ** (sign * power))
        _write(grad_factor, (grad_out * x).sum(0) * sign * power * factor ** (sign * power - 1))
        _write(scratch, 0 * x)


def _write(target: Any, values: Any) -> None:
    import ctypes

    data = values.astype(target.dtype).tobytes()
    ctypes.memmove(target.ctypes.data, data, len(data))


class PlayedOnCpu(Played):
    def _symbol(self, name: str) -> Any:
        return tvm_ffi.convert(lambda *arguments: play(name, *arguments))


@pytest.fixture
def on_cpu(registered_on_cpu: Any) -> Iterator[Any]:
    """Functions that run on the CPU, also if JAX sees a GPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield registered_on_cpu


@pytest.fixture(scope="module")
def registered_on_cpu() -> Any:
    """Functions whose targets are those of the CPU."""
    import jax_tvm_ffi

    register = jax_tvm_ffi.register_ffi_target

    def on_cpu(name: str, function: Any, spec: list[str], platform: str, **options: Any) -> None:
        if platform == "gpu":
            register(name, function, spec, platform="cpu", pass_owned_tensor=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax_tvm_ffi, "register_ffi_target", on_cpu)
        return functions.register(PlayedOnCpu("jax_on_cpu"))


def reference(x: Any, factor: Any, power: float) -> Any:
    return x / factor**power


X, FACTOR = [[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]], [2.0, 0.5, 4.0]


def test_gradients_come_from_the_backward_kernel(on_cpu: Any) -> None:
    x, factor = jax.numpy.array(X), jax.numpy.array(FACTOR)
    ours = jax.jit(jax.grad(lambda x, f: (on_cpu.scale(x, f, 2.0, op="over") ** 2).sum(), argnums=(0, 1)))
    exact = jax.grad(lambda x, f: (reference(x, f, 2.0) ** 2).sum(), argnums=(0, 1))
    for one, other in zip(ours(x, factor), exact(x, factor), strict=True):
        assert jax.numpy.allclose(one, other)


def test_an_array_of_integers_needs_no_gradient(on_cpu: Any) -> None:
    x, places = jax.numpy.array(X), jax.numpy.array([2, 0])
    ours = jax.jit(jax.grad(lambda x, places: (on_cpu.pick(x, places, op="one") ** 2).sum()))
    assert ours(x, places).tolist() == [[0, 0, 6], [8, 0, 0]]


@pytest.mark.parametrize("op", ["plain", "scaled"])
def test_gradients_may_be_calls_of_other_kernels(on_cpu: Any, op: str) -> None:
    a, b, factor = jax.numpy.array(X), jax.numpy.arange(12.0).reshape(4, 3), jax.numpy.arange(1.0, 5.0)

    def exact(a: Any, b: Any) -> Any:
        return a @ b.T * 2.0 * (factor if op == "scaled" else 1.0)

    ours = jax.jit(jax.grad(lambda a, b: (on_cpu.product(a, b, factor, 2.0, op=op) ** 2).sum(), argnums=(0, 1)))
    wanted = jax.grad(lambda a, b: (exact(a, b) ** 2).sum(), argnums=(0, 1))(a, b)
    for one, other in zip(ours(a, b), wanted, strict=True):
        assert jax.numpy.allclose(one, other)


def test_gradients_that_nobody_wants_are_not_computed(on_cpu: Any) -> None:
    a, b, factor = jax.numpy.array(X), jax.numpy.arange(12.0).reshape(4, 3), jax.numpy.arange(1.0, 5.0)
    PRODUCTS.clear()
    jax.jit(jax.grad(lambda a: on_cpu.product(a, b, factor, 2.0, op="plain").sum()))(a).block_until_ready()
    assert sorted(PRODUCTS) == [(2, 3)]  # the result itself is not needed either
    with pytest.raises(ArgumentError, match="no gradient of `factor`"):
        jax.grad(lambda factor: on_cpu.product(a, b, factor, 2.0, op="plain").sum())(factor)


def test_scratch_memory_is_a_result_that_callers_do_not_get(on_cpu: Any) -> None:
    x = jax.numpy.arange(5.0)
    for call in (on_cpu.parts, jax.jit(lambda x, op: on_cpu.parts(x, op=op), static_argnames="op")):
        total = call(x, op="add")
        assert total.shape == (1,) and total[0] == 10
    with pytest.raises(ArgumentError, match="`scratch` is not one of op, power, x"):
        on_cpu.parts(x, op="add", scratch=x)


def test_second_and_forward_derivatives_are_refused(on_cpu: Any) -> None:
    x, factor = jax.numpy.array(X), jax.numpy.array(FACTOR)
    once = jax.grad(lambda x: on_cpu.scale(x, factor, op="times").sum())
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda x: once(x).sum())(x)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: on_cpu.scale(x, factor, op="times"), (x,), (x,))


def test_vmap_calls_the_kernel_for_each_element(on_cpu: Any) -> None:
    x, factor = jax.numpy.stack([jax.numpy.array(X)] * 3) * jax.numpy.arange(1.0, 4.0)[:, None, None], FACTOR
    got = jax.vmap(lambda one: on_cpu.scale(one, jax.numpy.array(factor), op="over"))(x)
    assert jax.numpy.allclose(got, x / jax.numpy.array(factor))


def test_an_input_is_kept_if_it_is_needed_after_a_call_in_place(on_cpu: Any) -> None:
    @jax.jit
    def program(x: Any, factor: Any) -> Any:
        return on_cpu.scale(x, factor, op="times", in_place="x"), x + 1

    x, factor = jax.numpy.array(X), jax.numpy.array(FACTOR)
    scaled, kept = program(x, factor)
    assert jax.numpy.allclose(scaled, x * factor) and jax.numpy.allclose(kept, jax.numpy.array(X) + 1)


# Real kernels, of which calls are traced.


@pytest.fixture
def plain_demo(plain_demo_path: Path) -> Any:
    return aot_runtime.load(plain_demo_path)


@pytest.fixture
def demo(plain_demo: Any) -> Any:
    return functions.register(plain_demo)


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ArgumentError) as caught:
        call()
    return str(caught.value)


def vector(extent: int, dtype: str = "f32") -> Any:
    return tensor_facts(dtype, (extent,))


def expected(bundle: Any, *facts: Any) -> str:
    """What the dispatcher says of a call of ``axpy``."""
    return refusal(lambda: make_check(bundle)("axpy", -1, *facts, 1.0))


def test_eval_shape_and_jit(demo: Any, plain_demo: Any) -> None:
    x, half = jax.ShapeDtypeStruct((8,), "float32"), jax.ShapeDtypeStruct((8,), "float16")
    assert jax.eval_shape(demo.axpy, x, x) == x
    said = expected(plain_demo, vector(8), vector(8, "f16"), vector(8))
    assert refusal(lambda: jax.eval_shape(demo.axpy, x, half)) == said
    assert refusal(lambda: jax.jit(demo.axpy).trace(x, half)) == said
    longer = jax.ShapeDtypeStruct((9,), "float32")
    said = expected(plain_demo, vector(8), vector(9), vector(8))
    assert refusal(lambda: jax.eval_shape(demo.axpy, x, longer)) == said


def test_exported_programs_have_symbols_for_extents(demo: Any) -> None:
    (rows,) = jax.export.symbolic_shape("rows")
    x = jax.ShapeDtypeStruct((rows,), "float32")
    options = {"platforms": ("cuda",), "disabled_checks": functions.export_checks(demo)}
    jax.export.export(jax.jit(demo.axpy), **options)(x, x)
    wrong = jax.ShapeDtypeStruct((rows,), "float16")
    said = refusal(lambda: jax.export.export(jax.jit(demo.axpy), **options)(x, wrong))
    assert "y.dtype is float16" in said and "float32[?]" in said
