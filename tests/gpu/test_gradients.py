"""Gradients of the shipped kernels on a real GPU, against torch's autograd in f64.

Needs a bundle with the backward kernels: ``python -m aot build --arch sm90 --family all``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import aot_runtime
import pytest

torch: Any = None
with suppress(ImportError):
    import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("torch"),
    # Frameworks warn about parts of themselves; torch begins CUDA graphs with an empty one.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
]
NEEDS = {"rmsnorm_backward": "all"}
# Relative to the norm of the gradient: two roundings to the dtype, of the result of the forward and of the gradient.
BOUNDS = {"float32": 2e-6, "bfloat16": 8e-3, "float16": 1e-3}


@pytest.fixture(scope="module")
def ops(bundle: aot_runtime.Bundle) -> Any:
    from aot_runtime import torch as operators

    return operators.register(bundle)


def rms_norm(x: Any, weight: Any) -> Any:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def silu_and_mul(x: Any) -> Any:
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def activation(op: str) -> Callable[[Any], Any]:
    if op == "gelu_tanh":
        return lambda x: torch.nn.functional.gelu(x, approximate="tanh")
    return getattr(torch.nn.functional, op)  # type: ignore[no-any-return]


def vectors(columns: int) -> list[tuple[int, ...]]:
    return [(columns,), (columns,)]


# Kernel, choices, torch's own function, and how many vectors of a row's length follow the matrix.
CASES: dict[str, tuple[str, dict[str, str], Callable[..., Any], int]] = {
    "rmsnorm": ("rmsnorm", {}, rms_norm, 1),
    "layernorm": ("layernorm", {}, layer_norm, 2),
    "softmax": ("softmax", {}, lambda x: x.softmax(-1), 0),
    "silu_and_mul": ("silu_and_mul", {}, silu_and_mul, 0),
    **{op: ("activation", {"op": op}, lambda x, op=op: activation(op)(x), 0) for op in ("relu", "gelu", "gelu_tanh", "silu")},
}  # fmt: skip
SHAPES = ((1, 8), (37, 130), (300, 1024), (4096, 4096), (5, 40_000))


def leaves(shape: tuple[int, int], count: int, dtype: Any) -> list[Any]:
    torch.manual_seed(0)
    shapes = [shape, *vectors(shape[1])[:count]]
    return [torch.randn(*each, device="cuda", dtype=dtype).requires_grad_() for each in shapes]


def gradients(function: Callable[..., Any], arguments: list[Any], arriving: Any) -> tuple[Any, ...]:
    result: tuple[Any, ...] = torch.autograd.grad(function(*arguments), arguments, arriving)
    return result


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_gradients_agree_with_autograd_in_f64(ops: Any, case: str, shape: tuple[int, int], dtype: str) -> None:
    kernel, choices, function, count = CASES[case]
    arguments = leaves(shape, count, getattr(torch, dtype))
    exact_arguments = [argument.detach().double().requires_grad_() for argument in arguments]
    exact_out = function(*exact_arguments)
    arriving = torch.randn_like(exact_out).to(getattr(torch, dtype))
    ours = gradients(lambda *given: getattr(ops, kernel)(*given, **choices), arguments, arriving)
    exact = torch.autograd.grad(exact_out, exact_arguments, arriving.double())
    for name, got, wanted in zip(("x", "weight", "bias"), ours, exact, strict=False):
        assert got.dtype == arguments[0].dtype
        assert (got.double() - wanted).norm() <= BOUNDS[dtype] * wanted.norm(), name


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x.chunk(2, -1)
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def residual(x: Any, residual: Any, weight: Any) -> Any:
    return rms_norm(x + residual, weight), x + residual


def linear(a: Any, b: Any, bias: Any = None, epilogue: str = "identity") -> Any:
    out = a @ b.mT if bias is None else a @ b.mT + bias
    return out if epilogue == "identity" else activation(epilogue)(out)


def of_experts(a: Any, b: Any, offsets: Any) -> Any:
    starts = [0, *offsets.tolist()]
    return torch.cat([a[starts[i] : starts[i + 1]] @ b[i].mT for i in range(len(b))])


def arrays(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return tuple(
        torch.randn(*shape, device="cuda", dtype=torch.bfloat16).mul_(0.5).requires_grad_() for shape in shapes
    )


# Kernel, torch's own function, tensors with a gradient, and other arguments.
CALLS: dict[str, tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...], Callable[[], dict[str, Any]]]] = {
    "gemm": ("gemm", linear, ((296, 256), (520, 256)), dict),
    **{epilogue: ("gemm", linear, ((296, 256), (520, 256), (520,)), lambda epilogue=epilogue: {"epilogue": epilogue})
       for epilogue in ("identity", "relu", "gelu", "silu")},
    "batch": ("gemm", linear, ((3, 296, 256), (3, 520, 256), (520,)), lambda: {"epilogue": "silu"}),
    "gemm_gated": ("gemm_gated", lambda a, b: silu_and_mul(a @ b.mT), ((296, 256), (1040, 256)), dict),
    "gemm_add": ("gemm_add", lambda a, b, addend: addend + a @ b.mT, ((296, 256), (520, 256), (296, 520)), dict),
    "grouped_gemm": ("grouped_gemm", of_experts, ((700, 256), (4, 136, 256)),
                     lambda: {"offsets": torch.tensor([300, 300, 500, 700], device="cuda", dtype=torch.int32)}),
    "add": ("add", lambda x, y: x + y, ((300, 256), (300, 256)), dict),
    "rope": ("rope", rotated, ((300, 4, 128),),
             lambda: {"cos": torch.rand(300, 64, device="cuda"), "sin": torch.rand(300, 64, device="cuda")}),
    "rmsnorm_residual": ("rmsnorm_residual", residual, ((3000, 1024), (3000, 1024), (1024,)), dict),
    "cross_entropy": ("cross_entropy", lambda x, target: torch.nn.functional.cross_entropy(x, target, reduction="none"),
                      ((300, 1000),), lambda: {"target": torch.arange(300, device="cuda")}),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", CALLS)
def test_gradients_that_are_calls_agree_with_autograd_in_f64(ops: Any, case: str, compiled: bool) -> None:
    kernel, function, shapes, others = CALLS[case]
    if kernel not in ops:
        pytest.skip(f"the bundle has no {kernel}")
    given, named = arrays(*shapes), others()
    exact_given = [x.detach().double().requires_grad_() for x in given]
    call = lambda *tensors: getattr(ops, kernel)(*tensors, **named)  # noqa: E731
    results = (torch.compile(call, fullgraph=True) if compiled else call)(*given)
    exact = function(*exact_given, **named)
    results, exact = (x if isinstance(x, tuple) else (x,) for x in (results, exact))
    arriving = [torch.randn_like(x) for x in results]
    ours = torch.autograd.grad(results, given, arriving)
    wanted = torch.autograd.grad(exact, exact_given, [x.double() for x in arriving])
    for one, other in zip(ours, wanted, strict=True):
        assert (one.double() - other).norm() <= BOUNDS["bfloat16"] * other.norm()


@pytest.mark.parametrize("case", ["rmsnorm", "layernorm"])
def test_sums_over_rows_have_the_same_bits_every_time(ops: Any, case: str) -> None:
    kernel, _, _, count = CASES[case]
    arguments = leaves((8191, 1024), count, torch.bfloat16)
    arriving = torch.randn_like(arguments[0])
    first = gradients(getattr(ops, kernel), arguments, arriving)
    for _ in range(20):
        for one, other in zip(first, gradients(getattr(ops, kernel), arguments, arriving), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_compiled_step_of_training_gives_the_gradients_of_an_eager_one(ops: Any, mode: str | None) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    x, weight = leaves((512, 1024), 1, torch.bfloat16)

    def loss(x: Any, weight: Any) -> Any:
        return ops.silu_and_mul(ops.softmax(ops.rmsnorm(x, weight))).float().square().sum()

    compiled = torch.compile(loss, fullgraph=True, mode=mode)
    eager = torch.autograd.grad(loss(x, weight), (x, weight))
    for _ in range(3):  # the second and third are replays of a CUDA graph
        for one, other in zip(torch.autograd.grad(compiled(x, weight), (x, weight)), eager, strict=True):
            assert (one.float() - other.float()).norm() <= 0.02 * other.float().norm()


@pytest.mark.parametrize("kernel", ["rmsnorm", "layernorm", "softmax", "silu_and_mul", "activation"])
def test_torchs_own_check_of_operators_passes_with_gradients(ops: Any, kernel: str) -> None:
    _, _, _, count = CASES.get(kernel, CASES["silu"])
    choices = {"op": "silu"} if kernel == "activation" else {}
    verdicts = torch.library.opcheck(
        getattr(torch.ops.kernels, kernel).default, tuple(leaves((64, 256), count, torch.float32)), choices,
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"),
    )  # fmt: skip
    assert set(verdicts.values()) == {"SUCCESS"}


def test_no_rows_give_gradients_of_zero(ops: Any) -> None:
    x, weight = leaves((0, 512), 1, torch.bfloat16)
    ops.rmsnorm(x, weight).sum().backward()
    assert x.grad.shape == (0, 512) and not weight.grad.any()


def test_a_derivative_in_forward_mode_is_refused(ops: Any) -> None:
    from aot_runtime.torch import GradientError
    from torch.autograd import forward_ad

    x, weight = (leaf.detach() for leaf in leaves((64, 256), 1, torch.bfloat16))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        for call in (ops.rmsnorm, torch.ops.kernels.rmsnorm):
            with pytest.raises(GradientError, match="forward mode"):
                call(dual, weight)
    with pytest.raises(GradientError, match="forward mode"):
        torch.func.jvp(lambda x: ops.rmsnorm(x, weight), (x,), (x,))


def attended(q: Any, k: Any, v: Any, scale: float, right: int) -> Any:
    """Causal attention. All are batch x tokens x heads x elements."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT * scale).masked_fill(torch.ones(q.shape[2], k.shape[2], device="cuda").tril() == 0, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


IN_JAX = {
    **CALLS,
    "rmsnorm": ("rmsnorm", rms_norm, ((300, 1024), (1024,)), dict),
    "attention": ("attention", attended, ((2, 200, 4, 64), (2, 200, 2, 64), (2, 200, 2, 64)),
                  lambda: {"scale": 0.125, "right": 0}),
    "linear_cross_entropy": ("linear_cross_entropy",
                             lambda x, weight, target: torch.nn.functional.cross_entropy(x @ weight.mT, target).view(1),
                             ((300, 128), (1000, 128)), lambda: {"target": torch.arange(300, device="cuda")}),
}  # fmt: skip


@pytest.fixture
def jax() -> Iterator[Any]:
    """JAX with integers of 64 bits, which classes are."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    pytest.importorskip("jax_tvm_ffi", reason="jax-tvm-ffi is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("case", IN_JAX)
def test_gradients_in_jax_agree_with_autograd_in_f64(jax: Any, bundle: aot_runtime.Bundle, case: str) -> None:
    from aot_runtime import jax as bridge

    kernel, function, shapes, others = IN_JAX[case]
    if kernel not in bundle.kernels:
        pytest.skip(f"the bundle has no {kernel}")
    given, named = arrays(*shapes), others()
    exact_given = [x.detach().double().requires_grad_() for x in given]
    exact = as_tuple(function(*exact_given, **named))
    arriving = [torch.randn_like(x).to(torch.float32 if "cross" in kernel else torch.bfloat16) for x in exact]
    wanted = torch.autograd.grad(exact, exact_given, [x.double() for x in arriving])
    torch.cuda.synchronize()
    passed = {name: jax.dlpack.from_dlpack(value) if torch.is_tensor(value) else value for name, value in named.items()}
    arrived = tuple(jax.dlpack.from_dlpack(x) for x in arriving)
    call = getattr(bridge.register(bundle), kernel)

    def gradients(*arrays: Any) -> Any:
        _, pull = jax.vjp(lambda *arrays: as_tuple(call(*arrays, **passed))[: len(exact)], *arrays)
        return pull(arrived)

    ours = jax.jit(gradients)(*(jax.dlpack.from_dlpack(x.detach()) for x in given))
    for one, other in zip(ours, wanted, strict=True):
        error = torch.from_dlpack(one.astype("float32")).double() - other
        assert error.norm() <= BOUNDS["bfloat16"] * other.norm()


def as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)
