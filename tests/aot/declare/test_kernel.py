"""A declaration expands into variants in order, and whatever is wrong with it is said with its file and line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import Choice, Parameter

import aot
from aot import DeclarationError
from aot.declare.arguments import layout_of
from aot.declare.kernel import Kernel

SM90 = Arch.parse("sm_90a")
X = aot.Tensor("f32", ("n",))
STREAM = aot.Stream()
PLACE = re.escape(__file__) + r":\d+: "


def jit(*arguments: object) -> None:
    """Stands for a jit function; nothing is compiled here."""


def spec(**changes: Any) -> aot.Spec:
    return aot.Spec(**{"function": jit, "arguments": {"x": X, "stream": STREAM}, **changes})


def declare(make: Callable[..., Any] | None = None, **settings: Any) -> Kernel:
    def scale(target: aot.Target, **point: Any) -> aot.Spec:
        """``x *= 2``.

        In place.
        """
        return spec()

    return aot.kernel(**{"parameters": (aot.In("x"),), "archs": ("sm_90a",), **settings})(make or scale)


def test_a_declaration_knows_its_name_documentation_and_place() -> None:
    kernel = declare()
    assert kernel.name == "scale"
    assert kernel.doc == "``x *= 2``.\n\nIn place."
    assert re.fullmatch(re.escape(__file__) + r":\d+", kernel.origin)
    assert declare(name="other").name == "other"


def test_variants_come_in_the_order_of_the_axes() -> None:
    kernel = declare(axes={"dtype": ("f16", "f32"), "aligned": (True, False), "tile": {"small": object(), "big": 2}})
    names = [variant.name for variant in kernel.variants(SM90)]
    assert names[:3] == ["scale__f16__aligned__small", "scale__f16__aligned__big", "scale__f16__not_aligned__small"]
    assert len(names) == 8


def test_the_function_gets_the_target_and_the_values_not_the_labels() -> None:
    seen: list[Any] = []

    def make(target: aot.Target, threads: int, epilogue: type) -> aot.Spec:
        seen.append((target, threads, epilogue))
        return spec()

    kernel = declare(make, axes={"threads": (32,)}, choices={"epilogue": {"plain": dict}})
    (variant,) = kernel.variants(SM90)
    assert seen == [(aot.Target.of(SM90), 32, dict)]
    assert variant.name == "make__plain__threads32"
    assert variant.point == {"epilogue": "plain", "threads": "threads32"}


SERVED = {"sm_80": "sm_80", "sm_90a": "sm_90a", "sm_100f": "sm_80"}


@pytest.mark.parametrize(
    ("archs", "arch", "written_for"),
    [
        (SERVED, "sm_90a", "sm_90a"),
        (SERVED, "sm_100f", "sm_80"),
        (SERVED, "sm_90", "sm_80"),  # not named: portable code is built for it
        (("sm_80", "sm_90a"), "sm_90a", "sm_90a"),
    ],
)
def test_a_declaration_names_the_code_that_serves_an_architecture(archs: Any, arch: str, written_for: str) -> None:
    asked: list[str] = []

    def make(target: aot.Target) -> aot.Spec:
        asked.append(target.written_for)
        return spec()

    (variant,) = declare(make, archs=archs).variants(Arch.parse(arch))
    assert asked == [variant.written_for] == [written_for]


@pytest.mark.parametrize("spelling", ["sm_90a", "sm90", "H100", "9.0", "NVIDIA H200"])
def test_an_architecture_has_many_names(spelling: str) -> None:
    assert declare(archs=(spelling,)).archs == (SM90,)
    assert declare(archs={"sm_100f": "sm80", spelling: spelling}).written_for[SM90] == SM90


@pytest.mark.parametrize("spelling", ["native", "all", "sm_91", "9.1", "hopper", "V100", 90])
def test_what_names_no_one_architecture_is_refused(spelling: Any) -> None:
    with pytest.raises(DeclarationError, match=f"unknown architectures: {spelling}") as caught:
        declare(archs=(spelling,))
    assert "sm_90a" in (caught.value.hint or "")


def test_a_spec_may_be_portable_where_others_are_not() -> None:
    (variant,) = declare(lambda target: spec(written_for="sm_80"), name="make").variants(SM90)
    assert variant.written_for == "sm_80"


@pytest.mark.parametrize("archs", [{"sm_100f": "sm_90a"}, {"sm_80": "sm_90"}])
def test_code_that_cannot_serve_an_architecture_is_refused(archs: dict[str, str]) -> None:
    with pytest.raises(DeclarationError, match=PLACE + r"code that was written for sm_\w+ does not run as sm_\w+"):
        declare(archs=archs)


def test_the_target_tells_limits_without_a_device() -> None:
    target = aot.Target.of(Arch.parse("sm_86"))
    assert (target.capability, target.shared_memory, target.max_cluster, target.max_threads) == (
        (8, 6),
        101376,
        1,
        1024,
    )


def test_choices_make_functions_and_axes_do_not() -> None:
    kernel = declare(
        choices={"op": ("relu", "gelu"), "causal": (True, False)},
        choice_defaults={"op": "gelu"},
        axes={"dtype": ("f16", "f32")},
    )
    assert kernel.functions() == (
        "scale__relu__causal", "scale__relu__not_causal", "scale__gelu__causal", "scale__gelu__not_causal",
    )  # fmt: skip
    assert kernel.public_choices()[0] == Choice("op", ("relu", "gelu"), "gelu")
    assert {variant.function for variant in kernel.variants(SM90)} == set(kernel.functions())


def test_a_point_may_give_several_specs_or_none() -> None:
    def make(target: aot.Target, dtype: str) -> list[aot.Spec]:
        return [spec(label="fast"), spec(label="plain")] if dtype == "f16" else []

    kernel = declare(make, axes={"dtype": ("f16", "f32")})
    assert [variant.name for variant in kernel.variants(SM90)] == ["make__f16__fast", "make__f16__plain"]


def test_a_kernel_that_leaves_out_every_point_is_refused() -> None:
    with pytest.raises(DeclarationError, match=PLACE + "kernel make gives no variant for sm_90a"):
        declare(lambda target: [], name="make").variants(SM90)


def test_a_variant_given_twice_names_both_points() -> None:
    kernel = declare(lambda target, dtype: [spec(), spec()], name="make", axes={"dtype": ("f16",)})
    with pytest.raises(DeclarationError, match=PLACE + r".*make__f16 twice, at \{'dtype': 'f16'\} and at") as caught:
        kernel.variants(SM90)
    assert caught.value.hint == "pass a different `label` to each spec of one point"


@pytest.mark.parametrize("nonsense", [None, 3, "spec", [jit], {"a": 1}, jit, (spec(), None)])
def test_a_function_that_returns_nonsense_is_told_what_it_returned(nonsense: object) -> None:
    with pytest.raises(DeclarationError, match=PLACE + "kernel make returned .* at ") as caught:
        declare(lambda target: nonsense, name="make").variants(SM90)
    assert "aot.Spec" in (caught.value.hint or "")


def test_an_error_of_the_function_says_point_and_architecture() -> None:
    def make(target: aot.Target, dtype: str) -> aot.Spec:
        return spec(arguments={"x": aot.Tensor(dtype, ("n",)), "stream": STREAM})

    with pytest.raises(
        DeclarationError, match=PLACE + r"kernel make at \{'dtype': 'f99'\} for sm_90a: unknown dtype: 'f99'"
    ):
        declare(make, axes={"dtype": ("f99",)}).variants(SM90)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"function": 3}, "3 is not callable"),
        ({"arguments": [X]}, "the arguments are "),
        ({"arguments": {"x": 7, "stream": STREAM}}, "argument x is 7"),
        ({"arguments": {"x": jit, "stream": STREAM}}, "argument x is <function"),
        ({"arguments": {"stream": STREAM}}, "no argument for parameter x"),
        ({"arguments": {"x": X, "y": X, "stream": STREAM}}, "argument y is not among the kernel's parameters"),
        ({"arguments": {"x": aot.Constant(1), "stream": STREAM}}, "x is a parameter of the call, but Constant"),
        ({"arguments": {"x": aot.Multiprocessors(), "stream": STREAM}}, "x is a parameter of the call"),
        ({"arguments": {"x": X, "s": aot.Stream(explicit=True)}}, "argument s is not among"),
        ({"arguments": {"x": X, "a": STREAM, "b": STREAM}}, "2 streams; a launch has one"),
        (
            {"arguments": {"x": aot.Pointer("f32"), "stream": STREAM}},
            "without a tensor the current stream is not known",
        ),
        ({"label": "a b"}, "the label 'a b' cannot be part of a name"),
        ({"label": "../../x"}, "cannot be part of a name"),
        ({"label": "a__b"}, "cannot be part of a name"),
    ],
)
def test_a_wrong_spec_is_refused_with_its_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=PLACE + "kernel make.*" + re.escape(message)):
        declare(lambda target: spec(**changes), name="make").variants(SM90)


def test_a_kernel_without_a_stream_is_refused_with_a_hint_unless_it_means_stream_zero() -> None:
    without = {"x": X}
    with pytest.raises(DeclarationError, match="it would launch on stream 0") as caught:
        declare(lambda target: spec(arguments=without), name="k").variants(SM90)
    assert "aot.Stream()" in (caught.value.hint or "")
    assert "default_stream=True" in (caught.value.hint or "")
    assert declare(lambda target: spec(arguments=without, default_stream=True), name="k").variants(SM90)


def test_a_tensor_within_a_tuple_makes_the_current_stream_known() -> None:
    nested = {"x": aot.Tuple((aot.Scalar("i32"), aot.Tuple((X,)))), "stream": STREAM}
    assert declare(lambda target: spec(arguments=nested), name="k").variants(SM90)


def test_a_function_that_cannot_take_the_axes_is_told_how_to_be_written() -> None:
    def without_target(dtype: str) -> aot.Spec:
        return spec()

    def misspelled(target: aot.Target, dtyp: str) -> aot.Spec:
        return spec()

    for make in (without_target, misspelled):
        with pytest.raises(
            DeclarationError, match=rf"^{PLACE}kernel {make.__name__}: the function cannot be"
        ) as caught:
            declare(make, axes={"dtype": ("f32",)}, choices={"epilogue": ("none",)})
        assert caught.value.hint == f"write `def {make.__name__}(target, dtype, epilogue)`"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"archs": ()}, "unknown architectures: none given"),
        ({"archs": ("sm91",)}, "unknown architectures: sm91"),
        ({"archs": "sm_90a"}, "archs is the text 'sm_90a'"),
        ({"archs": ("sm_80", "sm_75")}, "unknown architectures: sm_75"),
        ({"axes": {"dtype": ("f16", "f16")}}, "axis dtype needs different values"),
        ({"axes": {"dtype": ()}}, "axis dtype needs different values, at least one; got: none"),
        ({"axes": {"dtype": "f16"}}, "the values of axis dtype are 'f16'"),
        ({"axes": {"tile": 4}}, "the values of axis tile are 4"),
        ({"axes": {"tile": (1.5,)}}, "'1.5', of axis tile, cannot be part of a name"),
        ({"axes": {"tile": {"a__b": 1}}}, "cannot be part of a name"),
        ({"axes": {"tile": {"_a": 1}}}, "cannot be part of a name"),
        ({"axes": {"tile": {7: 1}}}, "7, of axis tile, cannot be part of a name"),
        ({"choices": {"op": ("a",)}, "axes": {"op": ("b",)}}, "both an axis and a choice: op"),
        ({"choices": {"op": ("a",)}, "choice_defaults": {"op": "b"}}, "op has no value 'b' to default to"),
        ({"choice_defaults": {"op": "b"}}, "op has no value 'b' to default to"),
        ({"choices": {"x": ("a",)}}, "two parameters or choices have the same name"),
        ({"parameters": (aot.In("x"), aot.In("x"))}, "two parameters or choices have the same name"),
        ({"parameters": ("x",)}, "'x' is not a parameter"),
        ({"parameters": (aot.In("class"),)}, "'class' cannot name a parameter"),
        ({"parameters": (aot.In("_x"),)}, "'_x' cannot name a parameter"),
        ({"parameters": (aot.In("a b"),)}, "'a b' cannot name a parameter"),
        ({"parameters": (aot.In("x", default=1), aot.In("y"))}, "y has no default but follows a parameter that has one"),
        ({"parameters": (aot.Out("x", shape="y.shape", dtype="f32"),)}, "the shape or dtype of x refers to y"),
        ({"parameters": (aot.Out("x", shape="x.shape", dtype="y.dtype"),)}, "the shape or dtype of x refers to y"),
        ({"name": "preload"}, "bundles have an attribute of that name"),
        ({"name": "a__b"}, "the name is not an identifier"),
        ({"name": "1d"}, "the name is not an identifier"),
        ({"name": "_x"}, "the name is not an identifier"),
        ({"name": "x_"}, "the name is not an identifier"),
        ({"name": "lambda"}, "the name is not an identifier"),
        ({"name": "a b"}, "the name is not an identifier"),
        ({"name": 5}, "the name is 5, not a text"),
        ({"parameters": aot.In("x")}, "the parameters are Parameter"),
        ({"parameters": None}, "the parameters are None"),
        ({"parameters": (aot.In(5),)}, "5 cannot name a parameter"),  # type: ignore[arg-type]
        ({"parameters": (aot.In("x", b"text"),)}, "x: its documentation is b'text', not a text"),  # type: ignore[arg-type]
        ({"axes": {"target": (1, 2)}}, "an axis or a choice is called target"),
        ({"axes": ("dtype",)}, "axes are ('dtype',)"),
        ({"choices": ("op",)}, "choices are ('op',)"),
        ({"options": 5}, "options are 5, not a text"),
        ({"tuned_by": 5}, "tuned_by is 5"),
        ({"tuned_by": ("n", 5)}, "tuned_by is ('n', 5)"),
        ({"variant_budget": None}, "variant_budget is None"),
        ({"variant_budget": "5"}, "variant_budget is '5'"),
        ({"variant_budget": True}, "variant_budget is True"),
        ({"variant_budget": -1}, "variant_budget is -1"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused_when_it_is_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=PLACE + ".*" + re.escape(message)):
        declare(**settings)


def test_every_attribute_of_a_loaded_bundle_is_a_reserved_name() -> None:
    from aot_runtime.core.bundle import Bundle

    attributes = {name for name in [*vars(Bundle), "path", "manifest"] if not name.startswith("_")}
    for name in attributes:
        with pytest.raises(DeclarationError, match="bundles have an attribute of that name"):
            declare(name=name)


def test_defaults_are_numbers_or_none() -> None:
    for default in (None, 1, 0.5, True, float("inf"), 2**63 - 1, -(2**63)):
        assert aot.In("x", default=default) == Parameter("x", has_default=True, default=default)
    for default in ("text", (1, 2), object(), float("nan")):
        with pytest.raises(DeclarationError, match="is neither a number nor None"):
            aot.In("x", default=default)
    for default in (2**63, -(2**63) - 1):
        with pytest.raises(DeclarationError, match=f"parameter x: the default {default} does not fit in 64 bits"):
            aot.In("x", default=default)


def test_an_output_may_be_left_out_and_its_default_can_only_be_none() -> None:
    optional = aot.Out("rstd", shape="x.shape[:1]", dtype="f32", default=None)
    assert optional == Parameter("rstd", has_default=True, output=True, shape="x.shape[:1]", dtype="f32")
    assert not aot.Out("out", shape="x.shape", dtype="f32").has_default
    with pytest.raises(DeclarationError, match="rstd: the default of an output can only be None, not 0"):
        aot.Out("rstd", shape="x.shape", dtype="f32", default=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: aot.Tensor("f33", ("n",)), "unknown dtype: 'f33'"),
        (lambda: aot.Tensor("f32", "n"), "expected a tuple, got the string 'n'"),
        (lambda: aot.Tensor("f32", (1.5,)), "not an extent or a stride: 1.5"),
        (lambda: aot.Tensor("f32", (None,)), "not an extent or a stride: None"),
        (lambda: aot.Tensor("f32", (True,)), "not an extent or a stride: True"),
        (lambda: aot.Tensor("f32", (-1,)), "an extent is negative"),
        (lambda: aot.Tensor("f32", ("n",), strides=(1, 1)), "a tensor of rank 1 was given 2 strides"),
        (lambda: aot.Tensor("f32", ("n",), align=12), "align must be a power of two, got 12"),
        (lambda: aot.Tensor("f32", ("1n",)), "not a name for an extent: '1n'"),
        (lambda: aot.Dim("n", divisible_by=0), "divisible_by must be >= 1"),
        (lambda: aot.Dim("n", bits=16), "bits 32 or 64"),
        (lambda: aot.Scalar("f8e4m3"), "unknown dtype: 'f8e4m3'"),
        (lambda: aot.Pointer("f32", align=0), "align must be a power of two, got 0"),
        (lambda: aot.Tuple((X, 3)), "3 cannot be an element of a tuple"),
        (lambda: aot.Tuple((X, aot.Stream())), "cannot be an element of a tuple"),
        (lambda: aot.Out("x", shape="(", dtype="f32"), "not an expression"),
        (lambda: aot.Out("x", shape=5, dtype="f32"), "not an expression: 5 (it is not a text)"),  # type: ignore[arg-type]
        (lambda: aot.Out("x", shape="x.shape", dtype=5), "not the dtype of an output: 5"),  # type: ignore[arg-type]
        (lambda: aot.Out("x", shape="x.shape", dtype="f32", may_be=5), "parameter x: may_be is 5"),  # type: ignore[arg-type]
        (lambda: aot.Out("x", shape="x.shape", dtype="f33"), "not the dtype of an output: 'f33'"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_written(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(message)):
        make()


def test_alignment_is_one_element_where_none_is_given() -> None:
    assert aot.Tensor("bf16", ("n",)).alignment == 2
    assert aot.Tensor("bf16", ("n",), align=16).alignment == 16


def test_a_layout_without_strides_is_row_major_with_free_outer_strides() -> None:
    free = layout_of(aot.Tensor("f16", ("b", aot.Dim("m", 4), 8)), "x")
    assert free[2] == 1
    assert free[1] == 8
    assert free[0] == aot.Dim("x_stride_0", 32, 64)
    assert layout_of(aot.Tensor("f16", (2, 3, 4)), "x") == (12, 4, 1)
    assert layout_of(aot.Tensor("f16", (2, 3), strides=(1, "s")), "x") == (1, aot.Dim("s"))


def test_an_output_may_be_an_input_and_nothing_else() -> None:
    out = aot.Out("out", shape="x.shape", dtype="x.dtype", may_be=("x", "out"))
    with pytest.raises(DeclarationError, match="out may be out, which is not an input") as caught:
        aot.kernel(parameters=(aot.In("x"), out), archs=("sm_90a",), name="lone")(lambda target: [])
    assert caught.value.hint == "inputs: x"
