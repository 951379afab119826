"""Steps of training on a real GPU: the loss of a large vocabulary, and gradients that are added up in f32.

Needs a bundle with the family `training`: ``python -m aot build --arch sm90 --family all``.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any

import aot_runtime
import pytest

torch: Any = None
with suppress(ImportError):
    import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
]
NEEDS = {"linear_cross_entropy": "training"}
BOUND = 8e-3  # relative to the norm of a gradient: two roundings to bf16


@pytest.fixture(scope="module")
def ops(bundle: aot_runtime.Bundle) -> Any:
    from aot_runtime import torch as operators

    return operators.register(bundle)


def leaf(*shape: int, scale: float = 1.0) -> Any:
    return (scale * torch.randn(*shape, device="cuda")).bfloat16().requires_grad_()


def problem(tokens: int = 300, words: int = 4000, k: int = 256) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    target = torch.randint(words, (tokens,), device="cuda")
    target[::7] = -100
    return leaf(tokens, k), leaf(words, k, scale=k**-0.5), target


def exact(
    x: Any, weight: Any, target: Any, smoothing: float = 0.0, z: float = 0.0, reduction: str = "mean"
) -> list[Any]:
    """The loss, and its gradients by x and weight, in f64."""
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    logits, counts = wide[0] @ wide[1].mT, target != -100
    loss = torch.nn.functional.cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum")
    loss = loss + z * (logits.logsumexp(-1).square() * counts).sum()
    loss = loss / counts.sum() if reduction == "mean" else loss
    return [loss.detach(), *torch.autograd.grad(loss, wide)]


def assert_close(got: Any, want: Any, bound: float = BOUND) -> None:
    assert float((got.double() - want).norm()) <= bound * float(want.norm())


SETTINGS = [(0.0, 0.0, "mean"), (0.0, 0.0, "sum"), (0.1, 0.0, "mean"), (0.1, 1e-3, "sum"), (0.0, 1e-2, "mean")]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_loss_and_its_gradients_are_those_of_all_logits(ops: Any, setting: tuple[float, float, str]) -> None:
    (x, weight, target), (smoothing, z, reduction) = problem(), setting
    loss, _, _ = ops.linear_cross_entropy(x, weight, target, label_smoothing=smoothing, z_loss=z, reduction=reduction)
    (2 * loss).backward()
    want = exact(x, weight, target, smoothing, z, reduction)
    assert_close(loss.detach(), want[0], 1e-3)
    assert_close(x.grad, 2 * want[1])
    assert_close(weight.grad, 2 * want[2])


def test_many_steps_add_up_and_take_little_memory(ops: Any) -> None:
    x, weight, target = problem(9000, 65536, 128)
    want = exact(x, weight, target)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss, _, _ = ops.linear_cross_entropy(x, weight, target)
    loss.backward()
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < 9000 * 65536 * 2  # all logits
    assert_close(loss.detach(), want[0], 1e-3)
    assert_close(x.grad, want[1])
    assert_close(weight.grad, want[2])


def test_a_compiled_step_has_the_same_gradients(ops: Any) -> None:
    x, weight, target = problem()

    def run(x: Any, weight: Any) -> Any:
        return 2 * ops.linear_cross_entropy(2 * x, weight, target)[0]

    eager = torch.autograd.grad(run(x, weight), (x, weight))
    compiled = torch.autograd.grad(torch.compile(run, fullgraph=True)(x, weight), (x, weight))
    for one, other in zip(compiled, eager, strict=True):
        assert_close(one, other.double(), 1e-6)


def test_a_captured_step_has_the_gradients_of_its_inputs(ops: Any) -> None:
    x, weight, target = problem()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        ops.linear_cross_entropy(x, weight, target)[0].backward()
    torch.cuda.synchronize()
    x.grad = weight.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.linear_cross_entropy(x, weight, target)[0].backward()
    with torch.no_grad():
        x.normal_()
    graph.replay()
    assert_close(x.grad, exact(x, weight, target)[1])


def test_checkpointed_autocast_and_frozen_weights(ops: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    x, weight, target = problem()
    want = exact(x, weight, target)

    def run(x: Any, weight: Any) -> Any:
        return ops.linear_cross_entropy(x, weight, target)[0]

    checkpoint(run, x, weight, use_reentrant=False).backward()
    assert_close(x.grad, want[1])
    assert_close(weight.grad, want[2])
    (alone,) = torch.autograd.grad(run(x, weight.detach()), x)
    assert_close(alone, want[1])
    wide = [tensor.detach().float().requires_grad_() for tensor in (x, weight)]
    with torch.autocast("cuda", torch.bfloat16):
        loss = run(*wide)
    loss.backward()
    assert wide[0].grad.dtype == torch.float32
    assert_close(wide[0].grad, want[1])


def test_the_loss_alone_and_second_derivatives(ops: Any) -> None:
    from aot_runtime.torch import GradientError

    x, weight, target = problem()
    loss = torch.empty(1, device="cuda")
    with torch.no_grad():
        ops.linear_cross_entropy.out(x, weight, target, loss=loss, by_x=None, by_weight=None)
    assert_close(loss, exact(x, weight, target)[0], 1e-3)
    (first,) = torch.autograd.grad(ops.linear_cross_entropy(x, weight, target)[0], x, create_graph=True)
    with pytest.raises(GradientError):
        first.sum().backward()


@pytest.mark.parametrize("kernel", ["gemm", "gemm_gated"])
def test_products_add_to_the_main_grad_of_a_weight(ops: Any, kernel: str) -> None:
    x, weight = leaf(300, 256), leaf(512, 256, scale=0.1)
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    product = wide[0] @ wide[1].mT
    if kernel == "gemm_gated":
        gate, up = product.chunk(2, -1)
        product = torch.nn.functional.silu(gate) * up
    product.square().sum().backward()
    weight.main_grad = torch.zeros(512, 256, device="cuda")
    for _ in range(3):
        getattr(ops, kernel)(x, weight).float().square().sum().backward()
    assert weight.grad is None
    assert_close(weight.main_grad, 3 * wide[1].grad, 1.6e-2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        getattr(ops, kernel)(x, weight).float().square().sum().backward()
    weight.main_grad.zero_()
    graph.replay()
    graph.replay()
    assert_close(weight.main_grad, 2 * wide[1].grad, 1.6e-2)


def test_experts_add_to_the_main_grad_of_their_matrices(ops: Any) -> None:
    if "grouped_gemm" not in ops:
        pytest.skip("the bundle has no grouped_gemm")
    a, b, ends = leaf(300, 256), leaf(4, 136, 256, scale=0.1), [100, 100, 181, 300]
    offsets = torch.tensor(ends, device="cuda", dtype=torch.int32)
    wide = [tensor.detach().double().requires_grad_() for tensor in (a, b)]
    parts = [wide[0][start:end] @ wide[1][i].mT for i, (start, end) in enumerate(pairwise([0, *ends]))]
    torch.cat(parts).square().sum().backward()
    b.main_grad = torch.zeros(4, 136, 256, device="cuda")
    for _ in range(2):
        ops.grouped_gemm(a, b, offsets).float().square().sum().backward()
    assert b.grad is None
    assert_close(b.main_grad, 2 * wide[1].grad, 1.6e-2)
