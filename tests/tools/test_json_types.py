"""Types of JSON: what does not fit is found, at every depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from aot.cli.schema import Key
from tools.json_types import fields, mismatches, problems, records, type_text


@dataclass(frozen=True)
class Inner:
    """A part."""

    name: str  # what it is called
    size: int | None  # None: not known


class Outer(TypedDict, total=False):
    """The whole."""

    parts: tuple[Inner, ...]  # in their order
    pair: tuple[str, float]
    by_name: Mapping[str, Inner]  # each part
    rest: Any  # whatever it is


GOOD = {"parts": [{"name": "a", "size": 1}], "pair": ["x", 0.5], "by_name": {"a": {"name": "a", "size": None}}}


def test_what_fits_has_no_mismatch() -> None:
    assert list(mismatches(Outer, GOOD, "it")) == []
    assert list(mismatches(Outer, {"rest": [1, None]}, "it")) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"parts": [{"name": "a"}]}, "it.parts[0].size is missing"),
        ({"parts": [{"name": "a", "size": 1, "more": 2}]}, "it.parts[0].more is not listed"),
        ({"parts": [{"name": 3, "size": 1}]}, "it.parts[0].name is 3, not string"),
        ({"parts": [{"name": "a", "size": True}]}, "it.parts[0].size is True, not integer"),
        ({"parts": {}}, "it.parts is {}, not a list"),
        ({"pair": ["x"]}, "it.pair has 1 items, not 2"),
        ({"pair": ["x", "y"]}, "it.pair[1] is 'y', not number"),
        ({"by_name": {"a": []}}, "it.by_name.a is [], not an object"),
        ({"by_name": []}, "it.by_name is [], not an object"),
        ({"other": 1}, "it.other is not listed"),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, Any], said: str) -> None:
    assert list(mismatches(Outer, {**GOOD, **changed}, "it")) == [said]


def test_types_are_written_out_and_records_are_links() -> None:
    assert type_text(tuple[str | None, ...]) == "list of (string or null)"
    assert type_text(Mapping[str, Inner], "json.md") == "object of [Inner](json.md#inner)"
    assert type_text(tuple[str, int]) == "list of 2 (string, integer)"
    assert type_text(Any) == "any value"
    with pytest.raises(LookupError):
        type_text(set[str])


def test_records_and_their_meanings_are_found() -> None:
    assert records([tuple[Outer, ...]]) == {"Inner": Inner, "Outer": Outer}
    assert [(field.name, field.meaning) for field in fields(Inner)] == [
        ("name", "what it is called"),
        ("size", "None: not known"),
    ]
    assert [field.meaning for field in fields(Outer)] == ["in their order", "", "each part", "whatever it is"]


def test_keys_that_depend_on_options_may_be_missing_and_have_two_types() -> None:
    keys = (Key("a", str, ""), Key("b", int, "", "with --x"), Key("b", tuple[str, ...], "", "without --x"))
    assert problems({"a": "", "b": 1}, keys) == problems({"a": "", "b": ["c"]}, keys) == []
    assert problems({"a": ""}, keys) == ["b is missing"]
    assert problems({"a": ""}, keys, partly=True) == []
    assert problems({"a": "", "b": "c", "d": 1}, keys) == ["d is not listed", "b is 'c', not integer"]
    assert problems([], keys) == ["expected an object, got []"]
