"""Names of architectures and capabilities."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from aot_runtime import AotError, Arch, ArchError
from aot_runtime.arch import parse_capability
from hypothesis import given
from hypothesis import strategies as st

import aot

ACCEPTED = json.loads((Path(aot.__file__).parent / "data" / "archs.json").read_text())["accepted"]


@given(st.from_regex(r"sm_[1-9][0-9]{1,2}[af]?", fullmatch=True))
def test_every_valid_name_prints_as_it_was_written(text: str) -> None:
    assert str(Arch.parse(text)) == text


@given(st.one_of(st.from_regex(r"sm_\d+[a-z]?", fullmatch=True), st.text()))
def test_a_text_is_refused_or_prints_as_it_was_written(text: str) -> None:
    try:
        arch = Arch.parse(text)
    except ArchError:
        return
    assert str(arch) == text


@pytest.mark.parametrize("text", ACCEPTED)
def test_every_accepted_architecture_parses(text: str) -> None:
    arch = Arch.parse(text)
    assert str(arch) == text
    assert arch.runs_on(arch.capability)


def test_the_last_digit_is_the_minor_version() -> None:
    assert Arch.parse("sm_90a") == Arch(9, 0, "a")
    assert Arch.parse("sm_103f") == Arch(10, 3, "f")
    assert Arch.parse("sm_121") == Arch(12, 1)


@pytest.mark.parametrize(
    "text", ["", "sm_", "sm_9", "sm90", "sm_90b", "sm_90af", "sm_9 0", "SM_90", "sm_090", "sm_1000", "sm_٩٠", "sm_90\n"]
)
def test_what_is_not_an_architecture_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(ArchError, match="not a GPU architecture") as caught:
        Arch.parse(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint == "write it like sm_80, sm_90a or sm_120f"
    assert isinstance(caught.value, AotError)


def test_architectures_sort_by_number_not_by_text() -> None:
    names = ["sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_100f", "sm_103a", "sm_120f"]
    archs = [Arch.parse(name) for name in names]
    assert all(earlier < later for earlier, later in pairwise(archs))


@given(st.integers(0, 99), st.integers(0, 99))
def test_a_capability_may_be_text_or_a_pair(major: int, minor: int) -> None:
    assert parse_capability(f"{major}.{minor}") == parse_capability((major, minor)) == (major, minor)


@pytest.mark.parametrize(
    "value", ["", "9", "9.", ".0", "9.0.1", "9.x", "sm_90a", "-9.0", (9,), (9, 0, 0), ("9", "0"), (-9, 0), 9, 9.0, None]
)
def test_what_is_not_a_capability_is_refused_with_a_hint(value: object) -> None:
    with pytest.raises(ArchError, match="not a compute capability") as caught:
        parse_capability(value)  # type: ignore[arg-type]
    assert caught.value.hint == 'write it like "9.0" or (9, 0)'


@pytest.mark.parametrize("value", [(2**32 + 9, 0), "4294967305.0", (9, 10**30)])
def test_a_capability_that_no_device_could_have_is_refused(value: object) -> None:
    with pytest.raises(ArchError, match="not a compute capability"):
        parse_capability(value)  # type: ignore[arg-type]
