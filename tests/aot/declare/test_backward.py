"""A kernel names the one that computes its gradients; whether both fit is checked before anything is compiled."""

from __future__ import annotations

from typing import Any

import pytest

import aot
from aot.declare.backward import check_pairs
from aot.declare.kernel import Kernel
from aot.errors import DeclarationError

X = aot.In("x")
WEIGHT = aot.In("weight")
EPS = aot.In("eps", default=1e-6)
OUT = aot.Out("out", shape="x.shape", dtype="x.dtype")
GRAD_X = aot.Out("grad_x", shape="x.shape", dtype="x.dtype")
GRAD_WEIGHT = aot.Out("grad_weight", shape="weight.shape", dtype="weight.dtype")
SCRATCH = aot.Out("partial", shape="x.shape", dtype="f32")
BACKWARD = aot.Backward("norm_backward", saves=("x", "weight", "eps"), gradients=("x", "weight"))


def kernel(name: str, *parameters: Any, **settings: Any) -> Kernel:
    return aot.kernel(parameters=parameters, archs=("sm_90a",), name=name, **settings)(lambda target, **point: [])


def forward(**settings: Any) -> Kernel:
    return kernel("norm", X, WEIGHT, OUT, EPS, **{"backward": BACKWARD, **settings})


def check(*kernels: Kernel, complete: bool = True) -> None:
    check_pairs({kernel.name: kernel for kernel in kernels}, complete=complete)


def test_a_pair_that_fits_passes_with_scratch_and_in_any_order_of_parameters() -> None:
    workspace = aot.Workspace("memory", bytes="4 * x.shape[0]")
    backward = kernel("norm_backward", aot.In("grad_out"), WEIGHT, X, GRAD_WEIGHT, GRAD_X, SCRATCH, workspace, EPS)
    check(forward(), backward)
    assert forward().backward == BACKWARD


def test_a_backward_may_have_a_setting_of_its_own_but_must_be_passed_those_of_the_forward() -> None:
    own = aot.In("deterministic", default=False)
    parameters = (aot.In("grad_out"), X, WEIGHT, GRAD_X, GRAD_WEIGHT)
    check(forward(), kernel("norm_backward", *parameters, EPS, own))
    forgetful = aot.Backward("norm_backward", saves=("x", "weight"), gradients=("x", "weight"))
    with pytest.raises(DeclarationError, match="takes eps, which is neither saved nor a gradient"):
        check(forward(backward=forgetful), kernel("norm_backward", *parameters, EPS, own))


def test_one_name_need_not_be_a_tuple() -> None:
    assert aot.Backward("b", saves="out", gradients="x") == aot.Backward("b", saves=("out",), gradients=("x",))


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        ("norm_backward", "`backward` is 'norm_backward'"),
        (aot.Backward("norm", saves=(), gradients="x"), "cannot be its own backward"),
        (aot.Backward("b", saves=("x", "y"), gradients="x"), "`backward` saves y"),
        (aot.Backward("b", saves=("x", "x"), gradients="x"), "saves a parameter twice"),
        (aot.Backward("b", saves="x", gradients="out"), "`backward` has gradients of out"),
        (aot.Backward("b", saves="x", gradients=()), "`backward` computes no gradient"),
    ],
)
def test_a_declaration_that_names_what_its_kernel_lacks_is_refused(backward: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        forward(backward=backward)


GRAD_OUT = aot.In("grad_out")
WRONG: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "no gradient": ((X, WEIGHT, GRAD_X, GRAD_WEIGHT, EPS), "takes no gradient", "grad_out"),
    "not saved": (
        (GRAD_OUT, X, WEIGHT, aot.In("y"), GRAD_X),
        "takes y, which is neither saved nor a gradient",
        "saves",
    ),
    "saved in vain": ((GRAD_OUT, X, WEIGHT, GRAD_X, GRAD_WEIGHT), "takes no eps", "take it out of `saves`"),
    "not computed": ((GRAD_OUT, X, WEIGHT, GRAD_X, EPS), "has no output grad_weight", "there are: grad_x"),
}


@pytest.mark.parametrize("case", WRONG)
def test_signatures_that_do_not_fit_are_refused_with_a_hint(case: str) -> None:
    parameters, message, hint = WRONG[case]
    with pytest.raises(DeclarationError, match=f"norm_backward, the backward of norm .*{message}") as caught:
        check(forward(), kernel("norm_backward", *parameters))
    assert hint in (caught.value.hint or "")


def test_a_gradient_that_is_computed_and_not_named_is_refused() -> None:
    named = aot.Backward("norm_backward", saves=("x", "weight"), gradients="x")
    with pytest.raises(DeclarationError, match="computes grad_weight") as caught:
        check(forward(backward=named), kernel("norm_backward", GRAD_OUT, X, WEIGHT, GRAD_X, GRAD_WEIGHT))
    assert caught.value.hint == "add 'weight' to `gradients`"


def test_choices_of_the_forward_reach_the_backward() -> None:
    named = aot.Backward("act_backward", saves="x", gradients="x")
    act = kernel("act", X, OUT, choices={"op": ("relu", "silu")}, backward=named)
    check(act, kernel("act_backward", GRAD_OUT, X, GRAD_X, choices={"op": ("relu", "silu", "gelu")}))
    with pytest.raises(DeclarationError, match="lacks op = silu"):
        check(act, kernel("act_backward", GRAD_OUT, X, GRAD_X, choices={"op": ("relu",)}))
    with pytest.raises(DeclarationError, match="has a choice mode, which act does not have"):
        check(act, kernel("act_backward", GRAD_OUT, X, GRAD_X, choices={"mode": ("a",)}))


def test_a_backward_that_is_not_declared_is_refused_unless_a_file_could_not_be_read() -> None:
    with pytest.raises(DeclarationError, match="the backward of norm is norm_backward, which is not declared"):
        check(forward())
    check(forward(), complete=False)


# Gradients that are calls of other kernels.

A, B, BIAS = aot.In("a"), aot.In("b"), aot.In("bias", default=None)
PRODUCT_OUT = aot.Out("out", shape="(a.shape[0], b.shape[0])", dtype="a.dtype")
OPS = {"op": ("identity", "silu")}


def product(**settings: Any) -> Kernel:
    composed = aot.Composed(
        a="product(grad_out, b.mT)",
        bias="sums(grad_out.rows)[0]",
        split="act(product(a, b, bias), op=op)",
        whole={"op": "identity"},
    )
    settings = {"backward": composed, "choices": OPS, "choice_defaults": {"op": "identity"}, **settings}
    return kernel("product", A, B, PRODUCT_OUT, BIAS, **settings)


SUMS, ACT = kernel("sums", X, OUT), kernel("act", X, OUT, choices=OPS)


def test_calls_that_fit_pass_and_a_kernel_may_call_itself() -> None:
    check(product(), SUMS, ACT)


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        (aot.Composed(), "computes no gradient"),
        (aot.Composed(out="grad_out"), "has gradients of out"),
        (aot.Composed(a="product(grad_out, c)"), r"reads, in 'product\(grad_out, c\)', c"),
        (aot.Composed(a="product(grad_a, b)"), "grad_a"),
        (aot.Composed(a="a + b"), "not allowed"),
        (aot.Composed(split="act(out)"), "out"),
        (aot.Composed(split="act(a)", whole={"op": "gelu"}), "op = gelu whole"),
        (aot.Composed(a="grad_out", adds={"b": "product(a, main_grad)"}), "adds up gradients of b"),
        (aot.Composed(a="grad_out", adds={"a": "product(product(a, b), main_grad)"}), "adds by"),
        (aot.Composed(a="grad_out", adds={"a": "product(a, main_grad).mT"}), "adds by"),
        (aot.Composed(a="grad_out", adds={"a": "product(c, main_grad)"}), r"reads, in .*, c"),
        (aot.Composed(a="product(main_grad, b)"), "main_grad"),
    ],
)
def test_expressions_of_what_a_kernel_lacks_are_refused(backward: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        product(backward=backward)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("missing(grad_out)", "calls missing, which is not declared"),
        ("sums(grad_out, a)", "passes 2 arguments to sums"),
        ("sums(y=grad_out)", "calls sums, which has no y"),
        ("act(grad_out, x=a)", "calls act, which has no x"),
    ],
)
def test_calls_that_do_not_fit_a_kernel_are_refused(text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        check(product(backward=aot.Composed(a=text)), SUMS, ACT)


def test_a_call_of_a_kernel_that_could_not_be_read_is_not_refused() -> None:
    check(product(), complete=False)
