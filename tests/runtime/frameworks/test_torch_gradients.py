"""Gradients through operators of torch. Kernels are played by Python functions here, in f64 and on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.description.kernel_records import Backward, Choice, KernelRecord, Parameter

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


PLAYED: dict[str, Callable[..., Any]] = {
    "norm": lambda x, weight, out, eps: out.copy_(x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight),
    "norm_backward": norm_backward,
    "act__relu": lambda x, out: out.copy_(torch.relu(x)),
    "act__silu": lambda x, out: out.copy_(torch.nn.functional.silu(x)),
    "act_backward__relu": lambda grad_out, x, grad_x: grad_x.copy_(grad_out * (x > 0)),
    "act_backward__silu": silu_backward,
    "soft": soft,
    "soft_backward": soft_backward,
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


@pytest.mark.parametrize("wrong", [None, [1.0], 3])
def test_what_is_no_tensor_is_refused_by_torch(ops: Any, wrong: Any) -> None:
    with pytest.raises((RuntimeError, TypeError)) as raised:
        ops.soft(wrong)
    assert not isinstance(raised.value, RecursionError)
