"""The shipped kernels inside torch, JAX and CuPy on a real GPU: ``pytest tests/gpu --bundle dist/kernels``."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def ops(bundle: aot_runtime.Bundle) -> Any:
    import aot_runtime.torch

    return aot_runtime.torch.register(bundle)


def bf16(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def f32(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda")


def f8(*shape: int) -> Any:
    return f32(*shape).to(torch.float8_e4m3fn)


def i32(*numbers: int) -> Any:
    return torch.tensor(numbers, device="cuda", dtype=torch.int32)


def i64(*numbers: int) -> Any:
    return torch.tensor(numbers, device="cuda")


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
    "gemm_gated": ((64, 256), (256, 256)),
    "argmax": ((64, 256),),
    "cross_entropy": ((64, 256), lambda: torch.arange(64, device="cuda")),
    "rope": ((64, 4, 128), lambda: f32(64, 64), lambda: f32(64, 64)),
    "top_k": ((64, 256), lambda: 8),
}
# Of families that are built on request: `python -m aot build --family all`.
CALLS_ON_REQUEST: dict[str, tuple[Any, ...]] = {
    "attention": ((2, 64, 4, 128), (2, 96, 2, 128), (2, 96, 2, 128), lambda: 0.09),
    "attention_decode": (
        (2, 1, 8, 128), (2, 64, 2, 128), (2, 64, 2, 128), lambda: i32(64, 17), lambda: 0.09,
    ),
    "mla_decode": (
        (2, 1, 16, 576), (2, 64, 576), lambda: i32(64, 17), lambda: 0.04, lambda: i32(1, 0).view(2, 1),
    ),
    "mla_decode_sparse": (
        (2, 16, 576), (1, 64, 576), lambda: i32(9, 63, -1, 0).view(2, 2), lambda: i32(2, 1), lambda: 0.04,
    ),
    # As many new tokens as a cache has room for: elsewhere the form that allocates leaves its output undefined.
    "cache_append": ((2, 16, 2, 128), (2, 16, 2, 128), (2, 16, 2, 128), (2, 16, 2, 128), lambda: i32(16, 16)),
    "gemm_f32": (lambda: f32(64, 256), lambda: f32(128, 256)),
    "gemm_fp8": (lambda: f8(64, 256), lambda: f8(128, 256), lambda: f32(64).abs(), lambda: f32(128).abs()),
    "grouped_gemm": ((96, 256), (3, 128, 256), lambda: i32(32, 32, 96)),
    "grouped_gemm_gated": ((96, 256), (3, 256, 256), lambda: i32(32, 32, 96)),
    "quantize_fp8_blocks": ((64, 256),),
    "quantize_fp8_squares": ((64, 256),),
    "quantize_fp8_scaled": ((64, 256), lambda: f32(1).abs()),
    "activation_backward": ((64, 256), (64, 256)),
    "silu_and_mul_backward": ((64, 256), (64, 512)),
    "softmax_backward": ((64, 256), (64, 256)),
    "rmsnorm_backward": ((64, 256), (64, 256), (256,)),
    "layernorm_backward": ((64, 256), (64, 256), (256,)),
    "rmsnorm_residual_backward": ((64, 256), (64, 256), (64, 256), (256,)),
    "cross_entropy_backward": (lambda: f32(64), (64, 256), lambda: torch.arange(64, device="cuda")),
    "column_sums": ((64, 256),),
    "gemm_accumulate": ((64, 128), (256, 128), lambda: f32(64, 256)),
    "gemm_add": ((64, 128), (256, 128), (64, 256)),
    "gemm_rope": ((64, 128), (256, 128), lambda: f32(64, 32), lambda: f32(64, 32), lambda: 3),
    "gemm_gated_product": ((64, 128), (512, 128)),
    "gemm_silu_and_mul_backward": ((64, 128), (256, 128), (64, 512)),
    "linear_cross_entropy": ((64, 128), (512, 128), lambda: torch.arange(64, device="cuda")),
    "linear_cross_entropy_backward": (lambda: f32(1), (64, 128), (512, 128)),
    "grouped_gemm_weights": ((96, 128), (96, 256), lambda: i32(32, 32, 96)),
    "grouped_gemm_accumulate": ((96, 128), (96, 256), lambda: i32(32, 32, 96), lambda: f32(3, 128, 256)),
    "adamw": (  # the caller picks the dtype of the weights; the form that allocates them gives f16
        lambda: bf16(512).half(), lambda: f32(512), lambda: f32(512), lambda: f32(512).abs(), lambda: i64(200, 512), lambda: f32(2).abs(),
        lambda: f32(1).abs(), lambda: i64(3),
    ),
}  # fmt: skip
# Not all of their outputs are defined: some are scratch memory. Torch compares all of them if it compares results;
# test_gradients.py does that with what autograd gives.
SCRATCH = ("rmsnorm_backward", "layernorm_backward", "rmsnorm_residual_backward", "column_sums")
ALL_CALLS = {**CALLS, **CALLS_ON_REQUEST}
CALLED_ELSEWHERE = {"attention_backward"}  # by test_attention_gradients.py, with what `attention` gives
OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
CHOICES: dict[str, dict[str, str]] = {
    "activation": {"op": "gelu"},
    "activation_backward": {"op": "gelu"},
    "reduce": {"op": "sum"},
    "gemm": {"epilogue": "silu"},
}


def namespace(ops: Any) -> Any:
    """The bundle's operators as torch has them."""
    return getattr(torch.ops, ops._name)


def arguments_of(ops: Any, kernel: str) -> tuple[Any, ...]:
    """Tensors in bf16 of the shapes in ``ALL_CALLS``, and what is listed there as a function."""
    if kernel not in ops:
        pytest.skip(f"the bundle has no `{kernel}`: build it with --family all")
    return tuple(item() if callable(item) else bf16(*item) for item in ALL_CALLS[kernel])


def test_every_kernel_is_called_here(ops: Any, bundle: aot_runtime.Bundle) -> None:
    assert set(ops) == set(bundle.kernels)  # every kernel is an operator
    assert set(CALLS) <= set(ops) <= {*ALL_CALLS, *CALLED_ELSEWHERE}


@pytest.mark.parametrize("kernel", ALL_CALLS)
def test_torchs_own_check_of_operators_passes(ops: Any, kernel: str) -> None:
    arguments = arguments_of(ops, kernel)
    choices = CHOICES.get(kernel, {})
    packet = getattr(namespace(ops), kernel)
    results = as_tuple(packet(*arguments, **choices))
    names = [argument.name for argument in packet.out._schema.arguments if argument.is_out or argument.alias_info]
    outs = dict(zip(names, results, strict=True))
    narrow = any(isinstance(x, torch.Tensor) and x.dtype == torch.float8_e4m3fn for x in (*arguments, *results))
    for overload, extra in ((packet.default, {}), (packet.out, {k: torch.empty_like(v) for k, v in outs.items()})):
        # Torch's test of schemas multiplies tensors, and cannot multiply f8: what it tests is tested by bytes.
        tests = [name for name in OPCHECKS if not narrow or name != "test_schema"]
        tests = [name for name in tests if kernel not in SCRATCH or not name.startswith("test_aot")]
        if narrow:
            check_schema(overload, arguments, choices, extra)
        verdicts = torch.library.opcheck(overload, arguments, {**choices, **extra}, test_utils=tests)
        assert verdicts == dict.fromkeys(tests, "SUCCESS")


def check_schema(overload: Any, arguments: tuple[Any, ...], choices: dict[str, str], outs: dict[str, Any]) -> None:
    """No input is written, and no result shares memory with an input."""
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    before = [x.clone() for x in tensors]
    results = as_tuple(overload(*arguments, **choices, **outs))
    for x, kept in zip(tensors, before, strict=True):
        assert torch.equal(x.view(torch.uint8), kept.view(torch.uint8))
        assert all(x.data_ptr() != result.data_ptr() for result in results if result is not None)


def test_attention_may_leave_out_its_logarithms(ops: Any, bundle: aot_runtime.Bundle) -> None:
    arguments = arguments_of(ops, "attention")
    expected, _ = ops.attention(*arguments)
    for call in (ops.attention.out, namespace(ops).attention.out):
        out = torch.empty_like(expected)
        call(*arguments, out=out)
        assert torch.equal(out, expected)
    out = torch.empty_like(expected)
    bundle.attention(*arguments[:3], out, *arguments[3:])
    assert torch.equal(out, expected)


def test_an_output_has_the_dtype_that_the_caller_picks(ops: Any) -> None:
    arguments = arguments_of(ops, "gemm_fp8")
    expected = ops.gemm_fp8(*arguments)
    assert expected.dtype == torch.bfloat16
    out = torch.empty_like(expected, dtype=torch.float16)
    ops.gemm_fp8.out(*arguments, out=out)
    assert (out.float() - expected.float()).norm() < 0.01 * expected.float().norm()


@pytest.mark.parametrize("kernel", ALL_CALLS)
def test_the_operator_the_short_way_and_the_plain_call_agree(ops: Any, bundle: aot_runtime.Bundle, kernel: str) -> None:
    arguments = arguments_of(ops, kernel)
    choices = CHOICES.get(kernel, {})
    short = getattr(ops, kernel)(*arguments, **choices)
    dispatched = getattr(namespace(ops), kernel)(*arguments, **choices)
    names = [parameter.name for parameter in bundle.manifest.kernels[kernel].parameters if parameter.output]
    for name, one, other in zip(names, as_tuple(short), as_tuple(dispatched), strict=True):
        if kernel not in SCRATCH or name.startswith(("grad_", "out")):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name


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
    torch._dynamo.utils.counters.clear()  # which reset() leaves alone: they count what other tests compiled
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
        for call in (ops.rmsnorm.out, namespace(ops).rmsnorm.out):
            before = out._version
            call(x, weight, out=out)
            assert out._version == before + 1
        bundle.rmsnorm(x, weight, out)
        assert out._version == before + 2
        assert torch.equal(namespace(ops).rmsnorm(x, weight), out)


def test_tensors_elsewhere_behave_as_torch_users_know_it(ops: Any) -> None:
    x, weight = bf16(64, 256), bf16(256)
    shape = ops.rmsnorm(x.to("meta"), weight.to("meta"))
    assert (shape.device.type, shape.shape, shape.dtype) == ("meta", (64, 256), torch.bfloat16)
    with pytest.raises(aot_runtime.ArgumentError, match="none of the tensors lies on a CUDA device"):
        ops.rmsnorm(x.cpu(), weight.cpu())
    with pytest.raises(aot_runtime.ArgumentError):
        ops.rmsnorm(x, weight.cpu())
    with pytest.raises(NotImplementedError):
        namespace(ops).rmsnorm(x.cpu(), weight.cpu())


def test_autocast_converts_no_arguments(ops: Any) -> None:
    x, weight = bf16(64, 256), bf16(256)
    expected = ops.rmsnorm(x, weight)
    with torch.autocast("cuda", dtype=torch.float16):
        for form in (ops.rmsnorm, namespace(ops).rmsnorm):
            assert torch.equal(form(x, weight), expected)
            with pytest.raises((aot_runtime.ArgumentError, RuntimeError), match="weight"):
                form(x, weight.half())


def test_ten_thousand_calls_leak_nothing(ops: Any) -> None:
    x, weight = bf16(64, 256), bf16(256)
    for _ in range(10):
        ops.rmsnorm(x, weight)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10_000):
        ops.rmsnorm(x, weight)
        namespace(ops).rmsnorm(x, weight)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
