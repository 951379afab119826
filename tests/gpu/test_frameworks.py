"""The shipped kernels inside torch, JAX and CuPy on a real GPU: ``pytest tests/gpu --bundle dist/kernels``."""

from __future__ import annotations

from contextlib import nullcontext, suppress
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


@pytest.fixture(scope="module")
def ops(bundle: aot_runtime.Bundle) -> Any:
    import aot_runtime.torch

    return aot_runtime.torch.register(bundle)


def bf16(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


CALLS: dict[str, tuple[Any, ...]] = {
    "add": ((64, 256), (64, 256)),
    "activation": ((64, 256),),
    "silu_and_mul": ((64, 512),),
    "rmsnorm": ((64, 256), (256,)),
    "rmsnorm_residual": ((64, 256), (64, 256), (256,)),
    "layernorm": ((64, 256), (256,), (256,)),
    "softmax": ((64, 256),),
    "reduce": ((64, 256),),
    "quantize_fp8": ((64, 256),),
    "gemm": ((64, 256), (128, 256)),
    "argmax": ((64, 256),),
    "cross_entropy": ((64, 256), lambda: torch.arange(64, device="cuda")),
    "rope": ((64, 4, 128), lambda: torch.randn(64, 64, device="cuda"), lambda: torch.randn(64, 64, device="cuda")),
    "top_k": ((64, 256), lambda: 8),
}
OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
CHOICES: dict[str, dict[str, str]] = {
    "activation": {"op": "gelu"},
    "reduce": {"op": "sum"},
    "gemm": {"epilogue": "silu"},
}


# Families that are built on request have tests of their own; `aot check` calls their kernels too.
ON_REQUEST = {
    "attention", "attention_decode", "cache_append", "mla_decode", "gemm_f32", "gemm_fp8", "grouped_gemm",
    "quantize_fp8_blocks", "quantize_fp8_scaled", "quantize_fp8_squares",
}  # fmt: skip


def arguments_of(kernel: str) -> tuple[Any, ...]:
    """Tensors in bf16 of the shapes in ``CALLS``, and what is listed there as a function."""
    return tuple(item() if callable(item) else bf16(*item) for item in CALLS[kernel])


def test_every_kernel_is_called_here(ops: Any) -> None:
    # Backward kernels are called by autograd, in test_gradients.py.
    assert {name for name in ops if not name.endswith("_backward")} - ON_REQUEST == set(CALLS)


@pytest.mark.parametrize("kernel", CALLS)
def test_torchs_own_check_of_operators_passes(ops: Any, kernel: str) -> None:
    arguments = arguments_of(kernel)
    choices = CHOICES.get(kernel, {})
    packet = getattr(torch.ops.kernels, kernel)
    results = packet(*arguments, **choices)
    names = [argument.name for argument in packet.out._schema.arguments if argument.is_out or argument.alias_info]
    outs = dict(zip(names, results if isinstance(results, tuple) else (results,), strict=True))
    # Torch's test of schemas multiplies tensors, and cannot multiply fp8.
    tests = [name for name in OPCHECKS if kernel != "quantize_fp8" or name != "test_schema"]
    for overload, extra in ((packet.default, {}), (packet.out, {k: torch.empty_like(v) for k, v in outs.items()})):
        verdicts = torch.library.opcheck(overload, arguments, {**choices, **extra}, test_utils=tests)
        assert verdicts == dict.fromkeys(tests, "SUCCESS")


@pytest.mark.parametrize("kernel", CALLS)
def test_the_operator_the_short_way_and_the_plain_call_agree(ops: Any, bundle: aot_runtime.Bundle, kernel: str) -> None:
    arguments = arguments_of(kernel)
    choices = CHOICES.get(kernel, {})
    short = getattr(ops, kernel)(*arguments, **choices)
    dispatched = getattr(torch.ops.kernels, kernel)(*arguments, **choices)
    for one, other in zip(as_tuple(short), as_tuple(dispatched), strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def block(ops: Any, x: Any, residual: Any, weight: Any, up: Any, down: Any) -> Any:
    """A feed-forward block of a transformer."""
    normed, residual = ops.rmsnorm_residual(x, residual, weight)
    return ops.gemm(ops.silu_and_mul(ops.gemm(normed, up)), down), residual


def reference(x: Any, residual: Any, weight: Any, up: Any, down: Any) -> Any:
    residual = x + residual
    normed = torch.nn.functional.rms_norm(residual, (x.shape[-1],), weight, 1e-6)
    gate, value = (normed @ up.T).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * value) @ down.T, residual


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_torch_compile_takes_a_block_whole_for_every_size(ops: Any, mode: str | None) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    weight, up, down = bf16(512).abs(), bf16(2048, 512) / 22, bf16(512, 1024) / 32
    compiled = torch.compile(lambda *args: block(ops, *args), fullgraph=True, dynamic=mode is None, mode=mode)
    with torch.no_grad():
        for rows in (64, 100, 333):
            for _ in range(3):  # the second and third are replays of a CUDA graph
                x, residual = bf16(rows, 512), bf16(rows, 512)
                got = compiled(x, residual, weight, up, down)
                for one, exact in zip(got, reference(x, residual, weight, up, down), strict=True):
                    assert (one.float() - exact.float()).norm() < 0.02 * exact.float().norm()
    if mode is None:
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_an_operator_runs_on_the_current_stream(ops: Any) -> None:
    x = bf16(4096, 4096)
    expected = torch.relu(x * 3)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # what is launched on another stream would run before this ends
        y = x * 3
        out = ops.activation(y, op="relu")
        del y
    side.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("mode", ["enable_grad", "no_grad", "inference_mode"])
def test_every_way_of_writing_counts_one_version(ops: Any, bundle: aot_runtime.Bundle, mode: str) -> None:
    x, weight, out = bf16(64, 256), bf16(256), bf16(64, 256)
    with getattr(torch, mode)():
        for call in (ops.rmsnorm.out, torch.ops.kernels.rmsnorm.out):
            before = out._version
            call(x, weight, out=out)
            assert out._version == before + 1
        bundle.rmsnorm(x, weight, out)
        assert out._version == before + 2
        assert torch.equal(torch.ops.kernels.rmsnorm(x, weight), out)


def test_tensors_elsewhere_behave_as_torch_users_know_it(ops: Any) -> None:
    x, weight = bf16(64, 256), bf16(256)
    shape = ops.rmsnorm(x.to("meta"), weight.to("meta"))
    assert (shape.device.type, shape.shape, shape.dtype) == ("meta", (64, 256), torch.bfloat16)
    with pytest.raises(aot_runtime.ArgumentError, match="none of the tensors lies on a CUDA device"):
        ops.rmsnorm(x.cpu(), weight.cpu())
    with pytest.raises(aot_runtime.ArgumentError):
        ops.rmsnorm(x, weight.cpu())
    with pytest.raises(NotImplementedError):
        torch.ops.kernels.rmsnorm(x.cpu(), weight.cpu())


def test_ten_thousand_calls_leak_nothing(ops: Any) -> None:
    x, weight = bf16(64, 256), bf16(256)
    for _ in range(10):
        ops.rmsnorm(x, weight)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10_000):
        ops.rmsnorm(x, weight)
        torch.ops.kernels.rmsnorm(x, weight)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("named", [True, False])
def test_cupy_arrays_on_a_stream_of_their_own(bundle: aot_runtime.Bundle, named: bool) -> None:
    """Without ``use_stream`` the kernel waits on the default stream, which is busy here, and CuPy reads too early."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    x = cupy.ones((4096, 4096), dtype=cupy.float16)
    out = cupy.zeros_like(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    bundle.preload(0)
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)
    with stream, aot_runtime.use_stream(stream) if named else nullcontext():
        x *= 3
        bundle.add(x, x, out)
        read = out.copy()
    torch.cuda.synchronize()
    assert float(read.max()) == float(read.min()) == (6.0 if named else 0.0)


def test_jax_functions_under_jit(bundle: aot_runtime.Bundle) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    pytest.importorskip("jax_tvm_ffi", reason="jax-tvm-ffi is not installed")
    import aot_runtime.jax

    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    functions = aot_runtime.jax.register(bundle)
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(keys[0], (64, 256), jax.numpy.bfloat16)
    weight = jax.random.normal(keys[1], (256,), jax.numpy.bfloat16)

    @jax.jit
    def program(x: Any, weight: Any) -> Any:
        normed = functions.rmsnorm(x * 1, weight, in_place="x")
        _, scale = functions.quantize_fp8(normed)
        return functions.gemm(normed, normed, epilogue="relu"), functions.softmax(x), scale

    product, soft, scale = program(x, weight)
    wide = x.astype("float32")
    exact = wide / jax.numpy.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * weight.astype("float32")
    assert abs(soft.astype("float32") - jax.nn.softmax(wide)).max() < 4e-3
    assert abs(scale * 448 / abs(exact).max(-1) - 1).max() < 0.02
    wanted = jax.numpy.maximum(exact @ exact.T, 0)
    assert abs(product.astype("float32") - wanted).max() < 0.02 * abs(wanted).max()
