"""A call that launches a kernel is told from host code, however deep what launches it lies."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

from aot.capture.kernels import CapturedCall, launches_kernels, name_of, note_values
from aot.compile.traced import check_seen
from aot.errors import BuildError


class Launcher:
    def run(self) -> None:
        self.kernel().launch()  # type: ignore[attr-defined]


class Holder:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __call__(self) -> None:
        """Calls what it holds, by a name that is not known here."""


def launches() -> None:
    Launcher().run()


def launches_through_another() -> None:
    launches()


def computes() -> int:
    return len("host code")


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (launches, True),
        (launches_through_another, True),
        (Launcher().run, True),
        (Holder(inner=Holder(parts=[{"one": Launcher()}])), True),
        (Holder(inner=launches), True),
        (computes, False),
        (Holder(inner=computes, number=3), False),
    ],
)
def test_a_launch_is_found_at_any_depth(function: Any, found: bool) -> None:
    assert launches_kernels(CapturedCall("key", {}, "", function, (), {}, "here")) is found


def test_what_cannot_be_compiled_has_a_name_to_be_refused_by() -> None:
    assert [name_of(one) for one in (functools.partial(computes), computes, Launcher(), 3)] == [
        "partial", "computes", "Launcher", "int",
    ]  # fmt: skip


def test_a_function_that_is_replaced_after_a_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    call = CapturedCall("key", {}, "", Launcher().run, (), {}, "here")
    seen: dict[tuple[str, str], set[str]] = {}
    note_values(seen, call)
    spec: Any = SimpleNamespace(seen=seen)
    check_seen(spec, {"modules": {}})
    monkeypatch.setattr(Launcher, "run", launches_through_another)
    with pytest.raises(BuildError, match=r"Launcher\.run is another function"):
        check_seen(spec, {"modules": {}})
