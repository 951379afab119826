"""Gradients through operators of torch. Kernels are played by Python functions here, in f64 and on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.description.kernel_records import Backward, Choice, KernelRecord, Parameter
from observing import in_use

pytestmark = [
    pytest.mark.torch,
    # Torch warns about parts of itself that it calls.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning"),
]
torch: Any = None
operators: Any = None
with suppress(ImportError):
    import torch
    from aot_runtime import torch as operators


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    if torch is None:
        pytest.skip("operators of torch need torch")


def tensor(name: str) -> Parameter:
    return Parameter(name, type="tensor")


def output(name: str, like: str, dtype: str | None = None) -> Parameter:
    return Parameter(name, output=True, shape=f"{like}.shape", dtype=dtype or f"{like}.dtype", type="tensor")


def kernel(
    name: str, *parameters: Parameter, ops: tuple[str, ...] = (), backward: Backward | None = None
) -> KernelRecord:
    choices = (Choice("op", ops),) if ops else ()
    functions = tuple(f"{name}__{op}" for op in ops) or (name,)
    return KernelRecord(name, "", parameters, choices, functions, (), 1, backward)


def composed(
    gradients: dict[str, str], split: str = "", whole: tuple[str, ...] = (), adds: tuple[str, ...] = ()
) -> Backward:
    return Backward("", (), tuple(gradients), tuple(gradients.values()), split, whole, adds)


EPS = Parameter("eps", has_default=True, default=1e-6, type="float")
X, GRAD_OUT = tensor("x"), tensor("grad_out")
RECORDS = {
    record.name: record
    for record in (
        kernel("norm", X, tensor("weight"), output("out", "x"), EPS,
               backward=Backward("norm_backward", ("x", "weight", "eps"), ("x", "weight"))),
        kernel("norm_backward", GRAD_OUT, X, tensor("weight"), output("grad_x", "x"), output("grad_weight", "weight"),
               output("scratch", "x", "f32"),
               Parameter("memory", has_default=True, default=None, type="tensor?", workspace="4 * x.shape[0]"), EPS),
        kernel("act", X, output("out", "x"), ops=("relu", "silu"), backward=Backward("act_backward", ("x",), ("x",))),
        kernel("act_backward", GRAD_OUT, X, output("grad_x", "x"), ops=("relu", "silu")),
        # Saves an output, and has one without a gradient.
        kernel("soft", X, output("out", "x"), output("largest", "x"),
               backward=Backward("soft_backward", ("out",), ("x",))),
        kernel("soft_backward", GRAD_OUT, tensor("out"), output("grad_x", "out")),
        kernel("scale", X, tensor("factor"), output("out", "x"), backward=Backward("scale_backward", ("factor",), ("x",))),
        kernel("scale_backward", GRAD_OUT, tensor("factor"), output("grad_x", "grad_out"),
               Parameter("deterministic", has_default=True, default=False, type="bool"),
               Parameter("extra", has_default=True, default=7, type="int")),
        kernel("lonely", X, output("out", "x"), backward=Backward("not_built", ("x",), ("x",))),
        # Gradients that are calls of other kernels.
        kernel("product", tensor("a"), tensor("b"),
               Parameter("out", output=True, shape="(*a.shape[:-1], b.shape[-2])", dtype="a.dtype", type="tensor"),
               Parameter("bias", has_default=True, default=None, type="tensor?"), ops=("identity", "silu"),
               backward=composed({"a": "product(grad_out, b.mT, op='identity')",
                                  "b": "product(grad_out.mT, a.mT, op='identity')",
                                  "bias": "sums(grad_out.rows)[0]"},
                                 "act(product(a, b, bias, op='identity').rows, op=op)", ("op=identity",),
                                 ("b=product_added(grad_out.mT, a.mT, main_grad)",))),
        kernel("product_added", tensor("a"), tensor("b"),
               Parameter("out", output=True, shape="(a.shape[0], b.shape[0])", dtype="f64", type="tensor", may_be=("addend",)),
               tensor("addend")),
        # Keeps a product that its gradients share, of which one is added up.
        kernel("kept", tensor("a"), tensor("b"),
               Parameter("out", output=True, shape="(a.shape[0], b.shape[0])", dtype="a.dtype", type="tensor"),
               Parameter("inner", output=True, shape="(a.shape[0], b.shape[0])", dtype="a.dtype", type="tensor"),
               backward=composed({"a": "product(soft_backward(grad_out, inner), b.mT, op='identity')",
                                  "b": "product(soft_backward(grad_out, inner).mT, a.mT, op='identity')"},
                                 adds=("b=product_added(soft_backward(grad_out, inner).mT, a.mT, main_grad)",))),
        # Computes its gradient along with its output.
        kernel("ahead", X, Parameter("loss", output=True, shape="(1,)", dtype="x.dtype", type="tensor"), output("by_x", "x"),
               backward=Backward("ahead_backward", ("by_x",), ("x",))),
        kernel("ahead_backward", tensor("grad_loss"), tensor("by_x"), output("grad_x", "by_x").replace(may_be=("by_x",))),
        kernel("sums", X, Parameter("out", output=True, shape="(x.shape[1],)", dtype="x.dtype", type="tensor"),
               output("scratch", "x")),
        kernel("turn", X, tensor("angle"), output("out", "x"), backward=composed({"x": "turn(grad_out, -angle)"})),
        kernel("both", X, tensor("y"), output("out", "x"), output("total", "x"),
               backward=composed({"x": "both_backward(grad_out, grad_total)[0]",
                                  "y": "both_backward(grad_out, grad_total)[0]"})),
        kernel("both_backward", GRAD_OUT, tensor("grad_total"), output("grad_x", "grad_out"), output("scratch", "grad_out")),
        kernel("half_built", X, tensor("y"), output("out", "x"),
               backward=composed({"x": "grad_out", "y": "not_built(grad_out)"})),
        kernel("changed", X, output("out", "x"), backward=Backward("act_backward", (), ("x",))),
    )
}  # fmt: skip


def norm_backward(
    grad_out: Any, x: Any, weight: Any, grad_x: Any, grad_weight: Any, scratch: Any, memory: Any, eps: float
) -> None:
    assert grad_out.stride() == (grad_out.shape[1], 1)
    assert memory is None  # dispatch supplies it
    factor = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    weighted = grad_out * weight
    grad_x.copy_(factor * (weighted - x * factor.square() * (weighted * x).mean(-1, keepdim=True)))
    grad_weight.copy_((grad_out * x * factor).sum(0))
    scratch.zero_()


def soft_backward(grad_out: Any, out: Any, grad_x: Any) -> None:
    CALLS.append("soft_backward")
    grad_x.copy_(out * (grad_out - (grad_out * out).sum(-1, keepdim=True)))


def soft(x: Any, out: Any, largest: Any) -> None:
    out.copy_(x.softmax(-1))
    largest.copy_(x.amax(-1, keepdim=True).expand_as(x))


def silu_backward(grad_out: Any, x: Any, grad_x: Any) -> None:
    gate = torch.sigmoid(x)
    grad_x.copy_(grad_out * gate * (1 + x * (1 - gate)))


SETTINGS: list[tuple[bool, int]] = []


def scale_backward(grad_out: Any, factor: Any, grad_x: Any, deterministic: bool, extra: int) -> None:
    SETTINGS.append((deterministic, extra))
    grad_x.copy_(grad_out * factor)


def product(a: Any, b: Any, out: Any, bias: Any) -> None:
    PRODUCTS.append((tuple(a.shape), a.stride()[-1] == 1, b.stride()[-1] == 1))
    out.copy_(a @ b.mT + (0 if bias is None else bias))


def sums(x: Any, out: Any, scratch: Any) -> None:
    assert x.ndim == 2
    out.copy_(x.sum(0))
    scratch.zero_()


def turn(x: Any, angle: Any, out: Any) -> None:
    first, second = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    out.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), -1))


def both_backward(grad_out: Any, grad_total: Any, grad_x: Any, scratch: Any) -> None:
    CALLS.append("both_backward")
    grad_x.copy_(3 * grad_out + grad_total)
    scratch.zero_()


PRODUCTS: list[
    tuple[tuple[int, ...], bool, bool]
] = []  # the shape of `a`, and whether rows of `a` and of `b` are contiguous
CALLS: list[str] = []

PLAYED: dict[str, Callable[..., Any]] = {
    "product__identity": product,
    "product__silu": lambda a, b, out, bias: out.copy_(
        torch.nn.functional.silu(a @ b.mT + (0 if bias is None else bias))
    ),
    "product_added": lambda a, b, out, addend: out.copy_(addend + a @ b.mT),
    "ahead": lambda x, loss, by_x: (loss.copy_(x.square().sum().view(1)), by_x.copy_(2 * x)),
    "ahead_backward": lambda grad_loss, by_x, grad_x: grad_x.copy_(by_x * grad_loss),
    "sums": sums,
    "turn": turn,
    "both": lambda x, y, out, total: (out.copy_(3 * (x + y)), total.copy_(x + y)),
    "both_backward": both_backward,
    "half_built": lambda x, y, out: out.copy_(x + y),
    "norm": lambda x, weight, out, eps: out.copy_(x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight),
    "norm_backward": norm_backward,
    "act__relu": lambda x, out: out.copy_(torch.relu(x)),
    "act__silu": lambda x, out: out.copy_(torch.nn.functional.silu(x)),
    "act_backward__relu": lambda grad_out, x, grad_x: grad_x.copy_(grad_out * (x > 0)),
    "act_backward__silu": silu_backward,
    "soft": soft,
    "soft_backward": soft_backward,
    "kept": lambda a, b, out, inner: (out.copy_((a @ b.mT).softmax(-1)), inner.copy_(out)),
    "scale": lambda x, factor, out: out.copy_(x * factor),
    "scale_backward": scale_backward,
    "lonely": lambda x, out: out.copy_(x),
    "changed": lambda x, out: out.copy_(x),
}


class Played:
    """A bundle whose compiled functions are Python's."""

    name, path, kernels = "graded", Path("here"), tuple(RECORDS)

    def _replace(self, functions: dict[str, Any]) -> None:
        self.__dict__.update(functions)

    def _record(self, name: str) -> KernelRecord:
        return RECORDS[name]

    def _call(self, name: str) -> int:
        return 1005  # the protocol of a bundle that cannot be asked about calls without memory

    def _symbol(self, name: str) -> Callable[..., None]:
        if name not in PLAYED:
            raise AttributeError(name)

        def call(*arguments: Any) -> None:
            with torch.no_grad():
                PLAYED[name](*arguments)

        return call


@pytest.fixture(scope="module")
def ops() -> Iterator[Any]:
    """With implementations for CPU tensors too, so that what the dispatcher is given runs here."""
    pytest.importorskip("torch", reason="operators of torch need torch")
    registered = operators.register(Played())
    library = torch.library.Library("graded", "FRAGMENT")
    for name in registered:
        made = getattr(registered, name).__globals__
        library.impl(name, made["_functional_kernel"], "CPU")
        library.impl(f"{name}.out", made["_out_kernel"], "CPU")
    yield registered  # meanwhile the library lives, and with it its registrations


def leaf(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def model(ops: Any, x: Any, weight: Any) -> Any:
    """Every kind of backward once: with scratch, with a choice, of a saved output."""
    return ops.soft(ops.act(ops.norm(x, weight, eps=1e-3), op="silu"))[0]


def reference(x: Any, weight: Any) -> Any:
    normed = torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-3)
    return torch.nn.functional.silu(normed).softmax(-1)


def test_gradients_agree_with_finite_differences_and_with_torchs_own(ops: Any) -> None:
    x, weight = leaf(3, 8), leaf(8)
    torch.autograd.gradcheck(lambda x, weight: model(ops, x, weight), (x, weight))
    ours = torch.autograd.grad(model(ops, x, weight).square().sum(), (x, weight))
    exact = torch.autograd.grad(reference(x, weight).square().sum(), (x, weight))
    for one, other in zip(ours, exact, strict=True):
        torch.testing.assert_close(one, other)


def test_the_operator_itself_has_the_same_gradients(ops: Any) -> None:
    x, weight = leaf(3, 8), leaf(8)
    ours = torch.autograd.grad(model(torch.ops.graded, x, weight).square().sum(), (x, weight))
    short = torch.autograd.grad(model(ops, x, weight).square().sum(), (x, weight))
    assert all(torch.equal(one, other) for one, other in zip(ours, short, strict=True))


def test_eager_calls_that_want_gradients_bypass_the_dispatcher_too(ops: Any) -> None:
    x, weight = leaf(3, 8), leaf(8)
    with torch.profiler.profile() as profile:
        ops.norm(x, weight).sum().backward()
    assert not [event.key for event in profile.key_averages() if event.key.startswith("graded::")]


def test_dispatch_modes_see_both_operators_of_a_call_that_wants_gradients(ops: Any) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def gradient(x: Any) -> Any:
        return torch.autograd.grad(ops.act(x, op="silu").sum(), x)[0]

    x, seen = leaf(3, 8), []  # type: ignore[var-annotated]
    with Watch():
        found = gradient(x)
    assert [name for name in seen if name.startswith("graded.")] == [
        "graded.act.default",
        "graded.act_backward.default",
    ]
    traced = make_fx(gradient)(x)
    called = [str(node.target) for node in traced.graph.nodes if str(node.target).startswith("graded.")]
    assert called == ["graded.act.default", "graded.act_backward.default"]
    other = leaf(3, 8)
    assert torch.equal(traced(other.detach()), gradient(other)) and torch.equal(found, gradient(x))


def test_only_wanted_gradients_are_returned(ops: Any) -> None:
    x, weight = leaf(3, 8), leaf(8).detach()
    ops.norm(x, weight).sum().backward()
    assert x.grad is not None and weight.grad is None


@pytest.mark.parametrize("rows", [3, 0])
def test_a_gradient_with_strides_of_zero_reaches_the_kernel_whole(ops: Any, rows: int) -> None:
    x = leaf(rows, 8)
    ops.norm(x, leaf(8)).sum().backward()  # the gradient of a sum is one element, expanded
    assert x.grad is not None


def test_a_backward_with_that_setting_is_deterministic_if_torch_is(ops: Any) -> None:
    x, factor = leaf(3, 8), leaf(3, 8).detach()
    SETTINGS.clear()
    for form in (ops, torch.ops.graded):
        for enabled in (True, False):
            torch.use_deterministic_algorithms(enabled)
            form.scale(x, factor).sum().backward()
    assert SETTINGS == [(True, 7), (False, 7)] * 2  # other settings keep their defaults


def test_outputs_without_a_gradient_do_not_require_one(ops: Any) -> None:
    for form in (ops, torch.ops.graded):
        out, largest = form.soft(leaf(3, 8))
        assert out.requires_grad and not largest.requires_grad


def test_a_second_derivative_is_refused_when_it_is_taken(ops: Any) -> None:
    x = leaf(3, 8)
    for form in (ops, torch.ops.graded):
        (first,) = torch.autograd.grad(form.act(x, op="silu").sum(), x, create_graph=True)
        with pytest.raises(operators.GradientError, match="act_backward has no backward: gradients of gradients"):
            first.sum().backward()


def test_an_input_without_a_gradient_may_not_require_one(ops: Any) -> None:
    x, factor = leaf(3, 8), leaf(8)
    assert ops.scale(x, factor.detach()).requires_grad
    for form in (ops, torch.ops.graded):
        with pytest.raises(operators.GradientError, match="scale computes no gradient of `factor`") as caught:
            form.scale(x, factor)
        assert caught.value.hint == "pass factor.detach()"


def test_a_backward_that_was_not_built_is_named_with_what_builds_it(ops: Any) -> None:
    for form in (ops, torch.ops.graded):
        with pytest.raises(
            operators.GradientError, match=r"lonely has no backward .*: not_built was not built"
        ) as caught:
            form.lonely(leaf(3, 8))
        assert "`--kernel not_built`" in (caught.value.hint or "")
    with torch.no_grad():
        ops.lonely(leaf(3, 8))


def test_a_backward_of_another_declaration_is_refused(ops: Any) -> None:
    with pytest.raises(operators.GradientError, match=r"built for another declaration \(act_backward: x, op\)"):
        ops.changed(leaf(3, 8))


def test_the_form_that_writes_has_no_gradient_and_says_which_one_has(ops: Any) -> None:
    x, weight = leaf(3, 8), leaf(8)
    with pytest.raises(operators.GradientError, match="no gradient if it writes into a tensor of yours") as caught:
        ops.norm.out(x, weight, out=torch.empty(3, 8, dtype=torch.float64))
    assert "norm(x, weight, eps)" in (caught.value.hint or "")


def test_autograd_notices_that_a_saved_tensor_was_overwritten(ops: Any) -> None:
    x, weight = leaf(3, 8), leaf(8).detach()
    loss = ops.norm(x, weight).sum()
    ops.act.out(torch.randn(8, dtype=torch.float64), op="relu", out=weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_gradient_is_added_to_the_main_grad_of_its_leaf(ops: Any) -> None:
    a, b = leaf(5, 8), leaf(3, 8)
    b.main_grad = torch.ones(3, 8, dtype=torch.float64)
    arriving = torch.randn(5, 3, dtype=torch.float64)
    for step in (1, 2):
        ops.product(a, b, op="identity").backward(arriving)
        torch.testing.assert_close(b.main_grad, 1 + step * arriving.mT @ a.detach())
    assert b.grad is None and a.grad is not None
    ops.product(a, b, op="silu").sum().backward()  # is split, and the product in it adds
    assert b.grad is None


def test_calls_before_the_one_that_adds_are_shared_with_the_other_gradients(ops: Any) -> None:
    a, b = leaf(5, 8), leaf(3, 8)
    inner = (a @ b.mT).softmax(-1)
    arriving = torch.randn(5, 3, dtype=torch.float64)
    by_a, by_b = torch.autograd.grad(inner, (a, b), arriving)
    b.main_grad = torch.ones(3, 8, dtype=torch.float64)
    CALLS.clear()
    out, _ = ops.kept(a, b)
    out.backward(arriving)
    torch.testing.assert_close(b.main_grad, 1 + by_b)
    torch.testing.assert_close(a.grad, by_a)
    assert b.grad is None and CALLS == ["soft_backward"]


def test_a_main_grad_of_another_rank_than_the_kernel_adds_is_left_alone(ops: Any) -> None:
    a, b = leaf(5, 8), leaf(3, 8)
    b.main_grad = torch.ones(1, 3, 8, dtype=torch.float64)
    ops.product(a, b, op="identity").sum().backward()
    assert bool((b.main_grad == 1).all()) and b.grad is not None


def test_a_leaf_that_wants_no_gradient_keeps_its_main_grad(ops: Any) -> None:
    a, b = leaf(5, 8), leaf(3, 8).detach()
    b.main_grad = torch.ones(3, 8, dtype=torch.float64)
    ops.product(a, b, op="identity").sum().backward()
    assert bool((b.main_grad == 1).all()) and a.grad is not None


def test_what_was_computed_ahead_becomes_the_gradient_without_another_tensor(ops: Any) -> None:
    x = leaf(3, 8)
    loss, by_x = ops.ahead(x)
    place = by_x.data_ptr()
    assert loss.requires_grad and not by_x.requires_grad
    (got,) = torch.autograd.grad(3 * loss, x, retain_graph=True)
    torch.testing.assert_close(got, 6 * x.detach())
    assert got.data_ptr() == place
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(3 * loss, x)
    (first,) = torch.autograd.grad(ops.ahead(x)[0], x, create_graph=True)
    with pytest.raises(operators.GradientError, match="ahead_backward has no backward"):
        first.sum().backward()
    (again,) = torch.autograd.grad(torch.ops.graded.ahead(x)[0], x)  # the operator itself
    torch.testing.assert_close(again, 2 * x.detach())


def test_steps_of_training_leak_nothing(ops: Any) -> None:
    """Forward and backward of every kind: saved tensors, scratch, a call that is split, a main_grad, a loss computed ahead."""
    x, norm, weight, bias = leaf(4, 8), leaf(8), leaf(8, 8), leaf(8)
    weight.main_grad = torch.zeros(8, 8, dtype=torch.float64)

    def steps(count: int) -> int:
        for _ in range(count):
            ops.ahead(ops.product(model(ops, x, norm), weight, bias, op="silu"))[0].backward()
            x.grad = norm.grad = bias.grad = None
        PRODUCTS.clear()
        CALLS.clear()
        gc.collect()
        return in_use()

    # Malloc's lists of free blocks grow now and then. A leak would show each time.
    used = [steps(300) for _ in range(5)]
    assert min(after - before for before, after in pairwise(used)) < 300 * 8  # less than a pointer for each step


def test_torch_compile_takes_forward_and_backward_whole(ops: Any) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    compiled = torch.compile(lambda x, weight: model(ops, x, weight), fullgraph=True, backend="aot_eager")
    x, weight = leaf(3, 8), leaf(8)
    ours = torch.autograd.grad(compiled(x, weight).square().sum(), (x, weight))
    exact = torch.autograd.grad(reference(x, weight).square().sum(), (x, weight))
    for one, other in zip(ours, exact, strict=True):
        torch.testing.assert_close(one, other)


def test_torch_export_keeps_an_operator_that_has_gradients(ops: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8, dtype=torch.float64))

        def forward(self, x: Any) -> Any:
            return model(ops, x, self.weight)

    exported = torch.export.export(Model(), (leaf(3, 8).detach(),))
    assert "graded.norm.default" in {str(node.target) for node in exported.graph.nodes}
    x = leaf(3, 8)
    exported.module()(x).square().sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("name", ["norm", "act", "soft"])
def test_torchs_own_check_of_operators_passes_with_gradients(ops: Any, name: str) -> None:
    x = leaf(3, 8)
    arguments, choices = {"norm": ((x, leaf(8)), {}), "act": ((x,), {"op": "silu"}), "soft": ((x,), {})}[name]
    verdicts = torch.library.opcheck(getattr(torch.ops.graded, name).default, arguments, choices)
    assert len(verdicts) >= 4 and set(verdicts.values()) == {"SUCCESS"}


def test_transforms_of_functions_are_refused_rather_than_wrong(ops: Any) -> None:
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda x: ops.act(x, op="silu").sum())(leaf(3, 8).detach())
    with pytest.raises(operators.GradientError, match="forward mode"):
        torch.func.jvp(lambda x: ops.act(x, op="silu"), (x := leaf(3, 8).detach(),), (x,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        for call in (ops.act, torch.ops.graded.act):
            with pytest.raises(operators.GradientError, match="act has no derivative in forward mode"):
                call(dual, op="silu")


def test_gradients_pass_through_vmap_and_through_transforms_of_other_tensors(ops: Any) -> None:
    x, constant, weight = leaf(2, 3, 8), leaf(3, 8), leaf(8)
    (expected,) = torch.autograd.grad(ops.norm(constant, weight).sum(), constant)
    mapped = torch.vmap(lambda one: ops.norm(one, weight))(x)
    (gradient,) = torch.autograd.grad(mapped.sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(ops.norm(x.view(6, 8), weight).sum(), x)[0])
    beside = torch.vmap(lambda one: one + ops.norm(constant, weight))(x.detach())
    torch.testing.assert_close(torch.autograd.grad(beside.sum(), constant)[0], 2 * expected)
    ones = torch.func.grad(lambda one: (one + ops.norm(constant, weight)).sum())(x.detach())
    assert torch.equal(ones, torch.ones_like(x))


@pytest.mark.parametrize("wrong", [None, [1.0], 3])
def test_what_is_no_tensor_is_refused_by_torch(ops: Any, wrong: Any) -> None:
    with pytest.raises((RuntimeError, TypeError)) as raised:
        ops.soft(wrong)
    assert not isinstance(raised.value, RecursionError)


# Gradients that are calls of other kernels.


def linear(a: Any, b: Any, bias: Any, op: str) -> Any:
    result = a @ b.mT if bias is None else a @ b.mT + bias
    return torch.nn.functional.silu(result) if op == "silu" else result


@pytest.mark.parametrize("batch", [(), (2,)], ids=["matrix", "batch"])
@pytest.mark.parametrize("op", ["identity", "silu"])
@pytest.mark.parametrize("biased", [False, True])
def test_gradients_of_a_product_are_products(ops: Any, batch: tuple[int, ...], op: str, biased: bool) -> None:
    a, b, bias = leaf(*batch, 5, 3), leaf(*batch, 4, 3), leaf(4) if biased else None
    leaves = [x for x in (a, b, bias) if x is not None]
    exact = torch.autograd.grad(linear(a, b, bias, op).square().sum(), leaves)
    for call in (ops.product, torch.ops.graded.product):
        out = call(a, b, bias, op=op)
        torch.testing.assert_close(out, linear(a, b, bias, op))
        for one, other in zip(torch.autograd.grad(out.square().sum(), leaves), exact, strict=True):
            torch.testing.assert_close(one, other)


def test_transposes_are_views(ops: Any) -> None:
    a, b = leaf(5, 3), leaf(4, 3)
    PRODUCTS.clear()
    ops.product(a, b, op="identity").square().sum().backward()
    assert PRODUCTS == [((5, 3), True, True), ((5, 4), True, False), ((4, 5), False, False)]


def test_only_the_wanted_gradient_of_a_product_is_computed_and_only_what_it_needs_is_kept(ops: Any) -> None:
    a, b = leaf(5, 3), leaf(4, 3).detach()
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        out = ops.product(a, b, op="identity")
    assert [tuple(x.shape) for x in kept] == [(4, 3)]
    PRODUCTS.clear()
    out.sum().backward()
    assert len(PRODUCTS) == 1 and b.grad is None


def test_a_call_is_split_only_if_a_gradient_is_wanted(ops: Any) -> None:
    a, b = leaf(5, 3), leaf(4, 3)
    PRODUCTS.clear()
    with torch.no_grad():
        ops.product(a, b, op="silu")
    ops.product(a.detach(), b.detach(), op="silu")
    assert not PRODUCTS
    ops.product(a, b, op="silu")
    assert len(PRODUCTS) == 1


def test_what_gradients_share_is_computed_once(ops: Any) -> None:
    x, y = leaf(3, 4), leaf(3, 4)
    CALLS.clear()
    out, total = ops.both(x, y)
    for gradient in torch.autograd.grad((out * total).sum(), (x, y)):
        torch.testing.assert_close(gradient, 6 * (x + y))
    assert CALLS == ["both_backward"]


def test_an_expression_may_change_a_sign_and_angles_have_no_gradient(ops: Any) -> None:
    x, angle = leaf(3, 4), torch.randn(3, 2, dtype=torch.float64)
    torch.autograd.gradcheck(lambda x: ops.turn(x, angle), (x,))
    with pytest.raises(operators.GradientError, match="no gradient of `angle`"):
        ops.turn(x, angle.requires_grad_())


def test_a_gradient_whose_kernel_was_not_built_is_refused_and_others_are_not(ops: Any) -> None:
    x, y = leaf(3), leaf(3)
    ops.half_built(x, y.detach()).sum().backward()
    assert x.grad.tolist() == [1, 1, 1]
    with pytest.raises(operators.GradientError, match="not_built was not built") as caught:
        ops.half_built(x.detach(), y)
    assert "--kernel not_built" in (caught.value.hint or "")


def test_gradients_of_gradients_of_a_product_are_refused(ops: Any) -> None:
    a, b = leaf(5, 3), leaf(4, 3)
    (gradient,) = torch.autograd.grad(ops.product(a, b, op="silu").square().sum(), a, create_graph=True)
    with pytest.raises(operators.GradientError, match="gradients of gradients"):
        gradient.sum().backward()


def test_a_compiled_step_has_the_gradients_of_calls(ops: Any) -> None:
    a, b, bias = leaf(5, 3), leaf(4, 3), leaf(4)
    x, y = leaf(3, 4), leaf(3, 4)

    def loss(a: Any, b: Any, bias: Any, x: Any, y: Any) -> Any:
        out, total = ops.both(x, y)
        return ops.product(a, b, bias, op="silu").square().sum() + (out * total).sum()

    given = (a, b, bias, x, y)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for one, other in zip(
        torch.autograd.grad(compiled(*given), given), torch.autograd.grad(loss(*given), given), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_checkpointed_activations_give_the_same_gradients(ops: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    a, b = leaf(5, 3), leaf(4, 3)

    def run(a: Any, b: Any) -> Any:
        return ops.product(ops.norm(a, torch.ones(3, dtype=torch.float64)), b, op="silu").square().sum()

    plain = torch.autograd.grad(run(a, b), (a, b))
    again = torch.autograd.grad(checkpoint(run, a, b, use_reentrant=False), (a, b))
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
