"""What a worker and its parent say to each other survives JSON unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import Choice, Parameter
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.compile.messages import Compiled, Declared, KernelInfo, KernelLaunch, Options, VariantInfo
from aot.errors import Failure
from aot.records import RecordError, decode, encode
from aot.selection.subjects import Region, Requirement, Step, Subject, VariantTable


def through_json(value: Any) -> Any:
    return decode(type(value), json.loads(json.dumps(encode(value))))


TYPES = (Options, KernelInfo, VariantInfo, KernelLaunch, Compiled, Failure, Declared, VariantTable, Requirement, Step)
st.register_type_strategy(Arch, st.builds(Arch, st.integers(8, 12), st.integers(0, 9), st.sampled_from(["", "a", "f"])))
st.register_type_strategy(
    Parameter,
    st.builds(
        Parameter,
        st.text(),
        st.text(),
        st.booleans(),
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False)),
        st.booleans(),
    ),
)
st.register_type_strategy(float, st.floats(allow_nan=False))
_PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.text())
_CAPTURED = st.dictionaries(st.text(), _PLAIN | st.lists(_PLAIN), max_size=3)  # any JSON
st.register_type_strategy(
    KernelInfo,
    st.builds(
        KernelInfo, contract=..., has_contract=..., backward=..., family=..., core=..., captured=st.none() | _CAPTURED
    ),
)
st.register_type_strategy(Compiled, st.builds(Compiled, reads=st.none() | _CAPTURED))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(st.data())
def test_every_message_survives_json(kind: type, data: st.DataObject) -> None:
    value = data.draw(st.from_type(kind))
    assert through_json(value) == value


def test_labels_that_do_not_count_in_comparison_survive_too() -> None:
    subject = Subject(
        "extent_off",
        (1, 2),
        3,
        4,
        (5,),
        6,
        True,
        7,
        (Step("add", (1,), 2, 3),),
        (Region((1,), True, 2, "y"),),
        "y[2]",
        "x",
    )
    returned = through_json(Requirement(subject, -(2**63) + 1, 2**63 - 1, True))
    assert (returned.enforced, returned.subject.label, returned.subject.other_label) == (True, "y[2]", "x")


def test_architectures_are_text() -> None:
    assert encode({"a": (Arch.parse("sm_90a"),)}) == {"a": ["sm_90a"]}


@dataclass(frozen=True)
class _Inner:
    pair: tuple[int, str]


@dataclass(frozen=True)
class _Outer:
    maybe: _Inner | None
    table: Mapping[str, tuple[_Inner, ...]]


def test_nested_types_follow_the_hints() -> None:
    value = _Outer(_Inner((1, "a")), {"x": (_Inner((2, "b")), _Inner((3, "c")))})
    assert through_json(value) == value
    assert through_json(_Outer(None, {})) == _Outer(None, {})


def test_a_tuple_of_another_length_is_not_accepted() -> None:
    with pytest.raises(RecordError, match="pair: expected 2 items, got 1"):
        decode(_Inner, {"pair": [1]})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected _Outer, got \\[\\]"),
        ({}, "`maybe` is missing"),
        ({"maybe": 1, "table": {}}, "maybe: expected _Inner, got 1"),
        ({"maybe": {"pair": ["1", "a"]}, "table": {}}, "maybe: pair: expected int, got '1'"),
        ({"maybe": {"pair": [True, "a"]}, "table": {}}, "maybe: pair: expected int, got True"),
        ({"maybe": None, "table": []}, "table: expected an object"),
        ({"maybe": None, "table": {"x": {}}}, "table: expected a list"),
        ({"maybe": None, "table": {"x": [{"pair": [1, "\ud800"]}]}}, "table: pair: expected str"),
    ],
)
def test_what_is_not_such_a_record_is_refused_with_its_place(data: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        decode(_Outer, data)


def test_fields_that_are_not_known_are_passed_over() -> None:
    assert decode(_Inner, {"pair": [1, "a"], "added": 2}) == _Inner((1, "a"))


def test_a_missing_field_takes_its_default() -> None:
    assert decode(Options, {}) == Options()
    assert decode(Choice, {"name": "op", "values": ["relu"]}) == Choice("op", ("relu",))


@pytest.mark.parametrize("data", ["sm90", 90, None, ["sm_90"]])
def test_what_is_not_an_architecture_is_refused(data: Any) -> None:
    with pytest.raises(RecordError, match="not a GPU architecture"):
        decode(Arch, data)


def test_a_choice_keeps_the_order_of_its_values() -> None:
    assert through_json(Choice("op", ("relu", "gelu"), "gelu")) == Choice("op", ("relu", "gelu"), "gelu")
