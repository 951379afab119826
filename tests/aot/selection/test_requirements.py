"""What a call must satisfy follows from the declared arguments, in one form: an integer lies in an interval."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import aot
from aot import DeclarationError
from aot.kinds import DTYPES
from aot.selection import subjects
from aot.selection.requirements import SOURCE_CONSTANT, variant_table
from aot.selection.subjects import HIGHEST, LOWEST, FixedArgument, Requirement, VariantTable, ordered_float
from aot.targets import accepted_archs

INT32 = (-(2**31), 2**31 - 1)


def jit(*arguments: object) -> None:
    """Stands for a jit function; nothing is compiled here."""


def table(arguments: Mapping[str, Any], guards: Any = (), parameters: tuple[str, ...] | None = None) -> VariantTable:
    supplied = (aot.Constant, aot.Multiprocessors, aot.ActiveClusters)
    public = [
        name
        for name, item in arguments.items()
        if not isinstance(item, supplied) and item != aot.Stream(explicit=False)
    ]
    stream = {} if any(isinstance(item, aot.Stream) for item in arguments.values()) else {"stream": aot.Stream()}

    @aot.kernel(parameters=[aot.In(name) for name in parameters or public], archs=("sm_90a",))
    def kernel(target: aot.Target) -> aot.Spec:
        return aot.Spec(jit, {**arguments, **stream}, guards=guards, default_stream=True)

    (variant,) = kernel.variants(kernel.archs[0])
    return variant_table(variant)


def intervals(of: VariantTable) -> dict[str, tuple[int, int]]:
    """``{"extent of x.shape[0]": (0, 7)}``; strictness is tested apart."""
    return {f"{r.subject.operation} of {r.subject.label}": (r.low, r.high) for r in of.requirements}


def find(of: VariantTable, operation: str) -> Requirement:
    (requirement,) = [item for item in of.requirements if item.subject.operation == operation]
    return requirement


def test_a_vector_asks_for_kind_device_dtype_rank_extent_stride_and_alignment() -> None:
    f16 = 16 << 32 | 1 << 8 | 2
    assert intervals(table({"x": aot.Tensor("f16", ("n",), align=16)})) == {
        "kind of x": (6, 6),
        "device_type of x": (2, 2),
        "device_index of x": (0, 0),
        "dtype of x.dtype": (f16, f16),
        "ndim of x.ndim": (1, 1),
        "extent of x.shape[0]": (0, INT32[1]),
        "stride_off of x.strides[0]": (0, 0),
        "address_modulo of x": (0, 0),
    }


def test_outputs_must_lie_apart_from_all_other_tensors_but_those_they_may_be() -> None:
    tensor = aot.Tensor("f16", ("n",))
    arguments = {"pair": aot.Tuple((tensor, tensor)), "out": tensor, "x": tensor, "scale": aot.Scalar("f32"),
                 "other": tensor, "stream": aot.Stream()}  # fmt: skip
    outputs = (
        aot.Out("out", shape="x.shape", dtype="x.dtype", may_be="x"),
        aot.Out("other", shape="x.shape", dtype="x.dtype"),
    )

    @aot.kernel(parameters=(aot.In("pair"), outputs[0], aot.In("x"), aot.In("scale"), outputs[1]), archs=("sm_90a",))
    def kernel(target: aot.Target) -> aot.Spec:
        return aot.Spec(jit, arguments)

    last = variant_table(kernel.variants(kernel.archs[0])[0]).requirements[-1]
    assert (last.subject.operation, last.low, last.high) == ("overlap", 0, 0)
    regions = [(region.label, region.path, region.is_output, region.may_be) for region in last.subject.regions]
    assert regions == [
        ("out", (1,), True, 0),
        ("other", (4,), True, 0),
        ("pair[0]", (0, 0), False, 0),
        ("pair[1]", (0, 1), False, 0),
        ("x", (2,), False, 0b01),
    ]


def test_no_two_dtypes_look_alike_to_a_call() -> None:
    assert len({(dtype.code, dtype.bits) for dtype in DTYPES.values()}) == len(DTYPES)


@pytest.mark.parametrize(("dtype", "enforced"), [("i32", True), ("u8", True), ("f32", False), ("bool", False)])
def test_signedness_is_enforced_since_compiled_entries_mix_it_up(dtype: str, enforced: bool) -> None:
    assert find(table({"x": aot.Tensor(dtype, ("n",))}), "dtype").enforced is enforced


def test_fixed_extents_are_exact_and_a_byte_needs_no_alignment() -> None:
    found = intervals(table({"x": aot.Tensor("u8", (4, 8))}))
    assert found["extent of x.shape[0]"] == (4, 4)
    assert found["extent of x.shape[1]"] == (8, 8)
    assert "address_modulo of x" not in found


def test_a_name_met_again_must_agree_with_where_it_was_first() -> None:
    requirement = find(table({"x": aot.Tensor("f32", ("n",)), "y": aot.Tensor("f32", ("n",))}), "extent_off")
    subject = requirement.subject
    assert (subject.path, subject.dim, subject.other, subject.other_dim) == ((1,), 0, (0,), 0)
    assert (subject.label, subject.other_label) == ("y.shape[0]", "x.shape[0]")
    assert (requirement.low, requirement.high) == (0, 0)


def test_divisibility_and_width_of_extents_and_strides_are_asked() -> None:
    x = aot.Tensor("f32", (aot.Dim("m", 8, 64), "n"), strides=(aot.Dim("s", 4), 1))
    found = intervals(table({"x": x}))
    assert found["extent of x.shape[0]"] == (0, HIGHEST)
    assert found["extent_modulo of x.shape[0]"] == (0, 0)
    assert found["stride of x.strides[0]"] == INT32
    assert found["stride_modulo of x.strides[0]"] == (0, 0)


def test_a_stride_may_be_named_after_an_extent() -> None:
    subject = find(table({"x": aot.Tensor("f32", ("m", "n"), strides=("n", 1))}), "stride_off_by").subject
    assert (subject.dim, subject.other_dim, subject.other_is_stride) == (0, 1, False)


def test_one_name_declared_in_two_ways_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"extent n is declared as .* and as "):
        table({"x": aot.Tensor("f32", ("n",)), "y": aot.Tensor("f32", (aot.Dim("n", 8),))})


@pytest.mark.parametrize(
    ("argument", "kinds"),
    [
        (None, (4, 4)),
        (aot.Scalar("f16"), (1, 3)),
        (aot.Scalar("bf16"), (1, 3)),
        (aot.Scalar("i64"), (2, 3)),
        (aot.Scalar("bool"), (2, 3)),
        (aot.Pointer("f32"), (3, 5)),
        (aot.Stream(explicit=True), (3, 5)),
        (aot.Tuple(()), (7, 7)),
    ],
)
def test_each_kind_of_argument_takes_what_its_compiled_entry_takes(argument: Any, kinds: tuple[int, int]) -> None:
    assert intervals(table({"a": argument, "x": aot.Tensor("f32", ("n",))}))["kind of a"] == kinds


def test_a_32_bit_integer_must_fit() -> None:
    assert intervals(table({"k": aot.Scalar("i32"), "x": aot.Tensor("f32", ("n",))}))["integer of k"] == INT32


def test_elements_of_tuples_are_reached_parents_first() -> None:
    inner = aot.Tuple((aot.Scalar("i32"), None))
    made = table({"p": aot.Tuple((aot.Tensor("f32", ("n",)), inner)), "x": aot.Tensor("f32", ("n",))})
    assert made.paths == ((0, 0), (0, 1), (0, 1, 0), (0, 1, 1))
    found = intervals(made)
    assert found["length of len(p)"] == (2, 2)
    assert found["kind of p[1][1]"] == (4, 4)
    assert found["extent of p[0].shape[0]"] == (0, INT32[1])
    assert "extent_off of x.shape[0]" in found


def test_a_tensor_in_a_tuple_may_leave_its_strides_free() -> None:
    x = aot.Tensor("f32", ("m", "n"))
    made = table({"inputs": aot.Tuple((x, aot.Tuple((x,))))})
    places = [item.subject for item in made.requirements if item.subject.label.endswith("strides[0]")]
    assert not places, "a stride of the first dimension is free and 64 bits wide, so that nothing is asked of it"
    assert intervals(made)["stride_off of inputs[1][0].strides[1]"] == (0, 0)


def test_callers_pass_none_for_a_constant_in_a_tuple() -> None:
    x = aot.Tensor("f32", ("n",))
    found = intervals(table({"epilogue": aot.Tuple((x, aot.Constant(max)))}))
    assert found["length of len(epilogue)"] == (2, 2)
    assert found["kind of epilogue[1]"] == (4, 4)


def test_arguments_in_the_order_of_the_call_need_no_sources() -> None:
    made = table({"x": aot.Tensor("f32", ("n",)), "k": aot.Scalar("f32"), "c": aot.Constant(int)})
    assert (made.sources, made.stream, made.entry_arguments, made.uses_tensors) == (None, -1, 2, True)


def test_sources_name_the_argument_or_what_the_device_supplies() -> None:
    arguments = {
        "sms": aot.Multiprocessors(),
        "y": aot.Tensor("f32", ("n",)),
        "clusters": aot.ActiveClusters(),
        "x": aot.Tensor("f32", ("n",)),
    }
    made = table(arguments, parameters=("x", "y"))
    assert made.sources == (0x80, 1, 0x81, 0)
    assert made.entry_arguments == 4


def test_the_stream_is_the_frameworks_an_argument_or_zero() -> None:
    pointer = aot.Pointer("f32")
    explicit = table({"p": pointer, "s": aot.Stream(explicit=True)})
    assert (explicit.stream, explicit.uses_tensors) == (1, False)

    @aot.kernel(parameters=[aot.In("x")], archs=("sm_90a",))
    def kernel(target: aot.Target) -> aot.Spec:
        return aot.Spec(jit, {"x": aot.Tensor("f32", ("n",))}, default_stream=True)

    assert variant_table(kernel.variants(kernel.archs[0])[0]).stream == -2


ARGUMENTS = {
    "x": aot.Tensor("f32", ("m", "n")),
    "k": aot.Scalar("i32"),
    "alpha": aot.Scalar("f32"),
}


@pytest.mark.parametrize(
    ("guard", "subject", "interval"),
    [
        ("n <= 100", "extent of x.shape[1]", (0, 100)),
        ("n < 100", "extent of x.shape[1]", (0, 99)),
        ("n > 100", "extent of x.shape[1]", (101, INT32[1])),
        ("n == 100", "extent of x.shape[1]", (100, 100)),
        ("8 <= n <= 64", "extent of x.shape[1]", (8, 64)),
        ("x.shape[-1] >= 5", "extent of x.shape[1]", (5, INT32[1])),
        ("k < 0", "integer of k", (INT32[0], -1)),
        ("n % 8 == 0", "program of n % 8", (0, 0)),
        ("m * n >= 4096", "program of m * n", (4096, HIGHEST)),
        ("x.strides[0] < 9", "stride of x.strides[0]", (LOWEST, 8)),
        ("alpha == 0.0", "float of alpha", (0, 0)),
        ("alpha == 1", "float of alpha", (ordered_float(1.0), ordered_float(1.0))),
        ("m < n", "condition of m < n", (1, 1)),
        ("n != 3", "condition of n != 3", (1, 1)),
        ("n < 3 or m < 3", "condition of (n < 3) or (m < 3)", (1, 1)),
        ("not n < 3", "condition of not (n < 3)", (1, 1)),
    ],
)  # fmt: skip
def test_a_guard_becomes_an_interval_that_is_always_asked(guard: str, subject: str, interval: tuple[int, int]) -> None:
    made = table(ARGUMENTS, guards=guard)
    assert intervals(made)[subject] == interval
    (asked,) = [r for r in made.requirements if f"{r.subject.operation} of {r.subject.label}" == subject]
    assert asked.enforced


def test_guards_joined_by_and_are_asked_one_by_one() -> None:
    assert intervals(table(ARGUMENTS, guards=("n < 9 and m > 1", "n > 2"))) == intervals(
        table(ARGUMENTS, guards=("2 < n", "n < 9", "m > 1"))
    )


def test_a_guard_that_contradicts_the_arguments_leaves_an_empty_interval() -> None:
    requirement = find(table({"x": aot.Tensor("f32", (4,))}, guards="x.shape[0] > 8"), "extent")
    assert requirement.low > requirement.high


@pytest.mark.parametrize(
    ("guard", "message"),
    [
        ("q < 3", "'q' is neither an extent nor an integer argument"),
        ("alpha + 1 < 2", "'alpha' is neither an extent nor an integer argument"),
        ("n < 0.5", "0.5 is compared with an integer: n"),
        ("n + 0.5 < m", "0.5: floats can only be compared"),
        ("y.shape[0] < 1", "'y' is not a tensor"),
        ("k.shape[0] < 1", "'k' is not a tensor"),
        ("x.shape[2] < 1", "x has rank 2, no dimension 2"),
        ("x.shape[-3] < 1", "x has rank 2, no dimension -3"),
        ("n **", "not an expression"),
        ("n ** 2", "is not supported"),
        ("n < 99999999999999999999", "does not fit in 64 bits"),
        ("n + (" * 17 + "m" + ")" * 17 + " < k", "is nested too deeply"),
        (7, "7 is not a text"),
    ],
)
def test_a_wrong_guard_is_refused_with_kernel_and_place(guard: Any, message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        table(ARGUMENTS, guards=(guard,))
    assert message in caught.value.message
    assert caught.value.message.startswith(f"{__file__}:")
    assert "kernel kernel: guard: " in caught.value.message


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
@example(0.0, -0.0)
@example(5e-324, 0.0)
@example(float("-inf"), float("inf"))
def test_floats_keep_their_order_as_integers(left: float, right: float) -> None:
    assert (left < right) == (ordered_float(left) < ordered_float(right))
    assert LOWEST <= ordered_float(left) <= HIGHEST


def test_neighbouring_floats_are_neighbouring_integers() -> None:
    (above,) = struct.unpack("<d", struct.pack("<q", struct.unpack("<q", struct.pack("<d", 0.5))[0] + 1))
    assert ordered_float(above) == ordered_float(0.5) + 1


def test_constants_agree_with_the_c_header() -> None:
    import aot_runtime.native

    from aot import kinds
    from aot.selection import guards, requirements

    header = (aot_runtime.native.source_directory() / "aot_tables.h").read_text()
    values = {name: int(value, 0) for name, value in re.findall(r"(AOT_[A-Z0-9_]+)\s*=\s*(-?[0-9A-Fa-fx]+)", header)}
    for name in ("FLOAT", "BOOL", "INT", "NONE", "HANDLE", "TENSOR", "TUPLE"):
        assert getattr(kinds, name) == values[f"AOT_KIND_{name}"]
    for name in ("SOURCE_MULTIPROCESSORS", "SOURCE_ACTIVE_CLUSTERS", "STREAM_FROM_ENVIRONMENT", "STREAM_DEFAULT"):
        assert getattr(requirements, name) == values[f"AOT_{name}"]
    limits = dict(re.findall(r"#define (AOT_MAX_\w+) (\d+)", header))
    assert str(guards.MAX_PROGRAM_DEPTH) == limits["AOT_MAX_PROGRAM_DEPTH"]
    from aot.selection.tables import MAX_ARGUMENTS

    assert str(MAX_ARGUMENTS) == limits["AOT_MAX_ARGUMENTS"]


def test_a_table_does_not_depend_on_the_architecture() -> None:
    @aot.kernel(parameters=[aot.In("x")], archs=[str(arch) for arch in accepted_archs()])
    def kernel(target: aot.Target) -> aot.Spec:
        return aot.Spec(jit, {"x": aot.Tensor("f32", ("n",)), "stream": aot.Stream()})

    assert len({variant_table(kernel.variants(arch)[0]) for arch in kernel.archs}) == 1


def tuned(tuned_by: tuple[str, ...], **spec: Any) -> VariantTable:
    matrix, other = aot.Tensor("f16", ("m", "k")), aot.Tensor("f16", ("n", "k"))
    numbers = {"count": aot.Scalar("i32"), "alpha": aot.Scalar("f32")}
    arguments = {"a": matrix, "b": other, **numbers, "stream": aot.Stream()}

    @aot.kernel(
        parameters=[aot.In(name) for name in ("a", "b", *numbers)], archs=("sm_90a",), tuned_by=tuned_by, name="tuned"
    )
    def kernel(target: aot.Target) -> aot.Spec:
        return aot.Spec(jit, arguments, **spec)

    (variant,) = kernel.variants(kernel.archs[0])
    return variant_table(variant)


def test_what_a_table_goes_by_is_read_off_the_public_arguments() -> None:
    found = tuned(("m", "n * k", "min(count, 8)")).tuned_by
    assert {extent.name: extent.of_call for extent in found} == {
        "m": "a.shape[0]",
        "n * k": "b.shape[0] * a.shape[1]",
        "min(count, 8)": "min(count, 8)",
    }
    assert [extent.subject.operation for extent in found] == ["extent", "program", "program"]


@pytest.mark.parametrize(
    ("tuned_by", "message"),
    [
        (("unknown",), "kernel tuned: tuned_by: 'unknown' is neither an extent nor an integer argument"),
        (("alpha",), "kernel tuned: tuned_by: 'alpha' is neither an extent nor an integer argument"),
        (("m <= 4",), "'m <= 4' cannot tell calls apart for a table"),
        (("a.strides[0]",), r"'a.strides\[0\]' cannot tell calls apart for a table"),
        (("m", "n", "k", "m * n", "m * k"), "tuned_by has 5 expressions; a table has room for 4"),
        (("m", "m"), "tuned_by names an expression twice: m, m"),
    ],
)
def test_what_a_table_cannot_go_by_is_refused(tuned_by: tuple[str, ...], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        tuned(tuned_by)


def test_a_wrong_preference_is_called_a_preference() -> None:
    with pytest.raises(DeclarationError, match="kernel tuned: prefer: 'unknown' is neither") as caught:
        tuned((), prefer="unknown <= 64")
    assert caught.value.hint == "known: m, k, a_stride_0, n, b_stride_0, count"


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (
            "alpha",
            "'alpha' is neither an extent nor an integer argument",
        ),  # its bits would be taken for a number of bytes
        ("4 * alpha", "'alpha' is neither an extent nor an integer argument"),
        ("4 * x", "'x' is neither an extent nor an integer argument"),
        ("alpha.shape[0]", "'alpha' is not a tensor"),
        ("x.shape[1]", "x has rank 1, no dimension 1"),
        ("alpha.size", "'alpha' is not a tensor"),
    ],
)
def test_a_workspace_has_a_whole_number_of_bytes(size: str, message: str) -> None:
    vector, parts = aot.Tensor("f32", ("n",)), aot.Tensor("f32", ("length",))
    arguments = {"x": vector, "alpha": aot.Scalar("f32"), "parts": parts, "stream": aot.Stream()}

    @aot.kernel(parameters=[aot.In("x"), aot.In("alpha"), aot.Workspace("parts", bytes=size)], archs=("sm_90a",))
    def kernel(target: aot.Target) -> aot.Spec:
        return aot.Spec(jit, arguments)

    (variant,) = kernel.variants(kernel.archs[0])
    with pytest.raises(DeclarationError, match="kernel kernel: the size of parts: " + re.escape(message)):
        variant_table(variant)


def test_a_workspace_may_be_as_large_as_a_tensor_of_any_rank() -> None:
    vector, cube, parts = (aot.Tensor("f32", shape) for shape in (("n",), ("a", "b", "c"), ("length",)))

    @aot.kernel(
        parameters=[aot.In("x"), aot.Workspace("parts", bytes="4 * x.size")],
        archs=("sm_90a",),
        axes={"rank": {"one": vector, "three": cube}},
    )
    def kernel(target: aot.Target, rank: aot.Tensor) -> aot.Spec:
        return aot.Spec(jit, {"x": rank, "parts": parts, "stream": aot.Stream()})

    tables = [variant_table(variant).workspace for variant in kernel.variants(kernel.archs[0])]
    read = [[step.dim for step in table.size.steps if step.operation == "extent"] for table in tables if table]
    assert read == [[0], [0, 1, 2]]


def test_each_argument_that_dispatch_makes_has_a_constant() -> None:
    batch = aot.Tensor("bf16", ("b", "m", "n"))
    optional = aot.Tensor("f32", ("n",), optional=True)
    made = table({"k": aot.Scalar("i32"), "x": batch.single(), "bias": optional})
    assert made.constants == (FixedArgument.single(1), FixedArgument.optional(2, DTYPES["f32"].packed, 1))
    assert made.sources == (0, SOURCE_CONSTANT, SOURCE_CONSTANT + 1)


def test_a_workspace_overlaps_nothing() -> None:
    vector, parts = aot.Tensor("f32", ("n",)), aot.Tensor("f32", ("length",))

    @aot.kernel(parameters=[aot.In("x"), aot.Workspace("parts", bytes="4 * x.size")], archs=("sm_90a",))
    def kernel(target: aot.Target) -> aot.Spec:
        return aot.Spec(jit, {"x": vector, "parts": parts, "stream": aot.Stream()})

    (variant,) = kernel.variants(kernel.archs[0])
    regions = next(item.subject.regions for item in variant_table(variant).requirements if item.subject.regions)
    assert [(region.label, region.is_output) for region in regions] == [("parts", True), ("x", False)]


@pytest.mark.parametrize(
    "kind", [kind for kind in vars(subjects).values() if is_dataclass(kind)], ids=lambda kind: kind.__name__
)
def test_what_dispatch_is_made_of_cannot_change(kind: Any) -> None:
    assert kind.__dataclass_params__.frozen


def test_preferences_are_no_requirements() -> None:
    plain, preferring = tuned(()), tuned((), prefer="m <= 64")
    assert preferring.requirements == plain.requirements
    (preference,) = preferring.preferences
    assert (preference.subject.label, preference.low, preference.high) == ("m", LOWEST, 64)
    assert plain.preferences == ()
