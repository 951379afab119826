"""Gradients of attention on a real GPU, through torch's operators, against autograd in f64.

Needs a bundle with the family `attention`: ``pytest tests/gpu/test_attention_gradients.py --bundle dist/attention``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aot_runtime
import pytest

from aot.bundle.contracts import load_contracts

torch: Any = None
with suppress(ImportError):
    import torch

# A thread of autograd has no context of the GPU before it first computes there, and torch warns that it sets one.
NO_CONTEXT = "ignore:Attempting to run cuBLAS, but there was no current CUDA context"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(NO_CONTEXT),
]
NEEDS = {"attention_backward": "attention"}
# Relative to the norm of a gradient: weights, gradients of scores, the output and the result are rounded to the dtype.
BOUNDS = {"bfloat16": 8e-3, "float16": 1e-3}
DIMS = [(128, 128), (64, 64), (96, 96), (192, 128), (256, 256)]
STARTS = ((0, 100, 100, 433, 460), (0, 130, 130, 400, 800))


@pytest.fixture(scope="module")
def ops(bundle: aot_runtime.Bundle) -> Any:
    from aot_runtime import torch as operators

    return operators.register(bundle)


@pytest.fixture(scope="module")
def reference(bundle: aot_runtime.Bundle) -> Callable[..., Any]:
    return load_contracts(bundle.path, bundle.manifest, ["attention"])["attention"].reference


def leaves(
    queries: int, tokens: int, heads: tuple[int, int], dims: tuple[int, int], dtype: str, ragged: bool
) -> list[Any]:
    torch.manual_seed(0)
    leading = () if ragged else (2,)
    shapes = ((queries, heads[0], dims[0]), (tokens, heads[1], dims[0]), (tokens, heads[1], dims[1]))
    made = [torch.randn(*leading, *shape, device="cuda") for shape in shapes]
    return [x.to(getattr(torch, dtype)).requires_grad_() for x in made]


def exact_gradients(
    reference: Callable[..., Any], arguments: list[Any], arriving: Any, **others: Any
) -> tuple[Any, ...]:
    wide = [x.detach().double().requires_grad_() for x in arguments]
    out, _ = reference(*wide, **others)
    gradients: tuple[Any, ...] = torch.autograd.grad(out, wide, arriving.double())
    return gradients


def agree(ours: tuple[Any, ...], exact: tuple[Any, ...], dtype: str) -> None:
    for name, got, wanted in zip("qkv", ours, exact, strict=True):
        assert got.dtype == getattr(torch, dtype)
        assert (got.double() - wanted).norm() <= BOUNDS[dtype] * wanted.norm(), name


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize(
    "masks", [{}, {"right": 0}, {"left": 70, "right": 0}, {"left": 100, "right": 30}, {"soft_cap": 5.0}], ids=str
)
@pytest.mark.parametrize("ragged", [False, True])
def test_gradients_agree_with_autograd_in_f64(
    ops: Any, reference: Callable[..., Any], dtype: str, dims: tuple[int, int], masks: dict[str, Any], ragged: bool
) -> None:
    queries, tokens = (460, 800) if ragged else (333, 421)
    arguments = leaves(queries, tokens, (6, 2), dims, dtype, ragged)
    others = {"scale": dims[0] ** -0.5, **masks}
    if ragged:
        starts = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in STARTS]
        others |= dict(zip(("q_starts", "k_starts"), starts, strict=True))
    out, _ = ops.attention(*arguments, **others)
    arriving = torch.randn_like(out)
    exact = exact_gradients(reference, arguments, arriving, **others)
    agree(torch.autograd.grad(out, arguments, arriving), exact, dtype)


def test_many_heads_take_both_orders_of_tiles(ops: Any, reference: Callable[..., Any]) -> None:
    # 560 tiles: more than are ordered by length.
    arguments = leaves(450, 450, (70, 70), (64, 64), "bfloat16", ragged=False)
    others = {"scale": 0.125, "right": 0}
    out, _ = ops.attention(*arguments, **others)
    arriving = torch.randn_like(out)
    exact = exact_gradients(reference, arguments, arriving, **others)
    agree(torch.autograd.grad(out, arguments, arriving), exact, "bfloat16")


@pytest.mark.parametrize("dim", [128, 64])
def test_sinks_have_gradients(ops: Any, reference: Callable[..., Any], dim: int) -> None:
    arguments = leaves(333, 421, (6, 2), (dim, dim), "bfloat16", ragged=False)
    sinks = torch.randn(6, device="cuda", requires_grad=True)
    out, _ = ops.attention(*arguments, dim**-0.5, right=0, sinks=sinks)
    arriving = torch.randn_like(out)
    wide = [x.detach().double().requires_grad_() for x in (*arguments, sinks)]
    exact_out, _ = reference(*wide[:3], scale=dim**-0.5, right=0, sinks=wide[3])
    exact = torch.autograd.grad(exact_out, wide, arriving.double())
    *ours, by_sinks = torch.autograd.grad(out, (*arguments, sinks), arriving)
    agree(tuple(ours), exact[:3], "bfloat16")
    assert (by_sinks - exact[3]).norm() <= 0.01 * exact[3].norm()


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("masks", [{"right": 0}, {}, {"left": 300, "right": 40}], ids=str)
def test_deterministic_gradients_have_the_same_bits_every_time(
    ops: Any, reference: Callable[..., Any], dims: tuple[int, int], masks: dict[str, int]
) -> None:
    arguments = leaves(1900, 2048, (4, 2), dims, "bfloat16", ragged=False)
    others = {"scale": dims[0] ** -0.5, **masks}
    arriving = torch.randn(2, 1900, 4, dims[1], device="cuda", dtype=torch.bfloat16)
    torch.use_deterministic_algorithms(True)
    try:
        first, *again = (
            torch.autograd.grad(ops.attention(*arguments, **others)[0], arguments, arriving) for _ in range(5)
        )
    finally:
        torch.use_deterministic_algorithms(False)
    for one in again:
        assert all(torch.equal(x, y) for x, y in zip(first, one, strict=True))
    agree(first, exact_gradients(reference, arguments, arriving, **others), "bfloat16")


def loss_of(ops: Any) -> Callable[..., Any]:
    return lambda q, k, v: ops.attention(q, k, v, 0.1, right=0)[0].float().square().sum()


def test_a_compiled_step_gives_the_gradients_of_an_eager_one(ops: Any) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    arguments = leaves(300, 300, (4, 2), (128, 128), "bfloat16", ragged=False)
    compiled = torch.compile(loss_of(ops), fullgraph=True)
    eager = torch.autograd.grad(loss_of(ops)(*arguments), arguments)
    for one, other in zip(torch.autograd.grad(compiled(*arguments), arguments), eager, strict=True):
        assert (one.float() - other.float()).norm() <= 0.01 * other.float().norm()


def test_a_step_in_a_cuda_graph_can_be_replayed(ops: Any) -> None:
    arguments = leaves(300, 300, (4, 2), (64, 64), "bfloat16", ragged=False)
    step = loss_of(ops)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(step(*arguments), arguments)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch.autograd.grad(step(*arguments), arguments)
    with torch.no_grad():
        for argument in arguments:
            argument.copy_(torch.randn_like(argument))
    for _ in range(2):
        graph.replay()
        for one, other in zip(captured, torch.autograd.grad(step(*arguments), arguments), strict=True):
            assert (one.float() - other.float()).norm() <= 1e-3 * other.float().norm()


def test_gradients_of_gradients_are_refused(ops: Any) -> None:
    from aot_runtime.torch import GradientError

    q, k, v = leaves(64, 64, (2, 2), (64, 64), "bfloat16", ragged=False)
    (gradient,) = torch.autograd.grad(loss_of(ops)(q, k, v), q, create_graph=True)
    with pytest.raises(GradientError, match="attention_backward has no backward"):
        gradient.sum().backward()


def test_keys_that_no_query_sees_have_gradients_of_zero(ops: Any) -> None:
    q, k, v = leaves(40, 300, (2, 1), (128, 128), "bfloat16", ragged=False)
    out, _ = ops.attention(q, k, v, 0.1, left=16, right=0)
    _, grad_k, grad_v = torch.autograd.grad(out.float().sum(), (q, k, v))
    assert not grad_k[:, :244].any() and not grad_v[:, :244].any()
    assert grad_v[:, 244:].any()
