"""What a declaration says against what the author's functions take: a mistake is found before anything is compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from aot_runtime.arch import Arch

import aot
from aot.errors import DeclarationError

SM80 = Arch.parse("sm_80")
F16, F32 = aot.Tensor("f16", ("n",)), aot.Tensor("f32", ("n",))


def function(*names: str) -> Callable[..., Any]:
    """A function with parameters of those names."""
    return eval(f"lambda {', '.join(names)}: None")  # type: ignore[no-any-return]


def expand(jit: Any, arguments: dict[str, Any], *parameters: Any, **declared: Any) -> None:
    @aot.kernel(parameters=parameters, archs=["sm_80"], name="k", **declared)
    def make(target: aot.Target) -> aot.Spec:
        return aot.Spec(jit, arguments)

    make.variants(SM80)


X, OUT = aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype")
GIVEN = {"x": F32, "out": F32, "stream": aot.Stream()}


@pytest.mark.parametrize(
    "jit",
    [
        function("x", "out", "stream"),
        function("a", "b", "c"),  # other names are the author's business
        function("x", "out", "stream", "extra=1"),
        function("*arguments"),
        function("x", "stream"),  # `compile/signature.py` counts them
        type("Object", (), {"__call__": lambda self, x, out, stream: None})(),
    ],
)
def test_arguments_in_the_order_of_the_function_are_taken(jit: Any) -> None:
    expand(jit, GIVEN, X, OUT)


@pytest.mark.parametrize(
    ("jit", "said"),
    [
        (
            function("out", "x", "stream"),
            "takes (out, x, stream), and aot.Spec passes (x, out, stream): x, out would be",
        ),
        (
            type("Object", (), {"__call__": lambda self, stream, x, out: None})(),
            "`Object` takes (stream, x, out), and aot.Spec passes (x, out, stream)",
        ),
    ],
)
def test_arguments_in_another_order_are_refused(jit: Any, said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        expand(jit, GIVEN, X, OUT)
    assert said in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("dtype", "x", "out", "said"),
    [
        ("x.dtype", F32, F16, "out is declared with dtype='x.dtype', that is f32, and this variant writes f16"),
        ("f32", F16, F16, "out is declared with dtype='f32', that is f32, and this variant writes f16"),
        ("x.dtype", F16, F16, None),
        ("f32", F16, F32, None),
        ("out.dtype", F16, F32, None),  # the caller picks it
    ],
)
def test_an_output_has_the_dtype_that_is_declared(dtype: str, x: Any, out: Any, said: str | None) -> None:
    declared = aot.Out("out", shape="x.shape", dtype=dtype)
    arguments = {"x": x, "out": out, "stream": aot.Stream()}
    if said is None:
        expand(function("x", "out", "stream"), arguments, X, declared)
        return
    with pytest.raises(DeclarationError) as caught:
        expand(function("x", "out", "stream"), arguments, X, declared)
    assert said in caught.value.message
    assert caught.value.hint is not None and 'dtype="out.dtype"' in caught.value.hint


def declare(**contract: Any) -> None:
    parameters = (X, OUT, aot.In("factor", default=2.0))

    @aot.kernel(parameters=parameters, archs=["sm_80"], choices={"op": ("relu", "gelu")}, name="k", **contract)
    def make(target: aot.Target, op: str) -> aot.Spec:
        raise AssertionError("nothing is expanded here")


@pytest.mark.parametrize(
    "contract",
    [
        {"reference": function("x", "factor", "op"), "inputs": function("make", "dtype")},
        {"reference": function("x", "op", "factor=2.0", "exact=True")},
        {"reference": function("**everything"), "cost": function("x", "op", "**rest")},
        {"inputs": function("*arguments")},
        {"inputs": function("make", "dtype", "seed=0")},
    ],
)
def test_a_contract_takes_the_inputs_and_choices(contract: dict[str, Any]) -> None:
    declare(**contract)


@pytest.mark.parametrize(
    ("contract", "said"),
    [
        ({"reference": function("y", "op")}, "its reference takes y, which is neither an input nor a choice"),
        ({"reference": function("x", "out", "op")}, "its reference takes out, which is neither"),
        ({"reference": function("op", "factor")}, "its reference does not take x"),
        ({"reference": function("x", "factor")}, "its reference does not take op"),
        ({"cost": function("x", "factor")}, "its cost does not take op"),
        ({"inputs": function("make")}, "its inputs take (make)"),
        ({"inputs": function("make", "dtype", "device")}, "its inputs take (make, dtype, device)"),
    ],
)
def test_a_contract_for_another_signature_is_refused(contract: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(**contract)
    assert said in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"torch_equivalent": function("x", "y", "op")}, "its torch_equivalent takes y, which is neither"),
        ({"bench_inputs": function("make")}, "its bench_inputs take (make)"),
        ({"tune_inputs": function("make")}, "its tune_inputs take (make)"),
        ({"torch_equivalent": function("x", "op", "factor=1"), "bench_inputs": function("make", "dtype")}, None),
    ],
)
def test_what_else_a_contract_has_is_checked_too(
    more: dict[str, Any], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = function("x", "op", "factor")
    reference.__module__ = "contracts_of_a_test"
    monkeypatch.setitem(sys.modules, "contracts_of_a_test", SimpleNamespace(__name__="contracts_of_a_test", **more))
    if said is None:
        declare(reference=reference)
        return
    with pytest.raises(DeclarationError) as caught:
        declare(reference=reference)
    assert said in caught.value.message


def in_file(path: str, *names: str) -> Callable[..., Any]:
    """A function with parameters of those names, as if it were written in a file."""
    return eval(compile(f"lambda {', '.join(names)}: None", path, "eval"))  # type: ignore[no-any-return]


def test_a_contract_is_one_file_that_a_bundle_can_take() -> None:
    reference, inputs = in_file("contracts/k.py", "x", "op", "factor"), in_file("contracts/k.py", "make", "dtype")
    declare(reference=reference, inputs=inputs)
    for other in (
        {"reference": in_file(__file__, "x", "op", "factor"), "inputs": inputs},  # of the kernel itself
        {"reference": reference, "inputs": in_file(__file__, "make", "dtype")},
        {"reference": reference, "inputs": in_file("contracts/other.py", "make", "dtype")},
        {"reference": reference, "inputs": partial(inputs)},  # of no file
    ):
        with pytest.raises(DeclarationError) as caught:
            declare(**other)
        assert "kernel k: its " in caught.value.message
        assert "contracts/k.py" in str(caught.value.hint)
    declare(reference=in_file(__file__, "x", "op", "factor"))  # without inputs there is no contract
