"""Scratch memory in a declaration: what it may be is checked with the kernel's file and line."""

from __future__ import annotations

from typing import Any

import pytest
from aot_runtime.arch import Arch

import aot
from aot import DeclarationError
from aot.declare.kernel import Kernel

X = aot.Tensor("f32", ("n",))
SM90 = Arch.parse("sm_90a")


def jit(*arguments: object) -> None:
    """Stands for a jit function; nothing is compiled here."""


def declare(*parameters: Any, **arguments: Any) -> Kernel:
    def summed(target: aot.Target) -> aot.Spec:
        return aot.Spec(jit, {"x": X, **arguments, "stream": aot.Stream()})

    return aot.kernel(parameters=(aot.In("x"), *parameters), archs=("sm_90a",))(summed)


def test_a_workspace_is_a_parameter_that_may_be_left_out() -> None:
    parameter = aot.Workspace("parts", "partial sums", bytes="4 * x.shape[0]", zeroed=True)
    assert (parameter.has_default, parameter.default, parameter.output) == (True, None, False)
    assert (parameter.workspace, parameter.zeroed) == ("4 * x.shape[0]", True)
    for argument in (aot.Tensor("f32", ("length",)), aot.Tensor("u8", ("length",), align=128), None):
        assert len(declare(parameter, parts=argument).variants(SM90)) == 1


@pytest.mark.parametrize(
    "argument",
    [
        aot.Scalar("f32"), aot.Tensor("f32", (16,)), aot.Tensor("f32", ("a", "b")),
        aot.Tensor("f32", ("n",), optional=True), aot.Tensor("f32", ("n",), strides=(2,)), aot.Tensor("f32", (aot.Dim("length", divisible_by=8),)),
    ],
)  # fmt: skip
def test_a_spec_takes_it_as_dispatch_supplies_it(argument: Any) -> None:
    with pytest.raises(
        DeclarationError, match=r"test_workspace.py:\d+: kernel summed: the workspace parts is"
    ) as caught:
        declare(aot.Workspace("parts", bytes="64"), parts=argument).variants(SM90)
    assert caught.value.hint == 'pass aot.Tensor("f32", ("length",)), of any dtype and name, or None'


def test_more_alignment_than_is_promised_is_refused() -> None:
    with pytest.raises(DeclarationError, match="wants an alignment of 512 bytes") as caught:
        declare(aot.Workspace("parts", bytes="64"), parts=aot.Tensor("f32", ("m",), align=512)).variants(SM90)
    assert caught.value.hint == "at most 128 are promised"


def test_a_kernel_has_one_workspace() -> None:
    with pytest.raises(DeclarationError, match="2 workspaces: a, b") as caught:
        declare(aot.Workspace("a", bytes="4"), aot.Workspace("b", bytes="4"))
    assert caught.value.hint == "declare one, with room for all"


@pytest.mark.parametrize("size", ["4 * y.shape[0]", "parts.shape[0]", "4 * n", "out.shape[0]"])
def test_its_size_follows_from_the_inputs(size: str) -> None:
    with pytest.raises(DeclarationError, match="the size of parts refers to") as caught:
        declare(aot.Out("out", shape="x.shape", dtype="f32"), aot.Workspace("parts", bytes=size))
    assert caught.value.hint == "inputs: x"


@pytest.mark.parametrize("size", ["x.shape", "x.shape[0] < 4", "x.strides[0]", "1.5", "import os"])
def test_what_is_not_a_size_is_refused(size: str) -> None:
    with pytest.raises(DeclarationError):
        aot.Workspace("parts", bytes=size)


@pytest.mark.parametrize("size", [4096, b"4096", None])
def test_a_size_is_a_text(size: Any) -> None:
    with pytest.raises(DeclarationError, match=r"not an expression: .* \(it is not a text\)") as caught:
        aot.Workspace("parts", bytes=size)
    assert caught.value.hint == 'write one like "4 * x.shape[0]"'


def test_zeroed_is_true_or_false() -> None:
    with pytest.raises(DeclarationError, match="workspace parts: zeroed is 'no'"):
        aot.Workspace("parts", bytes="4", zeroed="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", ["-4", "4 // 0", "1 % 0", "9223372036854775807 * 2"])
def test_a_size_that_no_call_can_have_is_refused(size: str) -> None:
    with pytest.raises(DeclarationError, match=r"workspace parts: .* is not a number of bytes"):
        aot.Workspace("parts", bytes=size)
    assert aot.Workspace("parts", bytes=f"{size} + x.shape[0]")  # what a call has decides
